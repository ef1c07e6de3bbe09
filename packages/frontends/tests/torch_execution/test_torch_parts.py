"""Calls of aten as data, and what changes in them for part of their operands."""

from collections.abc import Sequence

import pytest
import torch
from frontends.torch.base.calls import Call, Operand
from frontends.torch.rules.rules import call_of_part

aten = torch.ops.aten
A, B = Operand(0), Operand(1)


def test_operands_are_found_in_lists_and_keywords() -> None:
    ones, twos = torch.ones(2, 3), torch.full((2, 3), 2.0)
    (joined,) = Call(aten.cat.default, ([A, B],), {"dim": 1})([ones, twos])
    assert torch.equal(joined, torch.cat([ones, twos], 1))
    (moved,) = Call(aten.add.Tensor, (A, B), {"alpha": 3})([ones, twos])
    assert torch.equal(moved, torch.full((2, 3), 7.0))


def test_a_call_has_its_tensors_as_results_and_nothing_else() -> None:
    call = Call(aten.native_layer_norm.default, (A, [3], None, None, 1e-5), {})
    assert [tuple(t.shape) for t in call([torch.ones(2, 3)])] == [(2, 3), (2, 1), (2, 1)]


def test_arguments_have_the_names_of_the_schema() -> None:
    call = Call(aten.sum.dim_IntList, (A, [0]), {"dtype": torch.float64})
    assert (call.name, call.argument("dim"), call.argument("keepdim")) == ("sum", [0], False)
    changed = call.replace(dim=[1], dtype=torch.float32)
    assert (changed.arguments, changed.keywords) == ((A, [1]), {"dtype": torch.float32})
    with pytest.raises(KeyError, match="rows"):
        call.argument("rows")


@pytest.mark.parametrize(
    ("call", "operands", "results"),
    [
        (Call(aten.reshape.default, (A, [8, 2, 3]), {}), [(4, 6)], [(4, 2, 3)]),
        (Call(aten.expand.default, (A, [8, -1]), {}), [(1, 6)], [(4, 6)]),
        (Call(aten.full.default, ([8, 6], 1.0), {}), [], [(4, 3)]),
        (Call(aten.empty_strided.default, ([8, 6], [6, 1]), {}), [], [(4, 6)]),
        (Call(aten.slice_backward.default, (A, [8, 6], 1, 2, 5, 1), {}), [(4, 3)], [(4, 6)]),
        (Call(aten.select_backward.default, (A, [8, 6], 1, 2), {}), [(4,)], [(4, 6)]),
    ],
    ids=lambda value: value.name if isinstance(value, Call) else None,
)
def test_shapes_are_those_of_the_part(
    call: Call, operands: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]]
) -> None:
    made = call_of_part(call, operands, results)([torch.ones(shape) for shape in operands])
    assert [tuple(tensor.shape) for tensor in made] == results


def test_a_part_of_the_channels_has_a_part_of_the_groups() -> None:
    convolution = (A, B, None, [1], [0], [1], False, [0], 4)
    call = Call(aten.convolution.default, convolution, {})
    assert call_of_part(call, [(2, 4, 9), (4, 2, 3)], [(2, 4, 7)]).argument("groups") == 2
    backward = (A, B, Operand(2), [8], [1], [0], [1], False, [0], 4, [True, True, True])
    part = call_of_part(
        Call(aten.convolution_backward.default, backward, {}),
        [(2, 4, 7), (2, 4, 9), (4, 2, 3)],
        [(2, 4, 9), (4, 2, 3), (4,)],
    )
    assert (part.argument("groups"), part.argument("bias_sizes")) == (2, [4])
    norm = Call(aten.native_group_norm.default, (A, None, None, 2, 8, 9, 4, 1e-5), {})
    part = call_of_part(norm, [(1, 4, 9)], [(1, 4, 9), (1, 2), (1, 2)])
    assert [tuple(t.shape) for t in part([torch.ones(1, 4, 9)])] == [(1, 4, 9), (1, 2), (1, 2)]
