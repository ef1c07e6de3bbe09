"""Every strategy that a rule allows must compute what the whole call computes."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import autoshard
import numpy as np
import pytest
import torch
from frontends.torch import check_rules
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.compat.traced import TracedFunction
from frontends.torch.base.flat import FlatProgram, TensorType
from frontends.torch.capture.decompositions import DECOMPOSITIONS
from frontends.torch.capture.read import read
from frontends.torch.rules.rules import flops_of, rule_of, shares_of_whole
from shardspec import Mesh
from torch.nn import functional
from torch.utils import _pytree as pytree

MESH = Mesh((2, 2), ("x", "y"))
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
Tensor = torch.Tensor
ours = torch.ops.meshwright


def numbers(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def places(high: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, high, shape))


X, Y = numbers(4, 8), numbers(4, 8) + 1
LENGTHS = torch.tensor([6, 4, 6, 5])
IMAGES, KERNEL = numbers(4, 4, 8, 8), numbers(8, 4, 3, 3)
HEADS = numbers(4, 4, 8, 4)
VOLUMES = numbers(4, 4, 4, 4, 4)
Function = Callable[..., Any]

CASES: dict[str, tuple[Function, Sequence[Tensor]]] = {
    "sum of two": (lambda x, y: x + y, (X, Y)),
    "sum with a number": (lambda x: x + 3, (X,)),
    "difference, weighted": (lambda x, y: torch.sub(x, y, alpha=2), (X, Y)),
    "broadcast product": (lambda x, y: x * y, (X, Y[0])),
    "quotient": (lambda x, y: x / y, (X, Y)),
    "choice": (lambda x, y: torch.where(x > 0, x, y), (X, Y)),
    "mask": (lambda x: x.masked_fill(x > 0, 0.0) + x.masked_fill(x < 0, -1.0), (X,)),
    "blend": (lambda x, y: x.lerp(y, 0.3), (X, Y)),
    "conversion": (lambda x: x.double().float().int(), (X,)),
    "product of matrices": (lambda x, y: x @ y.t(), (X, Y)),
    "product of batches": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (HEADS[0], HEADS[1])),
    "histogram": (lambda x: torch.histc(x, 4, -1.0, 1.0), (X,)),
    "products of groups": (
        lambda x, w, ends: functional.grouped_mm(x, w, offs=ends),
        (X, numbers(3, 8, 4), torch.tensor([1, 1, 4], dtype=torch.int32)),
    ),
    "rows of each example": (
        lambda x, i, y: (
            ours.take_rows(x.detach(), i),
            ours.add_rows(i, y.detach(), 8),
            ours.count_rows(y.detach(), 4, 0, 3),
        ),
        (HEADS, places(4, 4, 6), numbers(4, 6)),
    ),
    "products of groups of each example": (
        lambda x, w, begins, ends, y: (
            ours.multiply_rows(x.detach(), w.detach(), begins, ends),
            ours.multiply_groups(x.detach(), y.detach(), begins, ends),
        ),
        (
            numbers(4, 6, 8),
            numbers(4, 8, 2),
            torch.tensor([[0, 1, 1, 4], [0, 0, 6, 6], [0, 2, 4, 5], [0, 1, 2, 3]]),
            torch.tensor([[1, 1, 4, 6], [0, 6, 6, 6], [2, 4, 5, 6], [1, 2, 3, 4]]),
            numbers(4, 6, 2),
        ),
    ),
    "linear": (functional.linear, (X, numbers(16, 8), numbers(16))),
    "one element of each row": (
        lambda x, y, i: (
            x[torch.arange(4), i],
            y.index_put((y.argmax(0), torch.arange(8)), x.sum()),
            y.index_put((torch.arange(4), y.argmax(1)), x[:, 0], accumulate=True),
        ),
        (X, Y, torch.tensor([1, -1, 0, 7])),
    ),
    "one vector of each row": (
        lambda x, i: x[torch.arange(4), i] * x.transpose(0, 1)[i, torch.arange(4)],
        (HEADS, torch.tensor([0, 3, -2, 1])),
    ),
    "windows of rows": (
        lambda x, y: (
            x.detach().as_strided((4, 3, 4), (8, 2, 1)),
            x.detach().as_strided_scatter(y, (4, 2), (8, 3)),
        ),
        (X, numbers(4, 2)),
    ),
    "windows of rows that are not in front": (
        lambda x, y: (
            x.detach()
            .permute(2, 0, 1, 3)
            .contiguous()
            .as_strided((3, 4, 4, 3, 2), (32, 16, 4, 16, 1)),
            x.detach()
            .transpose(0, 1)
            .contiguous()
            .as_strided_scatter(y, (2, 4, 3), (128, 32, 9), 1),
        ),
        (HEADS, numbers(2, 4, 3)),
    ),
    "by strides, as it lies": (lambda x: x.t().as_strided((1, 4, 8), (4, 8, 1)) * 2, (X,)),
    "reductions": (lambda x: (x.sum(1), x.mean(0, True), x.amax(1), x.amin(), x.var(1)), (X,)),
    "which is largest": (lambda x: (x.argmax(1), x.max(0), x.any(1)), (X,)),
    "norm": (lambda x: torch.linalg.vector_norm(x), (X,)),
    "reshapes": (lambda x: x.view(2, 2, 8).flatten(1).unsqueeze(1).squeeze(), (X,)),
    "expansion": (lambda x: x[:, None].expand(4, 3, 8), (X,)),
    "permutations": (lambda x: x.permute(2, 0, 3, 1).transpose(1, 2), (HEADS,)),
    "slices": (lambda x: (x[:, 2:6], x[1], x[:, ::2]), (X,)),
    "splits": (lambda x: (*x.split([2, 6], 1), *x.unbind(0), *x.chunk(2)), (X,)),
    "pads": (lambda x: (functional.pad(x, (1, 2)), functional.pad(x, (0, 0, 1, 0), value=2)), (X,)),
    "joins": (lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y])), (X, Y)),
    "turns": (lambda x: (x.flip(1), x.roll(1, 0)), (X,)),
    "triangles": (lambda x: (x.tril(), x.triu(1)), (X,)),
    "in order": (lambda x: (x.cumsum(1), x.sort(1), x.topk(3, 0)), (X,)),
    "softmax": (lambda x: (x.softmax(1), x.log_softmax(0)), (X,)),
    "look up": (lambda i, w: functional.embedding(i, w), (places(16, 4, 2), numbers(16, 8))),
    "gather": (lambda x, i: x.gather(1, i), (X, places(8, 4, 1))),
    "index": (lambda x, i: (x[i], x[:, i], x[None, i, i]), (numbers(8, 8), places(8, 4))),
    "index of one dim": (lambda x, i: x.index_select(1, i), (X, places(8, 4))),
    "add at places": (lambda x, i, y: x.index_add(0, i, y), (X, places(4, 8), numbers(8, 8))),
    "put at places": (
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        (X, places(4, 8), numbers(8, 8)),
    ),
    "scatter": (
        lambda x, i, y: (x.scatter(1, i, 2.0), x.scatter_add(1, i, y)),
        (X, places(8, 4, 1), numbers(4, 1)),
    ),
    "replace part": (
        lambda x, y: (torch.slice_scatter(x, y, 1, 0, 4), torch.select_scatter(x, y[0], 1, 2)),
        (numbers(4, 8), numbers(4, 4)),
    ),
    "layer norm": (lambda x, w, b: functional.layer_norm(x, (8,), w, b), (X, X[0], Y[0])),
    "group norm": (lambda x, w, b: functional.group_norm(x, 2, w, b), (IMAGES, X[0, :4], Y[0, :4])),
    "attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        (HEADS, HEADS + 1, HEADS - 1),
    ),
    "attention with a mask": (
        lambda q, k, m: functional.scaled_dot_product_attention(q, k, k, attn_mask=m),
        (HEADS, HEADS + 1, numbers(4, 1, 8, 8)),
    ),
    "attention of more queries than keys": (
        lambda q, k: functional.scaled_dot_product_attention(q, k, k, is_causal=True),
        (HEADS, HEADS[:, :, :4]),
    ),
    "attention of fewer queries than keys": (
        lambda q, k: functional.scaled_dot_product_attention(q, k, k, is_causal=True),
        (HEADS[:, :, :4], HEADS),
    ),
    "attention with shared keys": (
        lambda q, k: functional.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        (HEADS, HEADS[:, :2]),
    ),
    "convolution": (lambda x, w: functional.conv2d(x, w, None, 2, 1), (IMAGES, KERNEL)),
    "grouped convolution": (
        lambda x, w, b: functional.conv2d(x, w, b, groups=4),
        (IMAGES, KERNEL[:, :1], X[0]),
    ),
    "transposed convolution": (
        lambda x, w: functional.conv_transpose2d(x, w, None, 2),
        (IMAGES, KERNEL[:4]),
    ),
    "pools": (lambda x: (functional.max_pool2d(x, 2), functional.avg_pool2d(x, 2)), (IMAGES,)),
    "resizes": (lambda x: functional.interpolate(x, scale_factor=2.0), (IMAGES,)),
    "pools of volumes": (
        lambda x: (functional.max_pool3d(x, 2), functional.avg_pool3d(x, 2)),
        (VOLUMES,),
    ),
    "largest of fields": (lambda x: functional.adaptive_max_pool2d(x, 2), (IMAGES,)),
    "resizes of lines and volumes": (
        lambda x, y: (
            functional.interpolate(x, scale_factor=2, mode="linear"),
            functional.interpolate(x, scale_factor=2),
            functional.interpolate(y, scale_factor=2, mode="trilinear"),
            functional.interpolate(y, scale_factor=2),
        ),
        (IMAGES[0], VOLUMES),
    ),
    "borders": (
        lambda x: [functional.pad(x, (1, 2, 1, 0), mode) for mode in ("reflect", "replicate")],
        (IMAGES,),
    ),
    "borders of lines": (
        lambda x: [functional.pad(x, (1, 2), mode) for mode in ("reflect", "replicate")],
        (IMAGES[0],),
    ),
    "borders of volumes": (
        lambda x: [functional.pad(x, (1, 1) * 3, mode) for mode in ("reflect", "replicate")],
        (VOLUMES,),
    ),
    "channels as pixels": (
        lambda x: (functional.pixel_shuffle(x, 2), functional.pixel_unshuffle(x, 2)),
        (IMAGES,),
    ),
    "gated": (lambda x: (functional.glu(x), functional.glu(x, 0)), (X,)),
    "learned slopes": (
        lambda x, w: (functional.prelu(x, w), functional.prelu(x, w[:1])),
        (X, Y[0]),
    ),
    "special functions": (
        lambda x, y: (
            torch.logaddexp(x, y),
            torch.hypot(x, y),
            torch.special.i0(x) + torch.special.i1e(x) + torch.special.i0e(y),
            torch.special.erfcx(x) + torch.special.log_ndtr(y),
            (x.sigmoid() * 0.9).logit() + torch.special.ndtri(y.sigmoid()),
            x.sinc(),
            torch.ldexp(x, y.detach()),
            x.frexp(),
            torch.heaviside(x.detach(), y.detach()),
            x.long().gcd(y.long()),
            torch.mvlgamma(y**2 + 2, 2),
        ),
        (X, Y),
    ),
    "without what is missing": (
        lambda x: (x.nansum(1), x.nanmedian(1), x.kthvalue(2, 1), x.count_nonzero(1)),
        (X,),
    ),
    "sums of exponents in order": (lambda x: x.logcumsumexp(1), (X,)),
    "activations": (
        lambda x: (functional.gelu(x), functional.silu(x), functional.relu(x), x.tanh()),
        (X,),
    ),
    "loss": (
        lambda x, i: functional.cross_entropy(x, i, ignore_index=3),
        (X, places(8, 4)),
    ),
    "complex numbers": (
        lambda x, y: (
            torch.view_as_real(torch.complex(x, y).conj() * torch.polar(x, y)),
            torch.view_as_complex(x.view(4, 4, 2)).angle(),
        ),
        (X, Y),
    ),
    "transforms": (
        lambda x: (torch.fft.ifft2(x[None]).imag, torch.fft.rfft(x.detach(), dim=1).abs()),
        (X,),
    ),
    "alignments": (
        lambda x, i, n, m: functional.ctc_loss(x, i + 1, n, m, reduction="none"),
        (numbers(6, 4, 8), places(7, 4, 3), LENGTHS, torch.tensor([3, 1, 2, 2])),
    ),
    "alignments in a row": (
        lambda x, i, n, m: functional.ctc_loss(x, i + 1, n, m, reduction="none"),
        (numbers(6, 4, 8), places(7, 8), LENGTHS, torch.tensor([3, 1, 2, 2])),
    ),
    "filled": (lambda x: (torch.ones_like(x), torch.arange(8) * 1.0), (X,)),
}


def differentiated(
    function: Function, operands: Sequence[Tensor], with_gradients: bool
) -> list[Any]:
    """What a function makes, and its gradients by what it reads of floating point."""
    given = [v.detach().requires_grad_(v.is_floating_point()) for v in operands]
    results = pytree.tree_leaves(function(*given))
    wanted = [v for v in given if v.requires_grad]
    known = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    if with_gradients and known:
        seeds = [torch.ones_like(r) for r in known]
        results += [
            g for g in torch.autograd.grad(known, wanted, seeds, allow_unused=True) if g is not None
        ]
    return [r.detach() for r in results]


def traced(function: Function, operands: Sequence[Tensor], with_gradients: bool) -> FlatProgram:
    """What a function does, and its gradients by what it reads of floating point."""

    def whole(*values: Tensor) -> list[Any]:
        return differentiated(function, values, with_gradients)

    program = TracedFunction(whole, list(operands), (), DECOMPOSITIONS)
    return read(program.module, [f"x{i}" for i in range(len(operands))]).flat


@pytest.mark.parametrize("name", CASES)
def test_every_strategy_equals_the_whole_operator(name: str) -> None:
    function, operands = CASES[name]
    flat = traced(function, operands, with_gradients=True)
    tensors = [t.detach().requires_grad_(t.is_floating_point()) for t in operands]
    tried = check_rules(function, *tensors, at_most=None if NIGHTLY else 4)
    assert tried.keys() == {line.call.name for line in flat.lines}  # all have rules


def windows(x: Tensor, y: Tensor) -> Any:
    """Of tensors that do not lie in the order of their dims."""
    overlapping = x.t().as_strided((3, 4, 4), (2, 1, 8))
    return overlapping, y.detach().t()[None].as_strided_scatter(x[:3], (3, 8), (8, 1))


@pytest.mark.parametrize("name", [*CASES, "windows by strides"])
def test_operators_do_not_look_at_how_their_operands_lie(name: str) -> None:
    """As eager PyTorch's, of which each operand is known to lie as it does."""
    function, operands = CASES.get(name, (windows, (X, Y)))
    flat = traced(function, operands, with_gradients=name in CASES)
    values = {f"x{i}": in_other_order(t) for i, t in enumerate(operands)} | {**flat.constants}
    for line in flat.lines:
        made = line.call([values[name] for name in line.inputs])
        values.update(zip(line.outputs, map(in_other_order, made), strict=True))
    expected = differentiated(function, operands, with_gradients=name in CASES)
    for output, whole in zip(flat.outputs, expected, strict=True):
        torch.testing.assert_close(values[output], whole)


