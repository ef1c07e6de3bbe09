"""Tests the sharding rules of all operators of a function against the unsharded operators."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import shardspec
import torch
from autoshard import Strategy
from numpy.typing import NDArray
from shardspec import Layout
from torch.utils import _pytree as pytree

from frontends.base.rule_check import MESH, Parts, check_parts, tried_strategies
from frontends.errors import ArgumentError
from frontends.torch.base.calls import Call, Tensor
from frontends.torch.base.compat.traced import TracedFunction
from frontends.torch.base.flat import TensorType
from frontends.torch.capture.decompositions import DECOMPOSITIONS
from frontends.torch.capture.read import read
from frontends.torch.lower.attention_parts import AttentionLowering, AttentionParts
from frontends.torch.lower.local import LocalCall, local_shape
from frontends.torch.lower.nodes import Communicate, Compute
from frontends.torch.rules.rules import has_rule, rule_of
from frontends.torch.run.lockstep import LockStep, Shards

_NUMPYS = (torch.float16, torch.float32, torch.float64)
"""The floating-point types that numpy has, too."""


def check_rules(
    function: Callable[..., Any], *operands: Any, at_most: int | None = None
) -> dict[str, int]:
    """Run every operator of a function with all strategies that its rule allows; compare results.

    Planning trusts the rules. This function tests them: for each operator, it runs each strategy on
    a 2 x 2 mesh, and compares with the operator run whole. All devices are in this process.

    Args:
        function: A function that calls the operators. The operators of its gradients, with respect
            to tensors that require one, are tested, too.
        operands: The tensors to call it with. Dims of size 4 or 8 can be split in all ways.
        at_most: The approximate number of strategies to run of each operator; None for all.

    Returns:
        By operator with a rule, the number of strategies that were run.

    Raises:
        VerificationError: The results of shards differ from those of the whole operator.
        ArgumentError: An operand is not a tensor, or `at_most` is below 1.
        RuleError: A rule's function returns no rule, or one of other shapes.

    Examples:
        >>> from frontends.torch import check_rules
        >>> x = torch.ones(8, 8, requires_grad=True)
        >>> check_rules(lambda x: x.softmax(-1), x, at_most=2).keys()
        dict_keys(['_softmax', 'full', '_softmax_backward_data'])
    """
    for tensor in operands:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"rules are tried on tensors; got {reprlib.repr(tensor)}")
    needs = [tensor.requires_grad for tensor in operands]

    def whole(*values: Tensor) -> list[Tensor]:
        return _with_gradients(function, values, needs)

    detached = [tensor.detach() for tensor in operands]
    program = TracedFunction(whole, list(detached), (), DECOMPOSITIONS)
    flat = read(program.module, [f"x{i}" for i in range(len(operands))]).flat
    values = {f"x{i}": tensor for i, tensor in enumerate(detached)}
    values.update(flat.constants)
    tried: dict[str, int] = {}
    for line in flat.lines:
        inputs = [values[name] for name in line.inputs]
        wholes = line.call(inputs)
        values.update(zip(line.outputs, wholes, strict=True))
        if has_rule(line.call.name):
            kinds = [flat.kinds[n] for n in line.inputs], [flat.kinds[n] for n in line.outputs]
            rule = rule_of(line.call, *kinds)
            eps = [_eps(whole.dtype) for whole in wholes]
            shown = [_as_numpy(whole) for whole in wholes]
            for strategy in tried_strategies(rule, at_most):
                if _is_of_a_step(strategy, inputs):
                    run = partial(_run_in_parts, line.call, inputs, wholes, strategy)
                    check_parts(line.call.name, rule, strategy, shown, run, eps)
                    tried[line.call.name] = tried.get(line.call.name, 0) + 1
    return tried


def _with_gradients(
    function: Callable[..., Any], tensors: Sequence[Tensor], needs: Sequence[bool]
) -> list[Tensor]:
    """Return the tensors that a function returns, and the gradients of their sum."""
    inputs = [t.detach().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
    results = [r for r in pytree.tree_leaves(function(*inputs)) if isinstance(r, Tensor)]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    known = [result for result in results if result.requires_grad]
    if wanted and known:
        seeds = [torch.ones_like(result) for result in known]
        gradients = torch.autograd.grad(known, wanted, seeds, allow_unused=True)
        results += [gradient for gradient in gradients if gradient is not None]
    return [result.detach() for result in results]


def _is_of_a_step(strategy: Strategy, operands: Sequence[Tensor]) -> bool:
    """Return whether all partial sums are of floating-point types: no step has others."""
    return all(
        operand.is_floating_point() or operand.is_complex() or not spec.partial
        for spec, operand in zip(strategy.operand_specs, operands, strict=True)
    )


def _eps(dtype: torch.dtype) -> float:
    """Return the relative rounding error of a type; 0.0 for integers."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _as_numpy(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array; types that numpy lacks, such as bfloat16, exactly in float32."""
    is_numpys = not tensor.is_floating_point() or tensor.dtype in _NUMPYS
    plain = tensor.resolve_conj().resolve_neg()
    array: NDArray[Any] = (plain if is_numpys else plain.float()).numpy()
    return array


