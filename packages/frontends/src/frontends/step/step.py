"""A traced training step, independent of the framework it came from.

The step of one device reads a batch; the parallel one runs *forward* and *backward* once for each
microbatch and *apply* once, on sums over the microbatches. `accumulate` proves that these sums
equal what the single device computes.

Cutting a batch into microbatches is sharding over one more axis, in time instead of space. So the
rules that say how an operator is sharded also say how it is accumulated. If every batch dim is
mapped to that axis, no operator may need communication; each value that apply reads is then a
partial sum (summed over the microbatches), a part of the batch (concatenated), or independent of
the batch.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from autoshard import Graph, Operator, Value, elementwise, structural_hash

from frontends.errors import AccumulationError

FORWARD, BACKWARD, APPLY = range(3)
"""Phases of the graph of every step, by index."""

PhaseName = Literal["forward", "backward", "apply"]

PHASE_NAMES: tuple[PhaseName, ...] = ("forward", "backward", "apply")

Dims = tuple[tuple[int, ...], ...]
"""For each dim of a value, its factors in the rule of an operator, major to minor."""

STATE = ("parameter", "optimizer_state")
"""Roles of arguments that a step keeps, and returns new versions of."""

IDENTITY = "identity"
"""Kind of an operator that returns its operand; it is ours, not a framework's."""

SUM = "sum of copies"
"""Kind of an operator that sums a total over the replicas of a stage; see `replicas`."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One training step as a graph with the shapes of a microbatch."""

    graph: Graph
    """Phases forward and backward run once a microbatch, apply once a step."""

    microbatches: int
    """How many parts the batch is cut into along its leading dim."""

    summed: tuple[str, ...]
    """Values of forward or backward that apply reads as sums over the microbatches."""

    fingerprint: str
    """Digest that is equal for steps that compute the same; a plan refuses a step with another."""

    original: Mapping[str, str] = field(default_factory=dict)
    """By operator of backward that computes activations again: the operator of forward."""


def fingerprint(graph: Graph, microbatches: int) -> str:
    """A digest of everything that a plan depends on: operators, shapes, order, microbatches."""
    text = f"{microbatches}\n{structural_hash(graph)}\n{graph}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(value: Value, name: str) -> Operator:
    """An operator of apply that returns `value` under another name."""
    rule = elementwise((value.shape,), value.shape, ((0,),))
    return Operator(name, IDENTITY, (value.name,), (name,), rule, 0.0, APPLY)


def sum_of_copies(value: Value, parts: Sequence[str]) -> Operator:
    """An operator of apply that adds up the parts of `value`, and has its name as result.

    If the first part is a partial sum over devices, the others are not, and count once.
    """
    shapes = (value.shape,) * len(parts)
    rule = elementwise(shapes, value.shape, ((0,),))
    flops = float((len(parts) - 1) * math.prod(value.shape))
    return Operator(f"sum.{value.name}", SUM, tuple(parts), (value.name,), rule, flops, APPLY)


@dataclass(slots=True)
class Accumulation:
    """How the values of a step are computed in microbatches."""

    batch_dim: dict[str, int]
    """For each value that holds examples, the dim along which it does."""

    sums: set[str] = field(default_factory=set)
    """Values that are partial sums over the microbatches."""

    late: set[str] = field(default_factory=set)
    """Values of forward and backward that apply computes instead, once a step."""

    parts: list[str] = field(default_factory=list)
    """Values with a batch dim that apply reads for the whole batch."""

    early: dict[str, list[str] | None] = field(default_factory=dict)
    """Values to compute on the whole batch before the first microbatch, each with the operators
    that read this early value; None means all its readers."""

    def rename(self, names: Mapping[str, str]) -> None:
        """Let sums and late values have the names that they have in another program."""
        self.sums = {names[name] for name in self.sums if name in names}
        self.late = {names[name] for name in self.late if name in names}

    def arrange(self, graph: Graph) -> tuple[Graph, tuple[str, ...]]:
        """The graph with the late operators in apply, and the values to sum over microbatches."""
        compute: list[Operator] = []
        apply: list[Operator] = []
        for op in graph.operators:
            is_late = op.phase != APPLY and not self.late.isdisjoint(op.outputs)
            (compute if op.phase != APPLY and not is_late else apply).append(
                replace(op, phase=APPLY) if is_late else op
            )
        apply.sort(key=lambda op: self.late.isdisjoint(op.outputs))
        read = {name for op in apply for name in op.inputs}
        summed = (n for op in compute for n in op.outputs if n in self.sums and n in read)
        return replace(graph, operators=(*compute, *apply)), tuple(summed)


