"""The oracle: whatever a plan chooses, the parallel step is the eager step of one device.

Random plans put every layout, conversion, cut and transfer to use that a planner might choose, and
many that it never would.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pipesched
import pytest
import torch
from costmodel import Cluster
from frontends.layers.layers import layer
from frontends.layers.recompute import recomputed
from frontends.layers.replicas import copied_as
from frontends.plan.plan_fields import Remats
from frontends.testing import random_plan
from frontends.torch.capture.capture import training_step
from frontends.torch.run.runtime import Runtime
from frontends.torch.testing import arguments_of
from frontends.torch.trace.trace import Capture
from shardspec import Mesh
from torch import nn

MESHES = {
    1: (Mesh((2, 2), ("x", "y")),),
    2: (Mesh((2, 2), ("x", "y")), Mesh((2,), ("x",), (4, 5))),
    3: (
        Mesh((2,), ("x",), (0, 1)),
        Mesh((1,), ("x",), (6,)),
        Mesh((2, 2), ("x", "y"), (2, 3, 4, 5)),
    ),
}


@dataclass
class Example:
    """A model, its optimizer, a step and a batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[..., Any]
    batch: Any


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def mlp(make: Callable[..., torch.optim.Optimizer] | None = None) -> Example:
    """Equal layers and a mean over the batch."""
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(8, 8), nn.Tanh())))
    optimizer = (make or (lambda p: torch.optim.SGD(p, 0.1)))(model.parameters())

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch["x"]) - batch["y"]).square().mean()

    return Example(
        model, optimizer, training_step(loss), {"x": _numbers(8, 8), "y": _numbers(8, 8)}
    )


def clipped() -> Example:
    """Gradients that are scaled by the norm of all of them."""
    example = mlp(lambda p: torch.optim.AdamW(p, 0.01, eps=1e-2))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Any:
        loss = (model(batch["x"]) - batch["y"]).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return Example(example.model, example.optimizer, step, example.batch)


class Tied(nn.Module):
    """Tokens are looked up and predicted with one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for linear in self.body:
            x = x + torch.tanh(linear(self.norm(x)))
        return self.head(x)


def tied() -> Example:
    """A parameter that the first and the last layer read."""
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        tokens, labels = batch
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())

    tokens = torch.randint(0, 16, (8, 4), generator=torch.Generator().manual_seed(0))
    return Example(model, optimizer, training_step(loss), (tokens, tokens.roll(1, 1)))


EXAMPLES: dict[str, Callable[[], Example]] = {"mlp": mlp, "clipped": clipped, "tied": tied}
CASES: list[tuple[str, int, str, Remats, int]] = [
    ("mlp", 1, "gpipe", "none", 6),
    ("mlp", 2, "1f1b", "cheap", 0),
    ("clipped", 3, "1f1b", "none", 0),
    ("tied", 2, "gpipe", ("all", "cheap", "none", "none"), 0),
    ("tied", 3, "eager-1f1b", "none", 6),
    ("clipped", 2, "zb-h1", "all", 6),
    ("clipped", 2, "chimera", "none", 0),
    ("tied", 2, "dualpipe", "all", 4),
]
"""Name, number of stages, schedule, what is computed again, and to how many examples microbatches
are padded."""
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
SEEDS = range(25 if NIGHTLY else 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "n_stages", "schedule", "remat", "padded_to"), CASES)
def test_random_plans_compute_the_eager_step(
    name: str, n_stages: int, schedule: str, remat: Remats, padded_to: int, seed: int
) -> None:
    example = EXAMPLES[name]()
    capture = Capture(example.step, example.model, example.optimizer, example.batch)
    trace = capture.at(2 * pipesched.schedule_entry(schedule).copies_of_stages, padded_to)
    layered = layer(trace.step, 4)
    layered = layer(recomputed(trace.step, layered.layer_of, remat), 4)
    assert (remat == "none") == (not layered.step.original)
    plan = random_plan(layered, MESHES[n_stages], random.Random(seed), schedule)
    copied = copied_as(layered, plan)
    trace = trace.with_copies(copied.traced)
    layered = copied.layered
    run = Runtime(trace, layered, plan, Cluster.preset("two-hosts"), capture.state.tensors)
    names = {id(p): n for n, p in capture.state.tensors.items()}
    for _ in range(3):
        results = trace.unflatten(run(values(trace, capture, example.batch)))
        expected = example.step(example.model, example.optimizer, example.batch)
        assert_close(results, expected)
    whole = run.whole_state()
    assert whole.keys() == capture.state.tensors.keys()
    for tensor in [*example.model.parameters(), *example.model.buffers()]:
        assert_close(whole[names[id(tensor)]], tensor.detach())


def values(trace: Any, capture: Capture, batch: Any) -> dict[str, torch.Tensor]:
    """All arguments of a step that are not state."""
    known = {a.name for a in trace.arguments}
    given = {**arguments_of(capture.state, batch), **trace.compute(capture.state.numbers)}
    found = trace.complete({n: t for n, t in given.items() if n in known})
    return {n: t for n, t in found.items() if n not in capture.state.tensors}


def assert_close(ours: Any, theirs: Any) -> None:
    """Equal up to rounding, relative to the largest number."""
    if isinstance(theirs, dict):
        for key in theirs:
            assert_close(ours[key], theirs[key])
        return
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert (ours - theirs).abs().max() <= 1e-5 * max(theirs.abs().max(), 1e-3)


def test_the_count_of_updates_is_kept_where_its_parameter_is() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch).square().mean()

    capture = Capture(training_step(loss), model, optimizer, torch.ones(8, 8))
    step = capture.at(2).step
    for send_less in (True, False):
        found = layer(step, 4, send_less=send_less)
        names = [name for name, _ in model.named_parameters()]
        homes = [
            (found.home[f"optimizer['step']['{n}']"], found.home[f"params['{n}']"]) for n in names
        ]
        assert len({home for _, home in homes}) == 4
        assert all(count == parameter for count, parameter in homes) == send_less
