"""Modules compute in the types of their policies; state keeps its own."""

from typing import Any

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends import PlanError
from frontends.torch.api.precision import in_precision
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

CLUSTER = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=4)
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
WHOLE = MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.bfloat16)
PER_MODULE = {"": HALF, "*.norm": WHOLE, "head": MixedPrecisionPolicy(param_dtype=torch.float32)}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.type = torch.float64

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = self.norm(x)
        self.type = normal.dtype
        return x + self.down(torch.relu(self.up(normal)))


class Model(nn.Module):
    """Tells in which types its parts have computed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(32, 16)
        self.types: list[torch.dtype] = []

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        types = [x.dtype]
        for block in self.blocks:
            x = block(x)
            types += [block.type]
        y = self.head(x)
        self.types = [*types, x.dtype, y.dtype]
        return y


def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(words).float().flatten(0, 1), words.flatten())


WORDS = torch.randint(0, 16, (8, 8), generator=torch.Generator().manual_seed(0))


def eager(precision: Any, n: int) -> tuple[list[float], Model]:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loss_fn = loss_of if precision is None else in_precision(loss_of, model, precision)
    losses = []
    for _ in range(n):
        optimizer.zero_grad()
        loss = loss_fn(model, WORDS)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model


@pytest.mark.parametrize("precision", [HALF, PER_MODULE], ids=["all", "modules"])
def test_a_plan_computes_as_eager_modules_of_these_types(precision: Any) -> None:
    expected, theirs = eager(precision, 3)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    how: dict[str, Any] = {"stages": 1, "zero": 3, "dp": 4, "microbatches": 1}
    step = mw.parallelize(
        model, optimizer, loss_of, WORDS, cluster=CLUSTER, precision=precision, **how
    )
    losses = [float(step(WORDS)) for _ in range(3)]
    assert losses == pytest.approx(expected, rel=5e-3)
    assert losses == pytest.approx(eager(None, 3)[0], rel=2e-2), "of float32"
    assert model.types == theirs.types
    assert len(step.variants) == 1
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {t.dtype for s in optimizer.state.values() for t in s.values()} == {torch.float32}
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    graph = step.runtime.program.step.graph
    collectives = step.plan.stages[0].collectives
    gathered = {graph.value(c.value).dtype for c in collectives if c.kind == "all_gather"}
    assert "bfloat16" in gathered, "weights are gathered in the type that they are used in"


def test_types_are_those_of_the_innermost_policy() -> None:
    half, whole = torch.bfloat16, torch.float32
    assert eager(HALF, 1)[1].types == [half] * 5
    assert eager(PER_MODULE, 1)[1].types == [half, half, half, half, whole]
    inner = MixedPrecisionPolicy(param_dtype=half, output_dtype=whole)
    assert eager({"blocks.1": inner}, 1)[1].types == [whole, whole, half, whole, whole]


@pytest.mark.parametrize(
    ("precision", "why"),
    [
        ({"tail": HALF}, "'tail' fits none of the model's, such as table"),
        (torch.bfloat16, "MixedPrecisionPolicy, or a mapping"),
        ({"": torch.bfloat16}, "got torch.bfloat16"),
        (
            MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
            "leave out reduce_dtype",
        ),
    ],
)
def test_policies_that_cannot_be_are_refused(precision: Any, why: str) -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    with pytest.raises(PlanError, match=why):
        mw.parallelize(model, optimizer, loss_of, cluster=CLUSTER, precision=precision)
