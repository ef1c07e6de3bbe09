"""From a JAX training step to a `Step`: trace, inline, split compute from apply, name everything.

The step is traced twice, on the whole batch and on one microbatch. The second trace has the shapes
that run; the scalar constants come from the first. A mean over the batch divides by the number of
all examples, so plain sums over microbatches give the whole batch's gradient, for mean and sum
losses alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from frontends.errors import AccumulationError, BatchError, UnsupportedStepError
from frontends.jax import _compat
from frontends.jax._compat import ClosedJaxpr, JaxprEqn
from frontends.jax.arguments import Argument, describe, match_state
from frontends.jax.program import Constant, Program, phases_of
from frontends.step import Step, accumulate, fingerprint


@dataclass(frozen=True)
class Trace:
    """A step and what is needed to run it in JAX."""

    step: Step
    equations: Mapping[str, JaxprEqn]
    """By operator name; an identity has none."""

    operands: Mapping[str, tuple[str | Constant, ...]]
    """By operator name: each operand is the name of a value or a literal constant."""

    constants: Mapping[str, Any]
    """Arrays that the step closes over, by value name."""

    arguments: tuple[Argument, ...]
    results: tuple[str | Constant, ...]
    """For each leaf of the result, the name of its value, or the constant that it always is."""

    out_tree: Any


def trace(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    batch_argnums: Sequence[int],
    microbatches: int,
) -> Trace:
    """Trace `function` at its arguments' shapes and types; their values are not read.

    Args:
        function: A training step that differentiates its loss with JAX.
        arguments: Trees of arrays or of `jax.ShapeDtypeStruct`.
        batch_argnums: Which arguments hold the batch, in the leading dim of every leaf.
        microbatches: Into how many parts the batch is cut.

    Raises:
        BatchError: The batch cannot be cut into so many parts.
        AccumulationError: The step is not a sum over its examples.
        UnsupportedStepError: The step has effects, typed keys, or computes no gradient.
    """
    leaves = describe(function, arguments, batch_argnums)
    _check_not_empty(leaves)
    tree = jax.tree.structure(tuple(arguments))
    if microbatches != 1:
        _check_divisible(leaves, microbatches)
    full, out_shape = _make_jaxpr(function, tree, leaves, 1)
    micro = full
    if microbatches != 1:
        micro, _ = _make_jaxpr(function, tree, leaves, microbatches)
        micro = _with_constants_of(full, micro)
    full, micro = _compat.without_keys(full), _compat.without_keys(micro)
    repeated = _compat.repeated_equations(full, phases_of(full.jaxpr.eqns))
    full, micro = (_compat.without_repeated(closed, repeated) for closed in (full, micro))
    aliases = match_state(arguments, out_shape, batch_argnums)
    program = Program(micro, leaves, aliases, microbatches)
    full_graph = Program(full, leaves, {}, 1).graph
    graph, summed = accumulate(full_graph, program.graph, zeros=program.zeros)
    step = Step(graph, microbatches, summed, fingerprint(graph, microbatches))
    return Trace(
        step,
        program.equations,
        program.operands,
        program.constants,
        leaves,
        program.results,
        jax.tree.structure(out_shape),
    )


def _check_not_empty(leaves: Sequence[Argument]) -> None:
    for leaf in leaves:
        if leaf.is_batch and leaf.shape[:1] == (0,):
            raise BatchError(
                "a batch holds at least one example, in the leading dim; got "
                f"{leaf.name} of shape {leaf.shape}: plan with a batch as it will be trained"
            )


def _check_divisible(leaves: Sequence[Argument], microbatches: int) -> None:
    if microbatches < 1:
        raise BatchError(f"microbatches must be at least 1; got {microbatches}")
    batch = [leaf for leaf in leaves if leaf.is_batch]
    if not batch:
        raise BatchError(
            "microbatches cut the batch, but no argument holds one: name it by batch_argnums"
        )
    for leaf in batch:
        if not leaf.shape or leaf.shape[0] % microbatches:
            raise BatchError(
                "the batch's leading dim must be a multiple of microbatches; got "
                f"{leaf.name} of shape {leaf.shape} and microbatches={microbatches}"
            )


def _make_jaxpr(
    function: Callable[..., Any], tree: Any, leaves: Sequence[Argument], parts: int
) -> tuple[ClosedJaxpr, Any]:
    shapes = []
    for leaf in leaves:
        is_cut = leaf.is_batch and parts > 1
        shape = (leaf.shape[0] // parts, *leaf.shape[1:]) if is_cut else leaf.shape
        shapes.append(jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=leaf.weak_type))
    closed, out_shape = jax.make_jaxpr(function, return_shape=True)(
        *jax.tree.unflatten(tree, shapes)
    )
    if closed.effects:
        raise UnsupportedStepError(
            "a step that is planned must be free of side effects; this one has "
            f"{', '.join(sorted(map(str, closed.effects)))}: remove prints and callbacks from it"
        )
    return _compat.eliminate_dead_code(_compat.inline_calls(closed)), out_shape


def _with_constants_of(full: ClosedJaxpr, micro: ClosedJaxpr) -> ClosedJaxpr:
    """`micro` with the scalar constants of `full`, so that means divide by all examples.

    Any other difference than shapes would make one microbatch compute something else.
    """
    before, after = full.jaxpr.eqns, micro.jaxpr.eqns
    if [e.primitive for e in before] != [e.primitive for e in after]:
        raise AccumulationError(
            "the step must run the same operations for every batch size; it runs "
            f"{len(before)} for the whole batch and {len(after)} for one microbatch: "
            "use fewer microbatches, so that each holds more than one example"
        )
    if not all(map(_equal, full.consts, micro.consts)):
        raise AccumulationError(
            "a step that runs in microbatches must close over the same arrays for every batch "
            "size; it makes one with NumPy that depends on the size of the batch: make it with "
            "jax.numpy, or use microbatches=1"
        )
    equations = []
    for old, new in zip(before, after, strict=True):
        for name in old.params.keys() - _SHAPES:
            if not _equal(old.params[name], new.params[name]):
                raise AccumulationError(
                    "a step that runs in microbatches must run the same operations for every "
                    f"batch size; {old.primitive} runs with another {name} for the whole batch "
                    "than for one microbatch: use microbatches=1"
                )
        operands = [
            x if _compat.is_scalar_literal(x) and _compat.is_scalar_literal(y) else y
            for x, y in zip(old.invars, new.invars, strict=True)
        ]
        equations.append(new.replace(invars=operands))
    return ClosedJaxpr(micro.jaxpr.replace(eqns=equations), micro.consts)


_SHAPES = frozenset(("shape", "new_sizes", "slice_sizes", "limit_indices", "sizes"))
"""Parameters of primitives that hold shapes, and may differ as far as results' shapes show it."""


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, np.ndarray | jax.Array):
        return old is new or (
            np.shape(old) == np.shape(new)
            and np.asarray(old).tobytes() == np.asarray(new).tobytes()
        )
    return bool(old == new) or str(old) == str(new)  # nested programs are equal if they print so
