"""Models from the meta device get the weights of one device, bit for bit, or those of files."""

from pathlib import Path
from typing import Any

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends.torch.state.recording import record
from torch_zoo.models import MODELS


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, also buffers that are not in a state_dict."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def planned(model: Any, batch: Any, **options: Any) -> mw.ParallelStep:
    return mw.parallelize(
        model,
        torch.optim.AdamW(model.parameters(), 1e-2),
        lambda model, batch: model(**batch).loss,
        batch,
        cluster=Cluster.preset("two-hosts:1"),
        **options,
    )


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_buffers_equal_those_of_one_device(name: str) -> None:
    build = MODELS[name].make
    torch.manual_seed(3)
    expected, after = tensors_of(build()), torch.rand(4)
    torch.manual_seed(3)
    with record() as recording:
        places = {n: recording.find(t) for n, t in tensors_of(build()).items()}
    tensors: dict[str, torch.Tensor] = {}
    recording.make(places, lambda n: True, lambda n, t: tensors.update({n: t.clone()}))
    assert tensors.keys() == expected.keys()
    for n, tensor in expected.items():
        assert torch.equal(tensors[n], tensor), n
    assert torch.equal(torch.rand(4), after)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "BERT", "T5"])
def test_a_run_from_the_meta_device_equals_a_run_from_weights(name: str) -> None:
    """Two stages and two microbatches, with dropout and with buffers that are read beforehand."""
    build, batch = MODELS[name].make, MODELS[name].batch()
    torch.manual_seed(3)
    model = build()
    with torch.device("meta"):
        bare = build()
    losses = []
    for start in (model, bare):
        step = planned(start, batch, strategy="equal_layers", microbatches=2)
        if start is bare:
            torch.manual_seed(3)
            step.init_weights(build)
        torch.manual_seed(1)
        losses.append([float(step(batch)) for _ in range(2)])
    assert losses[0] == losses[1]


def test_files_of_hugging_face_are_read(tmp_path: Path) -> None:
    """Several files and their index, as `save_pretrained` writes them, without buffers."""
    build, batch = MODELS["Llama"].make, MODELS["Llama"].batch()
    torch.manual_seed(3)
    model: Any = build()
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with torch.device("meta"):
        bare = build()
    step = planned(bare, batch, strategy="zero", microbatches=1)
    step.load_state_dict(tmp_path)
    step.init_weights(build)
    state = step.runtime.whole_state()
    for name, tensor in model.named_parameters():
        assert torch.equal(state[f"params[{name!r}]"], tensor)
    for name, tensor in model.named_buffers():
        assert torch.equal(state[f"buffers[{name!r}]"], tensor)
