"""Test the rules of a function's operators by running them on shards and on whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import shardspec
from autoshard import Strategy
from shardspec import Layout, Spec

from frontends.base.rule_check import MESH, Parts, check_parts, tried_strategies
from frontends.errors import ArgumentError
from frontends.jax.base._compat import (
    JaxprEqn,
    Literal,
    aval,
    bind,
    eliminate_dead_code,
    finfo,
    inline_calls,
)
from frontends.jax.lower.lower import jax_mesh
from frontends.jax.rules.rules import has_rule, rule_of
from frontends.jax.trace.local import run_locally

_TOGETHER = 16
"""How many strategies of an operator are tried in one program [measured: one by one, tests of rules
take twice as long]."""


def check_rules(
    function: Callable[..., Any], *operands: Any, at_most: int | None = None
) -> dict[str, int]:
    """Run every operator of a function in all ways that its rule allows, and compare the results.

    Planning trusts what a rule says. This function tests it: it runs each operator by each of its
    strategies on four devices in two rows, and compares with the operator on whole arrays.
    docs/extending.md has an example.

    Args:
        function: Calls the operators; its `jax.grad` calls those of backward, too.
        operands: What to call it with. Dims of size 4 or 8 can be split in all ways.
        at_most: Run about this many strategies of each operator; None for all.

    Returns:
        For each operator with a rule, the number of ways in which it was run.

    Raises:
        VerificationError: An operator gives other results on shards than on whole arrays.
        ArgumentError: The operands are not arrays of numbers, or `at_most` is below 1.
        DeviceError: JAX has fewer than four devices; `frontends.jax.init(4)` makes them.
        RuleError: The function of a rule returns no rule, or one of other shapes.
    """
    for array in jax.tree.leaves(operands):
        if not hasattr(array, "dtype") or jnp.issubdtype(array.dtype, jax.dtypes.extended):
            raise ArgumentError(
                f"rules are tried on arrays of numbers; got {array!r}: make keys and the like from "
                "numbers in the function"
            )
    jax_mesh(MESH)  # raises if there are fewer than four devices
    closed = eliminate_dead_code(inline_calls(jax.make_jaxpr(function)(*operands)))
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, jax.tree.leaves(operands), strict=True))
    tried: dict[str, int] = {}
    for equation in closed.jaxpr.eqns:
        arrays = [v.val if isinstance(v, Literal) else values[v] for v in equation.invars]
        wholes = bind(equation, [jnp.asarray(array) for array in arrays], dict(equation.params))
        values.update(zip(equation.outvars, wholes, strict=True))
        name = equation.primitive.name
        if has_rule(equation.primitive) and not _has_keys(equation):
            rule = rule_of(equation)
            strategies = tried_strategies(rule, at_most)
            eps = [_eps(whole.dtype) for whole in wholes]
            run = partial(_run_in_parts, equation, [np.asarray(a) for a in arrays])
            for first in range(0, len(strategies), _TOGETHER):
                several = strategies[first : first + _TOGETHER]
                found: Sequence[list[Parts] | None]
                try:
                    found = run(several)
                except Exception:  # each runs by itself then, and `check_parts` names what fails
                    found = [None] * len(several)
                for strategy, parts in zip(several, found, strict=True):
                    each = partial(_parts_of, run, strategy, parts)
                    check_parts(name, rule, strategy, wholes, each, eps)
            tried[name] = tried.get(name, 0) + len(strategies)
    return tried


def _has_keys(equation: JaxprEqn) -> bool:
    """Whether an equation reads or makes typed keys, which cannot be put together from shards."""
    return any(
        jnp.issubdtype(aval(v).dtype, jax.dtypes.extended)
        for v in (*equation.invars, *equation.outvars)
    )


def _eps(dtype: Any) -> float:
    """The relative rounding error of a dtype; 0.0 for integers and booleans."""
    return float(finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def _parts_of(
    run: Callable[[list[Strategy]], list[list[Parts]]],
    strategy: Strategy,
    found: list[Parts] | None,
) -> list[Parts]:
    """The parts of a strategy: as found together with others, or else by a program of its own."""
    return run([strategy])[0] if found is None else found


def _run_in_parts(
    equation: JaxprEqn, arrays: list[Any], strategies: list[Strategy]
) -> list[list[Parts]]:
    """Run an equation on shards by each strategy, in one program.

    Returns:
        For each strategy, the shards of the equation's results by device.
    """
    stacked: dict[tuple[int, Spec], Any] = {}  # by operand and layout
    specs_of = []
    for strategy in strategies:
        of_variables = iter(strategy.operand_specs)
        specs = [None if isinstance(v, Literal) else next(of_variables) for v in equation.invars]
        specs_of.append(specs)
        for i, (array, spec) in enumerate(zip(arrays, specs, strict=True)):
            if spec is not None and (i, spec) not in stacked:
                shards = shardspec.shard(Layout(array.shape, MESH, spec), array)
                rows = np.stack([shards[d] for d in MESH.device_ids])
                stacked[i, spec] = rows.reshape(*MESH.shape, *rows.shape[1:])

    def local(shards: Mapping[tuple[int, Spec], Any]) -> list[list[Any]]:
        results = []
        for strategy, specs in zip(strategies, specs_of, strict=True):
            operands = [
                array if spec is None else shards[i, spec][0, 0]
                for i, (array, spec) in enumerate(zip(arrays, specs, strict=True))
            ]
            parts = run_locally(equation, operands, specs, strategy.result_specs, MESH)
            results.append([part[None, None] for part in parts])
        return results

    everywhere = jax.sharding.PartitionSpec(*MESH.axis_names)
    keys = list(stacked)
    program = jax.shard_map(
        lambda *shards: local(dict(zip(keys, shards, strict=True))),
        mesh=jax_mesh(MESH),
        in_specs=(everywhere,) * len(keys),
        out_specs=everywhere,
        check_vma=False,
    )

    def by_device(parts: Any) -> Parts:
        flat = np.asarray(parts).reshape(MESH.size, *parts.shape[MESH.ndim :])
        return dict(zip(MESH.device_ids, flat, strict=True))

    results = jax.jit(program)(*stacked.values())
    return [list(map(by_device, of_strategy)) for of_strategy in results]
