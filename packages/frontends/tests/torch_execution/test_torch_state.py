"""A step goes on from state dicts and from files, or says why it cannot and changes nothing."""

import json
from pathlib import Path
from typing import Any

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends import CheckpointError, InitializationError, PlanError
from frontends.torch.run.kept_state import Parts
from safetensors.torch import save_file
from shardspec import Spec
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR

QUICK: dict[str, Any] = {"cluster": Cluster.preset("two-hosts:1"), "microbatches": 1}
BATCH = torch.arange(64).view(8, 8) % 8


class Model(nn.Module):
    """A table under two names, and a buffer that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(self.table(tokens) * self.scale)))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def planned(seed: int, device: str = "cpu", strategy: str = "zero") -> mw.ParallelStep:
    torch.manual_seed(seed)
    with torch.device(device):
        model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-2)
    return mw.parallelize(model, optimizer, loss_of, BATCH, strategy=strategy, **QUICK)


def values(step: mw.ParallelStep) -> dict[str, torch.Tensor]:
    return step.runtime.whole_state()


def assert_unchanged(step: mw.ParallelStep, before: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(tensor, before[name]) for name, tensor in values(step).items())


@pytest.fixture(scope="module")
def trained() -> mw.ParallelStep:
    step = planned(0)
    for _ in range(2):
        step(BATCH)
    return step


@pytest.fixture(scope="module")
def other() -> mw.ParallelStep:
    return planned(1, strategy="data_parallel")


@pytest.mark.parametrize("form", ["file", "folder", "index"])
def test_weights_are_read_from_safetensors(
    form: str, trained: mw.ParallelStep, tmp_path: Path
) -> None:
    """Into a model from the meta device, whose optimizer begins and whose buffer is made."""
    weights = trained.state_dict()["model"]
    del weights["head.weight"]  # Hugging Face writes what is tied once
    one = tmp_path / "model.safetensors"
    if form == "index":
        names = {"a.safetensors": ["body.bias", "table.weight"], "b.safetensors": ["body.weight"]}
        for file, mine in names.items():
            save_file({name: weights[name] for name in mine}, tmp_path / file)
        weight_map = {name: file for file, mine in names.items() for name in mine}
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    else:
        save_file(weights, one)
    step = planned(2, "meta")
    step.load_state_dict(one if form == "file" else tmp_path)
    with pytest.raises(PlanError, match=r"buffers\['scale'\] and 0 others are on the meta device"):
        step(BATCH)
    state = torch.get_rng_state()
    step.init_weights(Model)
    assert torch.equal(torch.get_rng_state(), state), "nothing random was left to draw"
    found = values(step)
    for name, tensor in weights.items():
        assert torch.equal(found[f"params[{name!r}]"], tensor)
    fresh = planned(3)
    fresh.load_state_dict({"model": weights})
    assert float(step(BATCH)) == float(fresh(BATCH))


def test_what_does_not_fit_is_named_and_nothing_is_loaded(
    trained: mw.ParallelStep, other: mw.ParallelStep, tmp_path: Path
) -> None:
    before = values(other)
    state = trained.state_dict()
    weights = state["model"]
    lacking = {name: tensor for name, tensor in weights.items() if name != "body.bias"}
    more = {**weights, "body.scale": torch.ones(8)}
    for wrong, message in (
        ({"model": lacking}, r"missing: model\['body.bias'\], unexpected: none, different: none"),
        ({"model": more}, r"missing: none, unexpected: model\['body.scale'\], different: none"),
        (
            {"model": {**weights, "body.bias": torch.ones(4)}},
            r"different: model\['body.bias'\] is float32\[4\] and not float32\[8\]",
        ),
        (
            {"model": {**weights, "body.bias": torch.ones(8).bfloat16()}},
            r"model\['body.bias'\] is bfloat16\[8\] and not float32\[8\]: build the model in the",
        ),
        (
            {**state, "optimizer": {**state["optimizer"], "state": {}}},
            r"missing: optimizer\['state'\]\[0\]\['step'\], optimizer\['state'\].* and 6 more",
        ),
        (
            {**state, "optimizer": {"state": {}, "param_groups": []}},
            r"got groups of \[\] parameters instead of \[3\]",
        ),
        ({**state, "optimizer": {}}, r"with state and param_groups; got nothing"),
        ({**state, "optimizer": [1]}, r"with state and param_groups; got list"),
        ({"model": [1]}, r"under model and optimizer, or model alone; got model: pass"),
        (weights, r'under model and optimizer, .*; got table.weight, .*: pass {"model": model_'),
    ):
        with pytest.raises(CheckpointError, match=message):
            other.load_state_dict(wrong)
    save_file(lacking | {"head.weight": weights["head.weight"].clone()}, tmp_path / "a.safetensors")
    Path(tmp_path, "broken").write_text("this is no file of tensors")
    for path, message in (
        ("a.safetensors", r"missing: model\['body.bias'\]"),
        ("nowhere", r"or a folder with model.safetensors.index.json or .*nowhere: No such file"),
        ("broken", r"broken: Error while deserializing header"),
        (".", r"model.safetensors: No such file"),
    ):
        with pytest.raises(CheckpointError, match=message):
            other.load_state_dict(tmp_path / path)
    index = tmp_path / "wrong.json"
    for text, message in (
        ("{}", r"JSON with a weight_map .*wrong.json: KeyError"),
        ('{"weight_map": {"c": "a.safetensors"}}', r"a.safetensors lacks \['c'\]"),
    ):
        index.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            other.load_state_dict(index)
    assert_unchanged(other, before)


def test_only_the_parts_that_are_kept_are_read(trained: mw.ParallelStep) -> None:
    """Each of four devices reads a quarter."""
    whole, read = torch.arange(64.0).view(8, 8), []

    class Reader:
        def __getitem__(self, region: Any) -> torch.Tensor:
            read.append(whole[region])
            return read[-1]

    parts = Parts()
    trained.runtime.cut("params['body.weight']", Reader(), parts)
    (((_, slot, _), shards),) = parts.shards.items()
    assert slot.spec != Spec.parse("RR")
    assert sorted(v for part in read for v in part.flatten().tolist()) == whole.flatten().tolist()
    assert [t.tolist() for t in read] == [t.tolist() for t in shards]


def test_what_fits_by_name_is_taken_if_that_is_asked_for(trained: mw.ParallelStep) -> None:
    step, weights = planned(1), trained.state_dict()["model"]
    before = values(step)
    step.load_state_dict({"model": {"body.bias": weights["body.bias"], "x": BATCH}}, strict=False)
    found = values(step)
    assert torch.equal(found["params['body.bias']"], weights["body.bias"])
    assert torch.equal(found["params['body.weight']"], before["params['body.weight']"])


def test_a_part_that_a_checkpoint_lacks_is_initialised(trained: mw.ParallelStep) -> None:
    step, weights = planned(1, "meta"), trained.state_dict()["model"]
    loaded = {name: tensor for name, tensor in weights.items() if name.startswith("body")}
    step.load_state_dict({"model": loaded}, strict=False)
    torch.manual_seed(4)
    step.init_weights(Model)
    torch.manual_seed(4)
    found, fresh = step.state_dict()["model"], Model().state_dict()
    for name, tensor in found.items():
        assert torch.equal(tensor, loaded.get(name, fresh[name]))


def test_one_process_has_no_dtensors(trained: mw.ParallelStep) -> None:
    with pytest.raises(PlanError, match="this process is alone and has all devices: take whole"):
        trained.state_dict(full_state_dict=False)


class Lagging(torch.optim.SGD):
    """Keeps a copy of the weights from its first update on."""

    def _init_group(self, group: Any, params: Any, grads: Any, buffers: Any) -> bool:
        for p in group["params"]:
            self.state[p].setdefault("slow", p.detach().clone())
        return super()._init_group(group, params, grads, buffers)


def test_an_optimizer_that_copies_weights_begins_with_them(trained: mw.ParallelStep) -> None:
    with torch.device("meta"):
        model = Model()
    step = mw.parallelize(
        model, Lagging(model.parameters(), 0.1), loss_of, BATCH, strategy="data_parallel", **QUICK
    )
    weights = {"model": trained.state_dict()["model"]}
    with pytest.raises(InitializationError, match=r"\['slow'\]\['body.bias'\] follows from them"):
        step.load_state_dict(weights)
    assert len(step.runtime.missing) == 7, "nothing is half loaded"
    torch.manual_seed(0)
    step.init_weights(Model)
    torch.manual_seed(0)
    found, expected = values(step), Model()
    for name, tensor in expected.named_parameters():
        assert torch.equal(found[f"optimizer['slow'][{name!r}]"], tensor)
    step.load_state_dict(weights)


def scheduled(strategy: str, device: str = "cpu") -> tuple[mw.ParallelStep, LRScheduler]:
    """Momentum, a learning rate that changes at steps, and dropout."""
    torch.manual_seed(0)
    with torch.device(device):
        model = nn.Sequential(Model(), nn.Dropout(0.5))
    optimizer = torch.optim.AdamW(
        [{"params": [p], "lr": 0.01 * (1 + p.ndim)} for p in model.parameters()], eps=1e-2
    )
    step = mw.parallelize(model, optimizer, loss_of, BATCH, strategy=strategy, **QUICK)
    return step, MultiStepLR(optimizer, [1, 3], 0.5)


def run(step: mw.ParallelStep, schedule: LRScheduler, n_steps: int) -> list[float]:
    losses = []
    for _ in range(n_steps):
        losses.append(float(step(BATCH)))
        schedule.step()
    return losses


@pytest.mark.parametrize(("strategy", "off"), [("zero", 0.0), ("equal_layers", 1e-5)])
def test_a_run_goes_on_as_if_nothing_had_been(strategy: str, off: float, tmp_path: Path) -> None:
    """Moments, step counts, rates, their schedule and random masks, on the meta device before."""
    step, schedule = scheduled("zero")
    run(step, schedule, 2)
    mw.save(tmp_path, 2, step, extra={"schedule": schedule})
    expected = run(step, schedule, 3)
    again, its_schedule = scheduled(strategy, "meta")
    torch.manual_seed(5)
    with pytest.raises(
        CheckpointError, match=r"extra \['schedule'\] and 3 .* for are \['more'\] and 3"
    ):
        mw.restore(tmp_path, again, extra={"more": its_schedule})
    assert again.runtime.missing, "nothing is half restored"
    mw.restore(tmp_path, again, extra={"schedule": its_schedule})
    assert its_schedule.last_epoch == 2
    assert run(again, its_schedule, 3) == pytest.approx(expected, rel=off, abs=0)
    assert its_schedule.get_last_lr() == schedule.get_last_lr()
    counts = {int(kept["step"]) for kept in again.state_dict()["optimizer"]["state"].values()}
    assert counts == {5}
