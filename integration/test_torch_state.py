"""Hugging Face models from the meta device have the weights of one device, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import frontends.torch as mw
import pytest
import torch
import transformers
from costmodel import Cluster
from frontends.torch.recording import record

SIZES: dict[str, Any] = {"vocab_size": 64, "use_cache": False}
WIDE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
BUILDS: dict[str, Callable[[], torch.nn.Module]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**SIZES, **GPT2, bos_token_id=0, eos_token_id=0)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, **WIDE, num_attention_heads=4, num_key_value_heads=2)
    ),
    "bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(
            **SIZES, **WIDE, num_attention_heads=4, max_position_embeddings=32, is_decoder=False
        )
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            **SIZES,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        )
    ),
}


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, also those that no state_dict has."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("name", BUILDS)
def test_weights_and_buffers_are_those_of_one_device(name: str) -> None:
    torch.manual_seed(3)
    expected, after = tensors_of(BUILDS[name]()), torch.rand(4)
    torch.manual_seed(3)
    with record() as recording:
        places = {n: recording.find(t) for n, t in tensors_of(BUILDS[name]()).items()}
    found: dict[str, torch.Tensor] = {}
    recording.make(places, lambda n: True, lambda n, t: found.update({n: t.clone()}))
    assert found.keys() == expected.keys()
    for n, tensor in expected.items():
        assert torch.equal(found[n], tensor), n
    assert torch.equal(torch.rand(4), after)


@pytest.mark.nightly
@pytest.mark.parametrize("name", BUILDS)
def test_a_run_from_the_meta_device_is_that_from_weights(name: str) -> None:
    """Two stages, two microbatches; dropout and buffers that are read beforehand among it."""
    torch.manual_seed(3)
    model = BUILDS[name]()
    with torch.device("meta"):
        bare = BUILDS[name]()
    tokens = torch.arange(64).view(4, 16)
    batch = {"input_ids": tokens, "labels": tokens}
    losses = []
    for mine in (model, bare):
        step = mw.parallelize(
            mine,
            torch.optim.AdamW(mine.parameters(), 1e-2),
            lambda model, batch: model(**batch).loss,
            batch,
            cluster=Cluster.preset("two-hosts:1"),
            strategy="equal_layers",
            microbatches=2,
        )
        if mine is bare:
            torch.manual_seed(3)
            step.init_weights(BUILDS[name])
        torch.manual_seed(1)
        losses.append([float(step(batch)) for _ in range(2)])
    assert losses[0] == losses[1]


def test_files_of_hugging_face_are_read(tmp_path: Path) -> None:
    """Several files and their index, as `save_pretrained` writes them; tables are not in them."""
    torch.manual_seed(3)
    model = BUILDS["llama"]()
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with torch.device("meta"):
        bare = BUILDS["llama"]()
    tokens = torch.arange(64).view(4, 16)
    step = mw.parallelize(
        bare,
        torch.optim.AdamW(bare.parameters(), 1e-2),
        lambda model, batch: model(**batch).loss,
        {"input_ids": tokens, "labels": tokens},
        cluster=Cluster.preset("two-hosts:1"),
        strategy="zero",
        microbatches=1,
    )
    step.load_state_dict(tmp_path)
    step.init_weights(BUILDS["llama"])
    state = step.runtime.whole_state()
    for name, tensor in model.named_parameters():
        assert torch.equal(state[f"params[{name!r}]"], tensor)
    for name, tensor in model.named_buffers():
        assert torch.equal(state[f"buffers[{name!r}]"], tensor)
