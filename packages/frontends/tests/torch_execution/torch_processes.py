"""The processes of test_torch_processes.py: each runs plans, verifies them, and writes to
FOLDER/rank.json what it found. `torchrun` and `mpiexec` start it alike, with FOLDER STRATEGY..."""

import contextlib
import copy
import functools
import gc
import itertools
import json
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import autoshard
import frontends.torch as mw
import numpy as np
import pytest
import shardspec
import torch
import torch.distributed as dist
from costmodel import Cluster
from frontends import (
    BatchError,
    CheckpointError,
    DeviceError,
    InitializationError,
    PlanError,
    UnsupportedStepError,
)
from frontends.torch.lower.local import local_slice
from frontends.torch.run.dtensors import as_dtensor, check_rising, device_mesh
from frontends.torch.run.lockstep import LockStep
from frontends.torch.run.process_group import Grouped
from frontends.torch.run.processes import join
from safetensors.torch import save_file
from shardspec import Layout, Mesh
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

STRATEGIES = {"zero": 1, "megatron": 2, "equal_layers": 2}
"""And in how many microbatches."""

MIXED = Mesh((2, 2), ("x", "y"), (2, 0, 3, 1))
"""Devices in an order that is not that of the ranks."""


class Model(nn.Module):
    """Tokens are looked up and predicted with one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for linear in self.body:
            x = x + torch.tanh(nn.functional.dropout(linear(self.norm(x)), 0.1))
        return x @ self.table.weight.T


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens)[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())


def parallelized(strategy: str, microbatches: int) -> tuple[mw.ParallelStep, torch.Tensor]:
    """A step that is not planned yet, and its batch."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-2)
    tokens = torch.randint(0, 16, (8, 5))
    step = mw.parallelize(
        model,
        optimizer,
        loss_of,
        cluster=Cluster.preset("two-hosts:1"),
        strategy=strategy,
        microbatches=microbatches,
    )
    return step, tokens


def train(strategy: str, microbatches: int, folder: Path) -> dict[str, Any]:
    """What a run of a plan finds; it is saved before the last of its steps."""
    step, tokens = parallelized(strategy, microbatches)
    verified = step.verify(tokens, n_steps=3)
    first = float(step(tokens))
    mw.save(folder / strategy, 1, step)
    last = float(step(tokens))
    assert mw.restore(folder / strategy, step) == 1
    assert float(step(tokens)) == last
    why = r"step 2, is not: process 1: OSError: .* File too large; the last is still that of step 1"
    with no_room(dist.get_rank() == 1), pytest.raises(CheckpointError, match=why):
        mw.save(folder / strategy, 2, step)
    assert mw.restore(folder / strategy, step) == 1
    assert float(step(tokens)) == last
    return {
        "losses": [first, last],
        "state": verified.state,
        "collectives": verified.n_collectives,
        "stages": len(step.plan.stages),
    }


def check_followed() -> int:
    """The model says that it is behind, what is written to it is taken over, and a short batch and
    a layer that is frozen are variants with the state of before; how many there are."""
    losses: list[list[float]] = []
    for is_eager in (True, False):
        step, tokens = parallelized("equal_layers", 1)
        model, optimizer = step.model, step.optimizer
        call: Any = functools.partial(train_eagerly, model, optimizer) if is_eager else step
        torch.manual_seed(1)
        found = [float(call(tokens)), float(call(tokens[:4]))]
        if not is_eager:
            for read in (functools.partial(model, tokens), model.state_dict, optimizer.state_dict):
                with pytest.raises(PlanError, match=r"lie sharded on several .*write_back\(\)"):
                    read()
            step.write_back()
        model.eval()
        found.append(float(loss_of(model, tokens).detach()))
        model.train()
        with torch.no_grad():
            model.table.weight.mul_(0.5)
        model.body[0].requires_grad_(False)
        found += [float(call(tokens)), float(call(tokens))]
        losses.append(found)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    return len(step.variants)