def in_other_order(tensor: Tensor) -> Tensor:
    """The same numbers, in the order of the dims from the last to the first."""
    order = tuple(reversed(range(tensor.dim())))
    return tensor.detach().permute(order).contiguous().permute(order)


def test_a_sum_with_a_number_stops_partial_sums() -> None:
    kind = TensorType((4, 8), torch.float32)
    call = Call(torch.ops.aten.add.Tensor, (Operand(0), 3), {})
    assert rule_of(call, [kind], [kind]).linear == ()
    call = Call(torch.ops.aten.mul.Tensor, (Operand(0), 3), {})
    assert rule_of(call, [kind], [kind]).linear == ((0,),)


def test_rows_of_a_table_are_whole_where_nothing_masks() -> None:
    kinds = [TensorType((16, 8), torch.float32), TensorType((4,), torch.int64)]
    call = Call(torch.ops.aten.embedding.default, (Operand(0), Operand(1)), {})
    made = [TensorType((4, 8), torch.float32)]
    rows = [rule_of(call, kinds, made, masked=m).factors[0].kind for m in (True, False)]
    assert rows == ["reduce", "whole"]


def test_products_count_two_a_multiply_add() -> None:
    a, b, made = (TensorType(s, torch.float32) for s in ((4, 8), (8, 2), (4, 2)))
    call = Call(torch.ops.aten.mm.default, (Operand(0), Operand(1)), {})
    assert flops_of(call, [a, b], [made]) == 2 * 4 * 8 * 2


def test_operators_without_a_rule_run_whole_and_are_named() -> None:
    kind = TensorType((4, 4), torch.float32)
    call = Call(torch.ops.aten.linalg_inv_ex.default, (Operand(0),), {})
    rule = rule_of(call, [kind], [kind, TensorType((), torch.int32)])
    assert {factor.kind for factor in rule.factors} == {"whole"}
    operator = autoshard.Operator("inv.0", "inv", ("x",), ("y", "z"), rule, 16.0)
    graph = autoshard.Graph((), (), (operator,), (), ())
    assert shares_of_whole(graph, {"inv.0": call}) == {"linalg_inv_ex": 1.0}