def accumulate(
    graph: Graph,
    microbatches: int,
    *,
    equal: Mapping[str, Collection[int]],
    zeros: Collection[str] = (),
    free: Collection[str] = (),
) -> Accumulation:
    """Prove that forward and backward compute sums over microbatches, whose totals apply reads.

    An operator whose results only apply reads moves to apply if it needs a total or does not depend
    on the batch: a penalty on the weights, its sum with the loss, and the sum of their gradients.
    An operator that mixes examples but reads no weight is computed early, on the whole batch: the
    divisor of a masked mean, statistics of the batch's numbers, the positions from which a
    generator draws. Parts of the batch that apply reads or the step returns are concatenated.

    Args:
        graph: The step on the whole batch.
        microbatches: How many parts the batch is cut into.
        equal: For values that are filled with copies: the dims along which all slices are equal.
        zeros: Values that are filled with zeros.
        free: Inputs that early computation may read.

    Raises:
        AccumulationError: An operator that reads weights mixes examples other than by a sum.
    """
    result = Accumulation(dims_of_examples(graph, lambda n: n % microbatches == 0))
    batch_dim, sums, late = result.batch_dim, result.sums, result.late
    known = _known(graph, free)
    for name in graph.inputs:
        if name in batch_dim and graph.value(name).role != "batch":
            if name not in known:
                raise _per_example(graph, name, batch_dim)
            result.early[name] = None
    may_wait = _read_by_apply_only(graph, batch_dim)
    for operator in graph.operators:
        if operator.phase == APPLY:
            result.parts += [
                name
                for name in dict.fromkeys(operator.inputs)
                if name in batch_dim and name not in result.parts
            ]
        elif operator.name in may_wait and not _adds_up_alone(operator, sums, late):
            late.update(operator.outputs)
        elif not result.early.keys() >= set(operator.outputs):
            try:
                added = _adds_up(operator, batch_dim, sums, microbatches, equal, zeros)
            except AccumulationError:
                culprits = [name for name in operator.inputs if name in sums & known]
                if known.issuperset(operator.outputs):
                    result.early.update(dict.fromkeys(operator.outputs))
                    continue
                if not culprits:
                    raise
                rest = sums - set(culprits)
                added = _adds_up(operator, batch_dim, rest, microbatches, equal, zeros)
                for name in culprits:
                    readers = result.early.setdefault(name, [])
                    if readers is not None:
                        readers.append(operator.name)
            sums.update(added)
    return result


def dims_of_examples(graph: Graph, is_cut: Callable[[int], bool]) -> dict[str, int]:
    """For each value that is tied to the batch, the dim along which it holds the examples.

    A rule ties dims that are cut alike. Ties lead backwards, too: zeros that are added to a value
    with one element for each example are cut as the examples are; zeros that are added to weights
    are not.

    Args:
        graph: The step.
        is_cut: Whether a number of slices along the examples can be cut (or padded) as they are.
    """
    touching: dict[str, list[Operator]] = defaultdict(list)
    for op in graph.operators:
        if op.phase != APPLY:
            for name in {*op.inputs, *op.outputs}:
                touching[name].append(op)
    batch_dim = {name: 0 for name in graph.inputs if graph.value(name).role == "batch"}
    work = [op for name in batch_dim for op in touching[name]]
    while work:
        op = work.pop()
        names, dims_of = zip(*with_dims(op), strict=True)
        factors = _batch_factors(names, dims_of, batch_dim)
        if len(factors) != 1:
            continue
        (factor,) = factors
        if factor is None or not is_cut(op.rule.factors[factor].size):
            continue
        for name, dims in with_dims(op):
            if name not in batch_dim:
                for d, dim in enumerate(dims):
                    if dim[:1] == (factor,):
                        batch_dim[name] = d
                        work += touching[name]
                        break
    return batch_dim


def with_dims(op: Operator) -> list[tuple[str, Dims]]:
    """Each operand and result with the factors of its dims."""
    rule = op.rule
    return [
        *zip(op.inputs, rule.operands, strict=True),
        *zip(op.outputs, rule.results, strict=True),
    ]


