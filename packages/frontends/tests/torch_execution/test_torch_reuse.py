"""What writes over its operands computes what would not, and touches nothing that others have."""

import copy
from collections.abc import Callable
from typing import Any

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends import StepError
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import TensorType
from frontends.torch.lower.in_place import in_place, owned_reads
from frontends.torch.lower.local import alike
from frontends.torch.lower.nodes import Compute, LocalProgram, with_last
from torch import nn

aten = torch.ops.aten
ALONE = Cluster.preset("virtual-cpu").resized(devices_per_host=1)
A, B = Operand(0), Operand(1)


def program(n_reads: int, writes: tuple[int, ...], *lines: Any) -> LocalProgram:
    """Of calls on matrices: their target, arguments, and the registers that these are."""
    nodes = []
    for at, (target, arguments, operands) in enumerate(lines):
        call = Call(target, arguments, {})
        nodes.append(Compute(alike(call), operands, (n_reads + at,), (), call, str(at), call.key))
    n = n_reads + len(nodes)
    kinds = (TensorType((2, 2), torch.float32),) * n
    return with_last(LocalProgram((), tuple(range(n_reads)), (), writes, n, kinds), nodes, n)


def written_over(found: LocalProgram) -> list[str]:
    """The calls that write where an operand is."""
    calls = [node.plain for node in found.nodes if isinstance(node, Compute)]
    return [call.name for call in calls if call is not None and call.name.endswith("_")]


EXP, VIEW, ADD = (aten.exp.default, (A,)), (aten.t.default, (A,)), (aten.add.Tensor, (A, B))
CASES = {
    "what is made": (program(1, (2,), (*EXP, (0,)), (*EXP, (1,))), (), ["exp_"]),
    "not what is given": (program(1, (1,), (*EXP, (0,))), (), []),
    "but what is owned": (program(1, (1,), (*EXP, (0,))), (0,), ["exp_"]),
    "not what is read later": (
        program(1, (2, 3), (*EXP, (0,)), (*EXP, (1,)), (*EXP, (1,))),
        (),
        ["exp_"],  # the second time
    ),
    "not what is kept": (program(1, (1, 2), (*EXP, (0,)), (*EXP, (1,))), (), []),
    "not what a view reads later": (
        program(1, (3, 4), (*EXP, (0,)), (*VIEW, (1,)), (*EXP, (1,)), (*EXP, (2,))),
        (),
        [],
    ),
    "not what is read in another order": (
        program(1, (3,), (*EXP, (0,)), (*VIEW, (1,)), (*ADD, (1, 2))),
        (),
        [],
    ),
    "what is read twice in one": (program(1, (2,), (*EXP, (0,)), (*ADD, (1, 1))), (), ["add_"]),
    "the second of a sum": (program(1, (2,), (*EXP, (0,)), (*ADD, (0, 1))), (), ["add_"]),
    "not a view of what is owned": (program(1, (2,), (*VIEW, (0,)), (*EXP, (1,))), (0,), []),
    "not a view of what is given": (program(1, (2,), (*VIEW, (0,)), (*EXP, (1,))), (), []),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_writes_over(case: str) -> None:
    plain, owned, expected = CASES[case]
    found = in_place(plain, owned)
    assert written_over(found) == expected
    ran = [
        run(each, [torch.randn(2, 2, generator=torch.Generator().manual_seed(1))])
        for each in (plain, found)
    ]
    assert all(map(torch.equal, *ran))


def run(found: LocalProgram, reads: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a program writes."""
    values = dict(enumerate(reads))
    for node in found.nodes:
        assert isinstance(node, Compute)
        values.update(
            zip(node.results, node.call([values[r] for r in node.operands], ()), strict=True)
        )
    return [values[register] for register in found.writes]


def test_state_is_owned_if_its_new_value_lies_alone() -> None:
    alone = program(2, (2, 3), (*EXP, (0,)), (*EXP, (1,)))
    assert owned_reads(alone, [(0, 2), (1, 3)]) == [0, 1]
    view = program(2, (2, 3), (*EXP, (0,)), (*VIEW, (2,)))
    assert owned_reads(view, [(0, 2), (1, 3)]) == []
    swapped = program(2, (1, 0))
    assert owned_reads(swapped, [(0, 1), (1, 0)]) == []


def test_state_is_not_owned_if_a_call_after_its_last_read_may_fail() -> None:
    """A step that fails leaves the state as it was."""
    gather = aten.gather.default, (A, 0, B)
    before = program(2, (3, 2), (*gather, (0, 1)), (*EXP, (0,)))
    assert owned_reads(before, [(0, 3)]) == [0]
    after = program(2, (2, 3), (*EXP, (0,)), (*gather, (2, 1)))
    assert owned_reads(after, [(0, 2)]) == []


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_step_that_fails_after_the_update_leaves_the_state(backend: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def train(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach() + nn.functional.embedding(row, model.weight.detach()).sum()

    options: dict[str, Any] = {"cluster": ALONE, "microbatches": 1, "backend": backend}
    step = mw.parallelize_step(train, model, optimizer, **options)
    for _ in range(4):
        step(torch.ones(2, 4), torch.tensor([1, 2]))
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(StepError, match="embedding"):
        step(torch.ones(2, 4), torch.tensor([1, 77]))
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)


class Averaged(nn.Module):
    """Its buffers hold the weights of before, and their average."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("before", torch.zeros(4, 4))
        self.register_buffer("average", torch.zeros(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_what_a_step_returned_and_kept_is_what_eager_keeps() -> None:
    torch.manual_seed(0)
    model, reference = Averaged(), Averaged()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(4, 4)

    def of(model: Averaged) -> tuple[Callable[..., Any], torch.optim.Optimizer]:
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)

        def step(x: torch.Tensor) -> dict[str, torch.Tensor]:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            model.before.copy_(model.linear.weight.detach())
            optimizer.step()
            model.average.lerp_(model.linear.weight.detach(), 0.5)
            weight = model.linear.weight.detach()  # which the next step writes into
            return {"loss": loss.detach(), "weight": weight, "copy": weight.clone()}

        return step, optimizer

    function, optimizer = of(model)
    step = mw.parallelize_step(function, model, optimizer, cluster=ALONE, microbatches=1)
    eager, _ = of(reference)
    results, expected = [], []
    for _ in range(3):
        results.append(step(x))
        expected.append(eager(x))
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(step.state_dict()["model"], dict(reference.state_dict()))


def test_moments_stay_where_they_are() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(4, 4)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    step = mw.parallelize(model, optimizer, loss, cluster=ALONE, microbatches=1)
    places = []
    for _ in range(3):
        step(batch)
        kept = step.runtime.shards
        places.append({k[1].value: s[0].data_ptr() for k, s in kept.items() if s[0].ndim})
    assert places[0] == places[1] == places[2]
    assert len(places[0]) == 6
