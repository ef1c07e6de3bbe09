"""A traced training step, without the framework it came from.

The step of one device reads a batch; the parallel one runs *forward* and *backward* once for each
microbatch and *apply* once, on sums over the microbatches. `check_accumulation` proves that the
sums are what the single device computes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from autoshard import Graph, Operator, Value, elementwise, structural_hash

from frontends.errors import AccumulationError

FORWARD, BACKWARD, APPLY = range(3)
"""Phases of the graph of every step, by index."""

PHASE_NAMES = ("forward", "backward", "apply")

IDENTITY = "identity"
"""Kind of an operator that only hands a value on; no framework knows it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One training step as a graph at the size of a microbatch."""

    graph: Graph
    """Phases forward and backward repeat once a microbatch, apply once a step."""

    microbatches: int
    """How many parts the batch is cut into along its leading dim."""

    summed: tuple[str, ...]
    """Values of forward or backward that apply reads as sums over the microbatches."""

    fingerprint: str
    """Equal for steps that compute the same; a plan holds it to refuse another step."""


def fingerprint(graph: Graph, microbatches: int) -> str:
    """A digest of all that a plan depends on: operators, shapes, order, microbatches."""
    text = f"{microbatches}\n{structural_hash(graph)}\n{graph}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(value: Value, name: str) -> Operator:
    """An operator of apply that hands `value` on under another name."""
    rule = elementwise((value.shape,), value.shape, ((0,),))
    return Operator(name, IDENTITY, (value.name,), (name,), rule, 0.0, APPLY)


def check_accumulation(
    full: Graph, micro: Graph, broadcasts: tuple[str, ...] = ("broadcast_in_dim",)
) -> tuple[str, ...]:
    """Prove that forward and backward give sums over microbatches; return the summed values.

    Cutting a batch into microbatches is sharding over one more axis, in time instead of space. So
    the rules that say how an operator is sharded also say how it is accumulated: with every batch
    dim mapped to that axis no operator may need communication, and what apply reads is then a
    partial sum (added up over the microbatches) or does not depend on the batch at all.

    Args:
        full: The step on the whole batch.
        micro: The same step on one microbatch; names agree with `full`.
        broadcasts: Kinds of operators that fill a shape with copies of what they read.

    Raises:
        AccumulationError: An operator mixes examples other than by a sum: a mean over a mask,
            statistics over the batch, random numbers of the batch's shape.
    """
    shapes = {value.name: value.shape for value in micro.values}
    batch_dim: dict[str, int] = {}
    for value in full.values:
        changed = [
            d
            for d, (n, m) in enumerate(zip(value.shape, shapes[value.name], strict=True))
            if n != m
        ]
        if len(changed) > 1:
            raise AccumulationError(
                f"a value may hold the batch in one dim only; {value.name} of shape {value.shape} "
                f"holds it in dims {changed}: use microbatches=1"
            )
        if changed:
            batch_dim[value.name] = changed[0]

    sums: set[str] = set()
    for operator in full.operators:
        if operator.phase == APPLY:
            _check_apply(operator, batch_dim)
            continue
        if _adds_up(operator, batch_dim, sums, broadcasts):
            sums.update(operator.outputs)
    computed = {
        name for op in full.operators if op.phase != APPLY for name in op.outputs if name in sums
    }
    read = {name for op in full.operators if op.phase == APPLY for name in op.inputs}
    order = (name for op in full.operators for name in op.outputs)
    return tuple(name for name in order if name in computed and name in read)


def _check_apply(operator: Operator, batch_dim: dict[str, int]) -> None:
    for name in operator.inputs:
        if name in batch_dim:
            raise AccumulationError(
                "what a step returns must be a sum over its batch or not depend on it; "
                f"{operator.name} returns or updates with {name}, which holds a value for each "
                "example: reduce it in the loss function, or use microbatches=1"
            )


def _adds_up(
    operator: Operator, batch_dim: dict[str, int], sums: set[str], broadcasts: tuple[str, ...]
) -> bool:
    """Whether the results of an operator are partial sums over the microbatches."""
    rule = operator.rule
    split = {
        rule.operands[i][batch_dim[name]][:1]
        for i, name in enumerate(operator.inputs)
        if name in batch_dim
    }
    partial = tuple(i for i, name in enumerate(operator.inputs) if name in sums)
    if not split:
        if any(name in batch_dim for name in operator.outputs) and operator.kind not in broadcasts:
            raise _mixing(operator, "its values depend on the size of the batch")
        if partial and partial not in rule.linear:
            raise _mixing(operator, "it is not linear in sums over the batch")
        return bool(partial)
    if partial:
        raise _mixing(operator, "it combines single examples with a sum over all of them")
    entry = split.pop()
    if split or not entry:
        raise _mixing(operator, "it combines different examples")
    factor = rule.factors[entry[0]]
    if factor.kind == "whole" or (factor.kind == "reduce" and factor.reduction != "sum"):
        raise _mixing(operator, "it needs all examples at once")
    for name, dims in zip(operator.outputs, rule.results, strict=True):
        leading = [d for d, dim in enumerate(dims) if dim[:1] == entry]
        if leading != ([batch_dim[name]] if name in batch_dim else []):
            raise _mixing(operator, "its result interleaves examples of several microbatches")
    return factor.kind == "reduce"


def _mixing(operator: Operator, reason: str) -> AccumulationError:
    reads = ", ".join(operator.inputs) or "nothing"
    return AccumulationError(
        "a step that runs in microbatches must be a sum over its examples; "
        f"operator {operator.name} ({operator.kind}, reads {reads}) is not: {reason}. "
        "Use microbatches=1, or divide by a number that does not depend on the batch's values"
    )