def _batch_factors(
    names: Sequence[str], dims_of: Sequence[Dims], batch_dim: Mapping[str, int]
) -> set[int | None]:
    """The factors that run over examples; None for a batch dim without a leading factor."""
    return {
        next(iter(dims[batch_dim[name]]), None)
        for name, dims in zip(names, dims_of, strict=True)
        if name in batch_dim
    }


def _known(graph: Graph, free: Collection[str]) -> set[str]:
    """The values of forward and backward that depend on `free` inputs only."""
    known = set(free)
    for op in graph.operators:
        if op.phase != APPLY and known.issuperset(op.inputs):
            known.update(op.outputs)
    return known


def _read_by_apply_only(graph: Graph, batch_dim: Mapping[str, int]) -> set[str]:
    """Operators of forward and backward that can run in apply, as only apply needs their results.

    None of them reads or makes a value with a batch dim.
    """
    movable: set[str] = set()
    needed: set[str] = set()
    for operator in reversed(graph.operators):
        if operator.phase == APPLY:
            continue
        touched = (*operator.inputs, *operator.outputs)
        if batch_dim.keys().isdisjoint(touched) and needed.isdisjoint(operator.outputs):
            movable.add(operator.name)
        else:
            needed.update(operator.inputs)
    return movable


def _adds_up_alone(operator: Operator, sums: Collection[str], late: Collection[str]) -> bool:
    """Whether the results are partial sums, for an operator that no batch dim touches."""
    partial = tuple(i for i, name in enumerate(operator.inputs) if name in sums)
    return partial in operator.rule.linear and not any(name in late for name in operator.inputs)


def _adds_up(
    operator: Operator,
    batch_dim: Mapping[str, int],
    sums: Collection[str],
    microbatches: int,
    equal: Mapping[str, Collection[int]],
    zeros: Collection[str],
) -> tuple[str, ...]:
    """The results of an operator that are partial sums over the microbatches.

    It may be some of them: of a layer's backward, the gradients of weights are, those of examples
    are not.
    """
    rule = operator.rule
    partial = tuple(i for i, name in enumerate(operator.inputs) if name in sums)
    if batch_dim.keys().isdisjoint(operator.inputs):
        for name in operator.outputs:
            if name in batch_dim and batch_dim[name] not in equal.get(name, ()):
                raise _mixing(operator, "its values depend on the size of the batch")
        if partial and partial not in rule.linear:
            raise _mixing(operator, "it is not linear in sums over the batch")
        return operator.outputs if partial else ()
    if partial:
        raise _mixing(operator, "it combines single examples with a sum over all of them")
    factors = _batch_factors(operator.inputs, rule.operands, batch_dim)
    number = next(iter(factors))
    if len(factors) > 1 or number is None:
        raise _mixing(operator, "it combines different examples")
    factor = rule.factors[number]
    if factor.kind == "whole" or (factor.kind == "reduce" and factor.reduction != "sum"):
        raise _mixing(operator, "it needs all examples at once")
    for name, dims in with_dims(operator):
        cut = [d for d, dim in enumerate(dims) if number in dim]
        if factor.size % microbatches or any(dims[d][0] != number for d in cut):
            raise _mixing(operator, "its result interleaves examples of several microbatches")
        if cut != ([batch_dim[name]] if name in batch_dim else []):
            raise _mixing(operator, "it combines different examples")
    if factor.kind != "reduce":
        return ()
    added = {i for group in rule.linear if len(group) > 1 for i in group}
    whole = {operator.inputs[i] for i in added} - batch_dim.keys() - set(zeros)
    if whole:
        raise _mixing(operator, f"it would add {min(whole)} once for each microbatch")
    return tuple(name for name in operator.outputs if name not in batch_dim)


def _mixing(operator: Operator, reason: str) -> AccumulationError:
    reads = ", ".join(operator.inputs) or "nothing"
    return AccumulationError(
        "a step that runs in microbatches must be a sum over its examples; "
        f"operator {operator.name} ({operator.kind}, reads {reads}) is not: {reason}. "
        "Use microbatches=1, or let operators that mix examples read no weights",
        operator.name,
    )


def _per_example(graph: Graph, name: str, batch_dim: Mapping[str, int]) -> AccumulationError:
    reader = next(op.name for op in graph.operators if name in op.inputs)
    return AccumulationError(
        "a step that runs in microbatches must treat all examples alike; "
        f"{reader} combines single examples with dim {batch_dim[name]} of {name}, of shape "
        f"{graph.value(name).shape}: name its argument in batch_argnums if it holds a value for "
        "each example and is not updated, or use microbatches=1",
        reader,
    )