def _run_in_parts(
    call: Call, operands: Sequence[Tensor], wholes: Sequence[Tensor], strategy: Strategy
) -> list[Parts]:
    """Run the call on shards; return the shards of each result, by device."""
    shapes = tuple(tuple(tuple(t.shape) for t in tensors) for tensors in (operands, wholes))
    specs = strategy.operand_specs, strategy.result_specs
    shards = [
        shardspec.shard(Layout(tuple(t.shape), MESH, spec), _as_numpy(t))
        for t, spec in zip(operands, specs[0], strict=True)
    ]
    read: list[Shards] = [
        [
            torch.from_numpy(np.ascontiguousarray(of[d]).reshape(of[d].shape)).to(whole.dtype)
            for d in MESH.device_ids
        ]
        for of, whole in zip(shards, operands, strict=True)
    ]
    local_shapes = [tuple(of[0].shape) for of in read]
    parts = AttentionParts.of(call, local_shapes, strategy.operand_specs, MESH)
    if parts is None:
        local = LocalCall(call, (shapes[0], shapes[1]), *specs, MESH)
        each = zip(*read, strict=True) if read else [()] * MESH.size
        places = map(MESH.coordinates, MESH.device_ids)
        made = [local(list(of), place) for of, place in zip(each, places, strict=True)]
        results = [list(of) for of in zip(*made, strict=True)]
    else:
        results = _sending(parts, read, wholes, strategy)
    return [
        {d: _as_numpy(shard) for d, shard in zip(MESH.device_ids, of, strict=True)}
        for of in results
    ]


def _sending(
    parts: AttentionParts, read: Sequence[Shards], wholes: Sequence[Tensor], strategy: Strategy
) -> list[Shards]:
    """Run attention whose devices send each other something, all of them in this process."""
    kinds = [TensorType(tuple(of[0].shape), of[0].dtype) for of in read]
    for whole, spec in zip(wholes, strategy.result_specs, strict=True):
        kinds.append(TensorType(local_shape(tuple(whole.shape), spec, MESH), whole.dtype))
    inputs, results = range(len(read)), range(len(read), len(kinds))
    nodes = AttentionLowering(parts, 0, parts.call.name, kinds).lower(
        inputs, results, [False] * len(results)
    )
    values: dict[int, Shards] = dict(zip(inputs, read, strict=True))
    together = LockStep(MESH)
    for node in nodes:
        of = [values[register] for register in node.operands]
        if isinstance(node, Communicate):
            made = together.bind([node.step])(of)()
        elif isinstance(node, Compute):
            each = zip(*of, together.coordinates, strict=True)
            made = [list(x) for x in zip(*(node.call(t[:-1], t[-1]) for t in each), strict=True)]
        values.update(zip(node.results, made, strict=True))
    return [values[register] for register in results]
