"""A traced training step, without the framework it came from.

The step of one device reads a batch; the parallel one runs *forward* and *backward* once for each
microbatch and *apply* once, on sums over the microbatches. `accumulate` proves that the sums are
what the single device computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from autoshard import Graph, Operator, Value, elementwise, structural_hash

from frontends.errors import AccumulationError

FORWARD, BACKWARD, APPLY = range(3)
"""Phases of the graph of every step, by index."""

PhaseName = Literal["forward", "backward", "apply"]

PHASE_NAMES: tuple[PhaseName, ...] = ("forward", "backward", "apply")

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


def accumulate(
    full: Graph,
    micro: Graph,
    broadcasts: Collection[str] = ("broadcast_in_dim",),
    zeros: Collection[str] = (),
) -> tuple[Graph, tuple[str, ...]]:
    """Prove that forward and backward give sums over microbatches, of which apply reads totals.

    Cutting a batch into microbatches is sharding over one more axis, in time instead of space. So
    the rules that say how an operator is sharded also say how it is accumulated: with every batch
    dim mapped to that axis no operator may need communication, and what apply reads is then a
    partial sum (added up over the microbatches) or does not depend on the batch at all.

    What is read by apply only moves to apply if it needs a total or does not depend on the batch:
    a penalty on the weights, its sum with the loss, and that of their gradients.

    Args:
        full: The step on the whole batch.
        micro: The same step on one microbatch; names agree with `full`.
        broadcasts: Kinds of operators that fill a shape with copies of what they read.
        zeros: Values that hold nothing but zeros.

    Returns:
        `micro` with such operators in apply, and the values that are to be summed.

    Raises:
        AccumulationError: An operator mixes examples other than by a sum: a mean over a mask,
            statistics over the batch, random numbers of the batch's shape.
    """
    if micro.phases[FORWARD].repeats == 1:
        return micro, ()
    batch_dim = _batch_dims(full, micro)
    may_wait = _read_by_apply_only(full, batch_dim)
    sums: set[str] = set()
    late: set[str] = set()
    for operator in full.operators:
        if operator.phase == APPLY:
            _check_apply(operator, batch_dim)
            continue
        if operator.name in may_wait and not _adds_up_alone(operator, sums, late):
            late.update(operator.outputs)
        elif _adds_up(operator, batch_dim, sums, broadcasts, zeros):
            sums.update(operator.outputs)
    compute = [op for op in micro.operators if op.phase != APPLY and late.isdisjoint(op.outputs)]
    moved = [replace(op, phase=APPLY) for op in micro.operators if not late.isdisjoint(op.outputs)]
    apply = [*moved, *(op for op in micro.operators if op.phase == APPLY)]
    read = {name for op in apply for name in op.inputs}
    summed = (name for op in compute for name in op.outputs if name in sums and name in read)
    return replace(micro, operators=(*compute, *apply)), tuple(summed)


def _batch_dims(full: Graph, micro: Graph) -> dict[str, int]:
    """The dim that holds the examples, of every value that has one."""
    batch_dim = {}
    for value in full.values:
        sizes = enumerate(zip(value.shape, micro.value(value.name).shape, strict=True))
        changed = [d for d, (whole, part) in sizes if whole != part]
        if len(changed) > 1:
            raise AccumulationError(
                f"a value may hold the batch in one dim only; {value.name} of shape {value.shape} "
                f"holds it in dims {changed}: use microbatches=1"
            )
        if changed:
            batch_dim[value.name] = changed[0]
    return batch_dim


def _read_by_apply_only(graph: Graph, batch_dim: Mapping[str, int]) -> set[str]:
    """Operators of forward and backward that might as well run in apply."""
    found: set[str] = set()
    needed: set[str] = set()
    for operator in reversed(graph.operators):
        if operator.phase == APPLY:
            continue
        touched = (*operator.inputs, *operator.outputs)
        if batch_dim.keys().isdisjoint(touched) and needed.isdisjoint(operator.outputs):
            found.add(operator.name)
        else:
            needed.update(operator.inputs)
    return found


def _check_apply(operator: Operator, batch_dim: Mapping[str, int]) -> None:
    for name in operator.inputs:
        if name in batch_dim:
            raise AccumulationError(
                "what a step returns must be a sum over its batch or not depend on it; "
                f"{operator.name} returns or updates with {name}, which holds a value for each "
                "example: reduce it in the loss function, or use microbatches=1"
            )


def _adds_up_alone(operator: Operator, sums: Collection[str], late: Collection[str]) -> bool:
    """Whether the results are partial sums, for an operator that no batch dim touches."""
    partial = tuple(i for i, name in enumerate(operator.inputs) if name in sums)
    return partial in operator.rule.linear and not any(name in late for name in operator.inputs)


def _adds_up(
    operator: Operator,
    batch_dim: Mapping[str, int],
    sums: set[str],
    broadcasts: Collection[str],
    zeros: Collection[str],
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
    if factor.kind == "reduce":
        added = {i for group in rule.linear if len(group) > 1 for i in group}
        whole = {operator.inputs[i] for i in added} - batch_dim.keys() - set(zeros)
        if whole:
            raise _mixing(operator, f"it would add {min(whole)} once for each microbatch")
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
