"""A program in regions computes what it computed, and equal layers are equal regions."""

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from frontends.torch.base.calls import Call, Operand, tensors_of
from frontends.torch.base.flat import TensorType
from frontends.torch.lower.in_place import in_place, memory_of, owned_reads
from frontends.torch.lower.local import alike
from frontends.torch.lower.nodes import Compute, LocalProgram, Region, with_last
from frontends.torch.lower.number_operands import has_number_operands, on_tensors
from frontends.torch.lower.regions import in_regions, key_of
from frontends.torch.run import compiled
from frontends.torch.run.execute import executable
from frontends.torch.run.lockstep import LockStep
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh

aten = torch.ops.aten
ALONE = LockStep(Mesh((1,), ("x",)))
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"

Line = tuple[str, tuple[int, ...]]
"""An operator, and the registers that it reads: from the last one backwards if negative."""

TARGETS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tanh": (aten.tanh.default, ()),
    "sigmoid": (aten.sigmoid.default, ()),
    "add": (aten.add.Tensor, ()),
    "mul": (aten.mul.Tensor, ()),
    "t": (aten.t.default, ()),
    "expand": (aten.expand.default, ((2, 2),)),
    "split": (aten.split.Tensor, (1,)),
    "contiguous": (aten.contiguous.default, ()),
}
ONE = ("tanh", "sigmoid", "t", "expand", "split", "contiguous")
LAYER: list[Line] = [
    ("sigmoid", (0,)),
    ("mul", (-1, -2)),
    ("t", (-1,)),
    ("add", (-1, -2)),
    ("sigmoid", (-1,)),
    ("mul", (-1, 1)),
    ("tanh", (-1,)),
    ("add", (-1, -3)),
    ("sigmoid", (-1,)),
    ("mul", (-1, -2)),
    ("tanh", (-1,)),
]


def local_program(lines: Sequence[Line], writes: Sequence[int] = (-1,)) -> LocalProgram:
    """On three reads of shape [2, 2]."""
    values = [torch.ones(2, 2) for _ in range(3)]
    nodes = []
    for at, (name, read) in enumerate(lines):
        operands = tuple(r % len(values) for r in read)
        target, more = TARGETS[name]
        call = Call(target, (*map(Operand, range(len(operands))), *more), {})
        made = tensors_of(target(*(values[r] for r in operands), *more))
        results = tuple(range(len(values), len(values) + len(made)))
        values += made
        nodes.append(Compute(alike(call), operands, results, (), call, str(at), call.key))
    n = len(values)
    kinds = tuple(TensorType(tuple(value.shape), value.dtype) for value in values)
    written = tuple(w % n for w in writes)
    return with_last(LocalProgram((), (0, 1, 2), (), written, n, kinds), nodes, n)


@st.composite
def repeating_programs(draw: st.DrawFn) -> LocalProgram:
    lines: list[Line] = []
    for _ in range(draw(st.integers(1, 3))):
        name = st.sampled_from(sorted(TARGETS))
        names = draw(st.lists(name, min_size=1, max_size=14))
        back = st.integers(-6, -1)
        layer = [
            (name, (draw(back),) if name in ONE else (draw(back), draw(back | st.just(0))))
            for name in names
        ]
        lines += layer * draw(st.integers(1, 4))
    last = [-1 - draw(st.integers(0, 12)) for _ in range(3)]
    return local_program(lines, last)


def ran(program: LocalProgram, is_compiled: bool = False) -> list[torch.Tensor]:
    """What a program writes, after the second run if it is compiled; each gets the same reads."""
    runners: list[compiled.RegionRunner] = []
    run = executable(program, ALONE, [], lambda node, result: None, runners)
    for _ in range(1 + is_compiled):
        generator = torch.Generator().manual_seed(0)
        reads = [
            torch.rand(program.kinds[r].shape, generator=generator, dtype=program.kinds[r].dtype)
            for r in program.reads
        ]
        written = [shard for (shard,) in run([[read] for read in reads])]
        compiled.compile_all(runners if is_compiled else [], lambda *_: None)
    return written


def cut(program: LocalProgram, owned: Sequence[int] = ()) -> LocalProgram:
    return in_regions(in_place(program, owned), memory_of(program), compiled.can_compile)


def regions(program: LocalProgram) -> list[Region]:
    return [node for node in program.nodes if isinstance(node, Region)]


@given(repeating_programs())
def test_a_program_in_regions_writes_the_same(program: LocalProgram) -> None:
    owned = owned_reads(program, list(zip(program.reads, program.writes, strict=False)))
    found = cut(program, owned)
    assert all(map(torch.equal, ran(found), ran(program)))
    check(found)


