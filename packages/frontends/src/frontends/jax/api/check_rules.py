"""Try the rules of all operators of a function, against the operators run whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import shardspec
from autoshard import Strategy
from shardspec import Layout

from frontends.base.rule_check import MESH, Parts, check_parts, tried_strategies
from frontends.errors import ArgumentError
from frontends.jax.base._compat import (
    JaxprEqn,
    Literal,
    aval,
    bind,
    eliminate_dead_code,
    inline_calls,
)
from frontends.jax.lower.lower import jax_mesh
from frontends.jax.rules.rules import has_rule, rule_of
from frontends.jax.trace.local import run_locally


def check_rules(
    function: Callable[..., Any], *operands: Any, at_most: int | None = None
) -> dict[str, int]:
    """Run every operator of a function in all ways that its rule allows, and compare the results.

    What a rule says is believed where a step is planned. This tries it: of each operator, each
    strategy on four devices in two rows, against the operator run whole. docs/extending.md has an
    example.

    Args:
        function: Whatever calls the operators; `jax.grad` of it has those of backward, too.
        operands: What to call it with. Dims of 4 or 8 can be split in all ways.
        at_most: About so many strategies of each operator; None for all.

    Returns:
        By operator with a rule, in how many ways it was run.

    Raises:
        VerificationError: Parts of an operator make something else than the whole one.
        ArgumentError: What is given are no arrays of numbers.
        DeviceError: JAX has fewer than four devices; `frontends.jax.init(4)` makes them.
        RuleError: A rule's function makes none, or one of other shapes.
    """
    for array in jax.tree.leaves(operands):
        if not hasattr(array, "dtype") or jnp.issubdtype(array.dtype, jax.dtypes.extended):
            raise ArgumentError(
                f"rules are tried on arrays of numbers; got {array!r}: make keys and the like in "
                "the function, of numbers"
            )
    jax_mesh(MESH)  # or there are no four devices
    closed = eliminate_dead_code(inline_calls(jax.make_jaxpr(function)(*operands)))
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, jax.tree.leaves(operands), strict=True))
    tried: dict[str, int] = {}
    for equation in closed.jaxpr.eqns:
        given = [v.val if isinstance(v, Literal) else values[v] for v in equation.invars]
        wholes = bind(equation, [jnp.asarray(array) for array in given], dict(equation.params))
        values.update(zip(equation.outvars, wholes, strict=True))
        name = equation.primitive.name
        if has_rule(equation.primitive) and not _has_keys(equation):
            rule = rule_of(equation)
            strategies = tried_strategies(rule, at_most)
            for strategy in strategies:
                run = partial(_run_in_parts, equation, [np.asarray(a) for a in given], strategy)
                check_parts(name, rule, strategy, wholes, run)
            tried[name] = tried.get(name, 0) + len(strategies)
    return tried


def _has_keys(equation: JaxprEqn) -> bool:
    """Whether it reads or makes keys of random numbers, which nothing can put together."""
    return any(
        jnp.issubdtype(aval(v).dtype, jax.dtypes.extended)
        for v in (*equation.invars, *equation.outvars)
    )


def _run_in_parts(equation: JaxprEqn, given: list[Any], strategy: Strategy) -> list[Parts]:
    """The operator run on shards."""
    specs = iter(strategy.operand_specs)
    places = [None if isinstance(v, Literal) else next(specs) for v in equation.invars]
    stacked = []
    for array, spec in zip(given, places, strict=True):
        if spec is not None:
            shards = shardspec.shard(Layout(array.shape, MESH, spec), array)
            rows = np.stack([shards[d] for d in MESH.device_ids])
            stacked.append(rows.reshape(*MESH.shape, *rows.shape[1:]))

    def local(*shards: Any) -> list[Any]:
        mine = iter(shard[0, 0] for shard in shards)
        operands = [
            array if spec is None else next(mine) for array, spec in zip(given, places, strict=True)
        ]
        results = run_locally(equation, operands, places, strategy.result_specs, MESH)
        return [result[None, None] for result in results]

    everywhere = jax.sharding.PartitionSpec(*MESH.axis_names)
    program = jax.shard_map(
        local,
        mesh=jax_mesh(MESH),
        in_specs=(everywhere,) * len(stacked),
        out_specs=everywhere,
        check_vma=False,
    )
    made = jax.jit(program)(*stacked)
    flat = [np.asarray(parts).reshape(MESH.size, *parts.shape[MESH.ndim :]) for parts in made]
    return [dict(zip(MESH.device_ids, parts, strict=True)) for parts in flat]