def train_eagerly(model: nn.Module, optimizer: Any, tokens: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    optimizer.step()
    return loss.detach()


def check_evaluated() -> list[str]:
    """Evaluations between steps use the trained weights where they lie, and layers that change
    places take theirs with them: the strategies of their plans."""
    losses: list[list[float]] = []
    for is_eager in (True, False):
        step, tokens = parallelized("equal_layers", 2)
        model: Any = step.model
        call: Any = functools.partial(train_eagerly, model, step.optimizer) if is_eager else step

        def evaluate(
            batch: torch.Tensor,
            step: mw.ParallelStep = step,
            model: Any = model,
            is_eager: bool = is_eager,
        ) -> float:
            if not is_eager:
                return float(step.evaluate(loss_of, batch))
            model.eval()
            loss = loss_of(model, batch)
            model.train()
            return loss.item()

        torch.manual_seed(1)
        found = []
        for turn in range(3):
            found += [float(call(tokens)), evaluate(tokens), evaluate(tokens[:3])]
            if turn == 1:
                model.body[0], model.body[1] = model.body[1], model.body[0]
                found.append(evaluate(tokens))
        losses.append(found)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    (follows,) = step._evaluations.values()
    return [variant.plan.strategy for variant in follows.variants]


def check_counted() -> int:
    """RAdam asks for its count, which lies sharded: eager losses past its warm-up, by how many
    programs; and a step that decides by what it computes is refused."""
    losses: list[list[float]] = []
    for is_eager in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = torch.optim.RAdam(model.parameters(), lr=0.05)

        def train(x: torch.Tensor, model: Any = model, optimizer: Any = optimizer) -> float:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        step = mw.parallelize_step(train, model, optimizer, microbatches=1)
        call: Any = train if is_eager else step
        losses.append([call(torch.full((8, 4), 0.1 * i)) for i in range(9)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)

    def decide(x: torch.Tensor) -> float:
        optimizer.zero_grad()
        return 0.0 if model(x).sum() > 3 else 1.0

    step.write_back()
    with pytest.raises(UnsupportedStepError, match="decides by a number"):
        mw.parallelize_step(decide, model, optimizer)(torch.ones(8, 4))
    return len(step.variants)


def check_unlike(rank: int) -> None:
    """A call that is not the same in all processes is refused in all, and nothing is changed."""
    losses: list[list[float]] = []
    for is_unlike in (False, True):
        step, tokens = parallelized("zero", 1)
        torch.manual_seed(1)
        found = [float(step(tokens))]
        if is_unlike:
            others = (
                tokens.roll(int(rank == 2), 0),
                tokens[: 8 - 4 * (rank == 2)],
                tokens.view(5, 8) if rank == 2 else tokens,
                tokens.view(torch.float64) if rank == 2 else tokens,
            )
            for other in others:
                with pytest.raises(BatchError, match="processes 0 and 2 have different ones"):
                    step(other)
            torch.manual_seed(rank)
            with pytest.raises(DeviceError, match="have different states of PyTorch's random"):
                step(tokens)
            torch.manual_seed(1)
            step.optimizer.param_groups[0]["lr"] = 0.01 * (1 + rank)
            with pytest.raises(DeviceError, match=rf"process {rank} has training=True, .*'lr'"):
                step(tokens)
            step.optimizer.param_groups[0]["lr"] = 0.01
            step.model.train(rank == 0)
            with pytest.raises(DeviceError, match="same modules in training; those of processes 0"):
                step(tokens)
            step.model.train()
            step.model.norm.train(rank != 1)
            with pytest.raises(DeviceError, match="same modules in training; those of processes 0"):
                step(tokens)
            step.model.train()
        torch.manual_seed(2)
        losses.append([*found, float(step(tokens)), float(step(tokens))])
        assert len(step.variants) == 1
    assert losses[0] == losses[1]


def check_unlike_code(rank: int) -> None:
    """Numbers and tensors that the code of a step takes from elsewhere are the same, too."""
    for taken in ("attribute", "tensor", "variant"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        model.beta = 2.0 + (rank == 2) * (taken == "attribute")
        model.scale = [torch.ones(8) * (1 + (rank == 3) * (taken == "tensor"))]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        step = mw.parallelize(model, optimizer, scaled_loss)
        x = torch.ones(8, 8)
        if taken == "attribute":
            with pytest.raises(PlanError, match=r"process 2 have .* in mul\.\d+ \(at .*beta"):
                step(x)
        elif taken == "tensor":
            with pytest.raises(BatchError, match="processes 0 and 3 have different values of"):
                step(x)
        else:
            step(x)
            model.beta = 3.0
            step(x)
            model.beta -= rank == 1
            with pytest.raises(DeviceError, match="processes 0 and 1, which would run the var"):
                step(x)
            model.beta = 2.0
            step(x)
            assert len(step.variants) == 2


def scaled_loss(model: Any, x: torch.Tensor) -> torch.Tensor:
    return (model.beta * (model(x) * model.scale[0])).square().mean()


def check_moved() -> int:
    """Two layers change places, and one goes by another name: the weights go with them."""
    losses: list[list[float]] = []
    for is_eager in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

        def train(x: torch.Tensor, model: Any = model, optimizer: Any = optimizer) -> float:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        step = mw.parallelize_step(train, model, optimizer, microbatches=1)
        call: Any = train if is_eager else step
        x = torch.linspace(-1, 1, 64).view(8, 8)
        found = []
        for turn in range(5):
            found.append(call(x))
            model[0], model[1] = model[1], model[0]
            if turn == 2:
                model[2] = nn.Sequential(model[2])
        losses.append(found)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    return len(step.variants)


@contextlib.contextmanager
def no_room(is_here: bool) -> Iterator[None]:
    """This process cannot write files of more than some bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if is_here:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_initial() -> mw.ParallelStep:
    """Each process makes its parts of a model from the meta device; returns the step."""
    torch.manual_seed(3)
    model = Model()
    after = torch.rand(4)
    with torch.device("meta"):
        bare = Model()
    optimizer = torch.optim.AdamW(bare.parameters(), 0.01, eps=1e-2)
    tokens = torch.zeros(8, 5, dtype=torch.int64)
    cluster = Cluster.preset("two-hosts:1")
    step = mw.parallelize(
        bare, optimizer, loss_of, tokens, cluster=cluster, strategy="equal_layers", microbatches=2
    )
    torch.manual_seed(dist.get_rank())
    with pytest.raises(InitializationError, match=r"processes \[1, 2, 3\] have another than"):
        step.init_weights(Model)
    torch.manual_seed(3)
    step.init_weights(Model)
    assert torch.equal(torch.rand(4), after)
    state = step.state_dict()
    assert all(torch.equal(state["model"][name], t) for name, t in model.state_dict().items())
    moments = [kept["exp_avg"] for kept in state["optimizer"]["state"].values()]
    assert len(moments) == 7
    assert not any(moment.any() for moment in moments)
    return step


def check_dtensors(rank: int) -> list[str]:
    """All layouts of a matrix are DTensors; returns how they print."""
    rising = Mesh((2, 2), ("x", "y"), (0, 2, 1, 3))
    whole, mesh, found = torch.arange(64.0).view(8, 8), device_mesh(rising), []
    check_rising(rising)
    other = [shardspec.Spec.parse(text) for text in ("S10R", "RS10")]
    for spec in [*autoshard.stored_specs((8, 8), rising.shape), *other]:
        layout = Layout((8, 8), rising, spec)
        shard = torch.from_numpy(shardspec.shard(layout, whole.numpy())[rank].copy())
        dtensor = as_dtensor("w", layout, mesh, shard)
        assert torch.equal(dtensor.full_tensor(), whole), spec
        assert dtensor.to_local().data_ptr() == shard.data_ptr()
        found.append(f"{spec} {dtensor.placements}")
    with pytest.raises(PlanError, match=r"got \(2, 0, 3, 1\) .* with \(2, 0\) along axis 1: take"):
        check_rising(MIXED)
    mixed = Layout((8, 8), rising, shardspec.Spec.parse("RR+P0+Pmax1"))
    with pytest.raises(PlanError, match=r"it has none for w, .*; take it whole, by state_dict"):
        as_dtensor("w", mixed, mesh, whole)
    return found


def check_state(folder: Path, target: mw.ParallelStep) -> None:
    """State goes from one plan to another and back: as DTensors, and its weights from a file."""
    source, tokens = parallelized("zero", 1)
    source(tokens)
    whole = source.state_dict()
    target.load_state_dict(source.state_dict(full_state_dict=False))
    assert_equal(target.state_dict(), whole)
    state = target.state_dict(full_state_dict=False)
    assert all(isinstance(tensor, DTensor) for tensor in state["model"].values())
    moments = [
        kept["exp_avg"] for kept in state["optimizer"]["state"].values() if "exp_avg" in kept
    ]
    assert 0 < len(moments) < 7, "of one of two stages"
    assert {moment.device_mesh.size() for moment in moments} == {2}
    source(tokens)
    source.load_state_dict(state)
    assert_equal(source.state_dict(), whole)
    source(tokens)
    weights = source.state_dict()["model"]
    if dist.get_rank() == 0:
        save_file(weights, folder / "model.safetensors")
    dist.barrier()
    target.load_state_dict(folder)
    assert_equal(target.state_dict(), {"model": weights, "optimizer": whole["optimizer"]})
    wrong = weights if dist.get_rank() == 0 else {**weights, "norm.bias": torch.ones(1)}
    with pytest.raises(
        CheckpointError, match=r"process 1 has model\['norm.bias'\] of float32\[1\]"
    ):
        target.load_state_dict({"model": wrong})


def assert_equal(found: Any, expected: Any) -> None:
    ours, theirs = (dict(pytree.tree_flatten_with_path(tree)[0]) for tree in (found, expected))
    assert ours.keys() == theirs.keys()
    for path, leaf in theirs.items():
        assert (
            torch.equal(ours[path], leaf) if isinstance(leaf, torch.Tensor) else ours[path] == leaf
        )


def check_collectives(rank: int) -> int:
    """Between all layouts of a matrix, a device gets what lock-step gives it; returns how many."""
    axes = [(0,), (1,), (0, 1), (1, 0)]
    mine, all_ = Grouped(MIXED, rank, axes), LockStep(MIXED)
    place = list(MIXED.device_ids).index(rank)
    specs = autoshard.stored_specs((8, 8), MIXED.shape)
    partial = [shardspec.Spec.parse(text) for text in ("RR+P0", "RS0+P1")]
    bound: list[tuple[shardspec.Step, list[torch.Tensor]]] = []
    n = 0
    for (src, dst), size in itertools.product(
        itertools.product([*specs, *partial], specs), (8, 16)
    ):
        shape = size, 8
        before, after = Layout(shape, MIXED, src), Layout(shape, MIXED, dst)
        shards = shardspec.shard(before, np.arange(8.0 * size).reshape(shape))
        given = [torch.from_numpy(shards[device].copy()) for device in MIXED.device_ids]
        for step in shardspec.reshard_whole_axes(before, after).steps:
            if step.is_local:
                cut, places = local_slice(step, MIXED), map(MIXED.coordinates, MIXED.device_ids)
                given = [cut([shard], place)[0] for shard, place in zip(given, places, strict=True)]
            else:
                bound.append((step, given))
                (given,) = all_.bind([step])([given])()
            n += 1
        whole = shardspec.shard(after, np.arange(8.0 * size).reshape(shape))
        for device, shard in zip(MIXED.device_ids, given, strict=True):
            assert torch.equal(shard, torch.from_numpy(whole[device])), (src, dst)
    for alone in bound:
        check_together(mine, all_, place, [alone])
    kinds = [(step.kind, step.mesh_axes, step.reduction) for step, _ in bound]
    for kind in sorted(set(kinds), key=str):  # in one order everywhere
        together = [one for one, other in zip(bound, kinds, strict=True) if other == kind]
        check_together(mine, all_, place, together)
    return n


def check_together(
    mine: Grouped,
    all_: LockStep,
    place: int,
    together: Sequence[tuple[shardspec.Step, list[torch.Tensor]]],
) -> None:
    """Collectives that run as one give a device what each does in lock-step."""
    steps, given = [step for step, _ in together], [shards for _, shards in together]
    wait = mine.bind(steps)([[shards[place]] for shards in given])
    expected = all_.bind(steps)(given)()
    for step, (own,), shards in zip(steps, wait(), expected, strict=True):
        assert torch.equal(own, shards[place]), step


class Attention(nn.Module):
    """Causal attention of all rows, whose keys go round."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(16, 24), nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = self.table(tokens).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(mixed.transpose(1, 2).flatten(2))


def check_ring() -> list[str]:
    """Halves go to opposite processes, and keys round all of them; the kinds of collectives."""
    torch.manual_seed(0)
    model, kernel = Attention(), "_scaled_dot_product_flash_attention_for_cpu"
    step = mw.parallelize(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        loss_of,
        cluster=Cluster.preset("two-hosts:1"),
        stages=1,
        mesh=(1, 4),
        microbatches=1,
        pin={kernel: "RRS0R,RRS0R", f"{kernel}_backward": "RRS0R,RRS0R,RRS0R"},
    )
    step.verify(torch.randint(0, 16, (2, 8)), n_steps=2)
    return sorted({c.kind for c in step.plan.stages[0].collectives})


def check_compared() -> float:
    """A loss that compares examples is computed in two passes; return how far weights are off."""

    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        z = model(x)
        return nn.functional.cross_entropy(z @ z.t(), torch.arange(len(z)).roll(1))

    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    alone = copy.deepcopy(model)
    optimizer, other = (torch.optim.Adam(m.parameters(), 1e-2) for m in (model, alone))
    step = mw.parallelize(model, optimizer, loss_of, stages=2, microbatches=2)
    x = torch.randn(8, 6)
    for seed in range(2):
        torch.manual_seed(seed)
        step(x)
        torch.manual_seed(seed)
        other.zero_grad()
        loss_of(alone, x).backward()
        other.step()
    step.write_back()
    assert step.plan.first_pass_s > 0
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def check_parts() -> float:
    """A step that cuts its batch itself is one program everywhere; return how far weights are off.

    Processes have other hashes of strings, and would notice if they made other programs.
    """

    def step_of(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for x, y in zip(batch["x"].chunk(4), batch["y"].chunk(4), strict=True):
            loss = nn.functional.cross_entropy(model(x), y, ignore_index=0) / 4
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 16), nn.Dropout(0.3)]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    alone = copy.deepcopy(model)
    optimizer, other = (torch.optim.SGD(m.parameters(), 0.1, 0.9) for m in (model, alone))
    step = mw.parallelize_step(
        lambda batch: step_of(model, optimizer, batch), model, optimizer, stages=2, microbatches=4
    )
    batch = {"x": torch.randn(8, 6), "y": torch.randint(0, 4, (8,))}
    for seed in range(2):
        torch.manual_seed(seed)
        step(batch)
        torch.manual_seed(seed)
        step_of(alone, other, batch)
    step.write_back()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def main(folder: Path, strategies: Sequence[str]) -> None:
    torch.set_num_threads(1)
    rank = join()
    assert rank is not None
    gc.freeze()  # each capture would look through what imports have made
    found: dict[str, Any] = {name: train(name, STRATEGIES[name], folder) for name in strategies}
    step = check_initial()
    found["initial"] = len(step.runtime.shards)
    found["dtensors"] = check_dtensors(rank)
    check_unlike(rank)
    check_unlike_code(rank)
    check_state(folder, step)
    found["steps"] = check_collectives(rank)
    found["variants"] = check_followed()
    found["evaluated"] = check_evaluated()
    found["counted"] = check_counted()
    found["moved"] = check_moved()
    found["ring"] = check_ring()
    found["compared"] = check_compared()
    found["parts"] = check_parts()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