@settings(max_examples=100 if NIGHTLY else 2)  # each compiles for seconds
@given(repeating_programs())
def test_compiled_regions_write_the_same(program: LocalProgram) -> None:
    owned = owned_reads(program, list(zip(program.reads, program.writes, strict=False)))
    torch.testing.assert_close(ran(cut(program, owned), is_compiled=True), ran(program))


def check(program: LocalProgram) -> None:
    """Each node reads what is there, and regions return only what is read later."""
    there = set(program.reads)
    for node in program.nodes:
        assert there.issuperset(node.operands), node
        written = {*node.results}
        if isinstance(node, Region):
            inside = set(node.operands)
            for call in node.nodes:
                assert inside.issuperset(call.operands)
                inside.update(call.results)
            assert inside.issuperset(node.results)
            written.update(result for result, _ in node.same)
        there = (there | written) - set(node.last)
    assert there.issuperset(program.writes)


@pytest.mark.parametrize("n_layers", [2, 3, 12])
def test_equal_layers_are_equal_regions(n_layers: int) -> None:
    found = regions(cut(local_program(n_layers * LAYER)))
    keys = [key_of(region) for region in found]
    assert (len(keys), len(set(keys))) == (n_layers, 1)


def test_what_differs_is_another_region() -> None:
    other: list[Line] = [*LAYER[:-1], ("mul", (-1, -2))]
    lines = [*LAYER * 2, *other * 2]
    keys = [key_of(region) for region in regions(cut(local_program(lines)))]
    assert keys[0] == keys[1] != keys[2] == keys[3]


def test_views_are_made_where_they_are_read_and_not_returned() -> None:
    lines: list[Line] = [("tanh", (0,)), ("t", (-1,)), *LAYER, ("add", (-1, 4)), *LAYER]
    program = local_program(lines, writes=[-1, 4])
    found = cut(program)
    assert all(map(torch.equal, ran(found), ran(program)))
    assert all(4 not in region.results for region in regions(found))
    assert [n.name for n in found.nodes if isinstance(n, Compute)][-1] == "1", "written at the end"


def test_a_region_does_not_overwrite_what_another_operand_may_be() -> None:
    """The compiler might read the operand after the write: it does not know that they overlap."""
    reads: list[Line] = [("tanh", (0,)), ("contiguous", (-1,))]  # perhaps a copy, perhaps not
    program = local_program([*reads, *LAYER, ("tanh", (3,)), ("add", (-1, -2))])
    memory = memory_of(program)
    found = in_place(program, ())
    assert any(node.plain.name == "tanh_" for node in found.nodes if isinstance(node, Compute))
    assert not regions(in_regions(found, memory, lambda node, _: int(node.name) > 1))
    assert regions(in_regions(found, memory, lambda *_: True)), "inside there is one operand"


A, B, C, D = map(Operand, range(4))
NUMBERS = {
    "addcmul": Call(aten.addcmul.default, (A, B, C), {"value": D}),
    "addcmul_": Call(aten.addcmul_.default, (A, B, C), {"value": D}),
    "addcdiv": Call(aten.addcdiv.default, (A, B, C), {"value": D}),
    "lerp": Call(aten.lerp.Scalar, (A, B, D), {}),
    "add": Call(aten.add.Tensor, (A, B), {"alpha": D}),
    "sub": Call(aten.sub.Tensor, (A, B), {"alpha": D}),
    "sub_": Call(aten.sub_.Tensor, (A, B), {"alpha": D}),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_may_be_a_tensor(name: str, dtype: torch.dtype) -> None:
    call = NUMBERS[name]
    operands: list[Any] = [torch.rand(3, 4, dtype=dtype) + 0.5 for _ in range(3)]
    operands.append(torch.tensor(0.3, dtype=torch.float64))
    assert has_number_operands(call)
    compute = on_tensors(call, [operand.dtype for operand in operands])
    assert compute is not None
    (expected,) = call([operand.clone() for operand in operands])
    (found,) = compute(operands)
    torch.testing.assert_close(found, expected)
    assert found.dtype == dtype
    assert (found is operands[0]) == name.endswith("_")


def test_other_calls_with_numbers_run_alone() -> None:
    call = Call(aten.full.default, ([2, 2], A), {})
    assert has_number_operands(call)
    assert on_tensors(call, [torch.float64]) is None


@pytest.mark.parametrize("dtypes", [(torch.int64, torch.int64), (torch.bfloat16, torch.float32)])
def test_calls_with_numbers_on_integers_or_on_several_types_run_alone(
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """A float would not hold the integers, and the result has another type than the first."""
    assert on_tensors(NUMBERS["add"], [*dtypes, torch.float64, torch.float64]) is None
