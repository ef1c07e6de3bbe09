"""Try the rules of all operators of a function, against the operators run whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import shardspec
import torch
from autoshard import Strategy
from shardspec import Layout
from torch.utils import _pytree as pytree

from frontends.base.rule_check import MESH, Parts, check_parts, tried_strategies
from frontends.errors import ArgumentError
from frontends.torch.base.calls import Call, Tensor
from frontends.torch.base.compat.traced import Program
from frontends.torch.capture.decompositions import DECOMPOSITIONS
from frontends.torch.capture.read import read
from frontends.torch.lower.local import LocalCall
from frontends.torch.rules.rules import has_rule, rule_of


def check_rules(
    function: Callable[..., Any], *operands: Any, at_most: int | None = None
) -> dict[str, int]:
    """Run every operator of a function in all ways that its rule allows, and compare the results.

    What a rule says is believed where a step is planned. This tries it: of each operator, each
    strategy on four devices in two rows, against the operator run whole. Nothing is sent, so that
    it needs no devices.

    Args:
        function: Whatever calls the operators. Those of its gradients by the tensors that require
            one are tried, too.
        operands: What to call it with. Dims of 4 or 8 can be split in all ways.
        at_most: About so many strategies of each operator; None for all.

    Returns:
        By operator with a rule, in how many ways it was run.

    Raises:
        VerificationError: Parts of an operator make something else than the whole one.
        ArgumentError: What is given are no tensors.
        RuleError: A rule's function makes none, or one of other shapes.

    Examples:
        >>> from frontends.torch import check_rules
        >>> x = torch.ones(8, 8, requires_grad=True)
        >>> check_rules(lambda x: x.softmax(-1), x, at_most=2).keys()
        dict_keys(['_softmax', 'full', '_softmax_backward_data'])
    """
    for tensor in operands:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"rules are tried on tensors; got {tensor!r}")
    needs = [tensor.requires_grad for tensor in operands]

    def whole(*values: Tensor) -> list[Tensor]:
        return _with_gradients(function, values, needs)

    given = [tensor.detach() for tensor in operands]
    program = Program(whole, list(given), (), DECOMPOSITIONS)
    flat = read(program.module, [f"x{i}" for i in range(len(operands))]).flat
    values = {f"x{i}": tensor for i, tensor in enumerate(given)}
    values.update(flat.constants)
    tried: dict[str, int] = {}
    for line in flat.lines:
        inputs = [values[name] for name in line.inputs]
        wholes = line.call(inputs)
        values.update(zip(line.outputs, wholes, strict=True))
        if has_rule(line.call.name):
            kinds = [flat.kinds[n] for n in line.inputs], [flat.kinds[n] for n in line.outputs]
            rule = rule_of(line.call, *kinds)
            for strategy in tried_strategies(rule, at_most):
                if _is_of_a_step(strategy, inputs):
                    run = partial(_run_in_parts, line.call, inputs, wholes, strategy)
                    check_parts(line.call.name, rule, strategy, wholes, run)
                    tried[line.call.name] = tried.get(line.call.name, 0) + 1
    return tried


def _with_gradients(
    function: Callable[..., Any], tensors: Sequence[Tensor], needs: Sequence[bool]
) -> list[Tensor]:
    """The tensors that it returns, and the gradients of their sum."""
    given = [t.detach().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
    results = [r for r in pytree.tree_leaves(function(*given)) if isinstance(r, Tensor)]
    wanted = [tensor for tensor in given if tensor.requires_grad]
    known = [result for result in results if result.requires_grad]
    if wanted and known:
        seeds = [torch.ones_like(result) for result in known]
        found = torch.autograd.grad(known, wanted, seeds, allow_unused=True)
        results += [gradient for gradient in found if gradient is not None]
    return [result.detach() for result in results]


def _is_of_a_step(strategy: Strategy, operands: Sequence[Tensor]) -> bool:
    """Whether all that lies in addends has a floating-point type: no step has sums of others."""
    return all(
        operand.is_floating_point() or operand.is_complex() or not spec.partial
        for spec, operand in zip(strategy.operand_specs, operands, strict=True)
    )


def _run_in_parts(
    call: Call, operands: Sequence[Tensor], wholes: Sequence[Tensor], strategy: Strategy
) -> list[Parts]:
    """The call on shards."""
    shapes = tuple(tuple(tuple(t.shape) for t in tensors) for tensors in (operands, wholes))
    specs = strategy.operand_specs, strategy.result_specs
    local = LocalCall(call, (shapes[0], shapes[1]), *specs, MESH)
    shards = [
        shardspec.shard(Layout(tuple(t.shape), MESH, spec), t.numpy())
        for t, spec in zip(operands, specs[0], strict=True)
    ]
    made = {}
    for d in MESH.device_ids:
        mine = [np.ascontiguousarray(of[d]).reshape(of[d].shape) for of in shards]
        made[d] = local([torch.from_numpy(shard) for shard in mine], MESH.coordinates(d))
    return [{d: of[k].numpy() for d, of in made.items()} for k in range(len(wholes))]
