"""Prove that a step can run in microbatches: that it computes sums over them.

Cutting a batch into microbatches is sharding over one more axis, in time instead of space. So the
rules that say how an operator is sharded also say how it is accumulated. If every batch dim is
mapped to that axis, no operator may need communication; each value that apply reads is then a
partial sum (summed over the microbatches), a part of the batch (concatenated), or independent of
the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from autoshard import Graph, Operator

from frontends.errors import AccumulationError
from frontends.step.examples import Dims, dims_of_examples, with_dims
from frontends.step.step import APPLY, FORWARD, TrainingStep, fingerprint

_STATISTICS = "microbatch_statistics=True for sums of each microbatch's own examples, "
"""A way out for steps with such sums."""


@dataclass(slots=True)
class Accumulation:
    """How the values of a step are computed in microbatches."""

    batch_dim: dict[str, int]
    """For each value that holds examples, the dim along which it does."""

    sums: set[str] = field(default_factory=set)
    """Values that are partial sums over the microbatches."""

    late: set[str] = field(default_factory=set)
    """Values of forward and backward that apply computes instead, once a step."""

    of_parts: set[str] = field(default_factory=set)
    """Those of the late values that are computed from parts of the batch."""

    parts: list[str] = field(default_factory=list)
    """Values with a batch dim that apply reads for the whole batch."""

    early: dict[str, list[str] | None] = field(default_factory=dict)
    """Values to compute on the whole batch before the first microbatch, each with the operators
    that read this early value; None means all its readers."""

    statistics: set[str] = field(default_factory=set)
    """Values that each microbatch computes of its own examples, instead of those of all examples.
    Apply reads their mean over the microbatches."""

    estimates: dict[str, list[str]] = field(default_factory=dict)
    """By operator that makes a statistic or reads it with single examples: the sums that it reads
    as estimates of the total, which are the microbatch's part times the number of microbatches."""

    shares: dict[str, list[str]] = field(default_factory=dict)
    """By operator that adds statistics to sums: these statistics, of which a microbatch adds its
    share, which is one part in the number of microbatches."""

    averaged: list[str] = field(default_factory=list)
    """Statistics that apply reads."""

    def scales(self, microbatches: int) -> dict[str, dict[str, float]]:
        """By operator: the values that it reads times a factor, and the factor."""
        scales = {
            op: dict.fromkeys(names, float(microbatches)) for op, names in self.estimates.items()
        }
        for op, names in self.shares.items():
            scales.setdefault(op, {}).update(dict.fromkeys(names, 1.0 / microbatches))
        return scales

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
        apply.sort(key=self._place)
        read = {name for op in apply for name in op.inputs}
        summed = (n for op in compute for n in op.outputs if n in self.sums and n in read)
        return replace(graph, operators=(*compute, *apply)), tuple(summed)

    def _place(self, op: Operator) -> int:
        """Where an operator is in apply: late ones first, but after the parts that they read."""
        if not self.late.isdisjoint(op.outputs):
            return 1
        is_conversion = op.kind == "ne" and self.sums.issuperset(op.inputs)  # a part of booleans
        return 0 if is_conversion else 2


def step_of(graph: Graph, microbatches: int, accumulation: Accumulation | None) -> TrainingStep:
    """The step of a program for one microbatch.

    Args:
        graph: The program.
        microbatches: The number of microbatches.
        accumulation: How its values are computed in microbatches; None if there is only one.
    """
    summed: tuple[str, ...] = ()
    if accumulation is not None:
        graph, summed = accumulation.arrange(graph)
    has_statistics = accumulation is not None and bool(accumulation.estimates)
    digest = fingerprint(graph, microbatches)
    return TrainingStep(graph, microbatches, summed, digest, has_statistics)


def accumulate(
    graph: Graph,
    microbatches: int,
    *,
    equal: Mapping[str, Collection[int]],
    zeros: Collection[str] = (),
    summands: Mapping[str, Collection[str]] = MappingProxyType({}),
    free: Collection[str] = (),
    statistics: bool = False,
) -> Accumulation:
    """Prove that forward and backward compute sums over microbatches, whose totals apply reads.

    An operator whose results only apply reads moves to apply if it needs a total or does not depend
    on the batch: a penalty on the weights, its sum with the loss, and the sum of their gradients.
    An operator that mixes examples but reads no weight is computed early, on the whole batch: the
    divisor of a masked mean, statistics of the batch's numbers, the positions from which a
    generator draws. Parts of the batch that apply reads or the step returns are concatenated. So an
    operator of forward whose results are only returned may mix examples, such as the largest loss:
    apply runs it on the concatenated parts.

    With `statistics`, an operator may also mix single examples, or weights, with a sum over all
    examples, such as the mean of batch normalization or the load of an expert. It then reads an
    estimate of the sum, which follows from the microbatch alone (as in GPipe, section 2.2). So the
    step computes the mean, over the microbatches, of what it computes for a batch that consists of
    copies of the microbatch; for a loss that is a mean, of what it computes for each alone.

    Args:
        graph: The step on the whole batch.
        microbatches: How many parts the batch is cut into.
        equal: For values that are filled with copies: the dims along which all slices are equal.
        zeros: Values that are filled with zeros.
        summands: By operator: what it reads only to add to it, such as a loop's carry.
        free: Inputs that early computation may read.
        statistics: Whether sums over all examples may be estimated.

    Raises:
        AccumulationError: An operator that reads weights mixes examples other than by a sum.
    """
    result = Accumulation(dims_of_examples(graph, lambda n: n % microbatches == 0))
    batch_dim, sums, late = result.batch_dim, result.sums, result.late
    known = known_values(graph, free)
    for name in graph.inputs:
        if name in batch_dim and graph.value(name).role != "batch":
            if name not in known:
                raise _per_example(graph, name, batch_dim)
            result.early[name] = None
    may_wait, ends = read_by_apply_only(graph, batch_dim), returned_only(graph)

    def adds_up(operator: Operator, sums: Collection[str]) -> tuple[str, ...]:
        own = summands.get(operator.name, ())
        return partial_sums(operator, batch_dim, sums, microbatches, equal, zeros, own)

    def read_parts(operator: Operator) -> None:
        for name in dict.fromkeys(operator.inputs):
            if name in batch_dim and name in sums:
                fill_late(name, operator)
            elif name in batch_dim and name not in result.parts:
                result.parts.append(name)

    def fill_late(name: str, reader: Operator) -> None:
        """Let apply fill a value with copies of a sum, as a part of it has a part of the sum."""
        index, _ = graph.producers[name]
        maker = graph.operators[index]
        follow = graph.operators.index(reader)
        readers = [(i, o) for i, o in enumerate(graph.operators) if name in o.inputs]
        in_time = (
            op.phase == APPLY
            or i == follow
            or not late.isdisjoint(op.outputs)
            or (i > follow and op.name in ends)
            for i, op in readers
        )
        if not all(in_time) or any(n in batch_dim and n not in sums for n in maker.inputs):
            raise _mixing(reader, "it combines single examples with a sum over all of them")
        sums.difference_update(maker.outputs)
        compute_late(maker)

    def read_averages(operator: Operator) -> None:
        found = [name for name in dict.fromkeys(operator.inputs) if name in result.statistics]
        if not _are_floats(graph, found):
            raise _mixing(operator, "it needs the mean of whole numbers of all microbatches")
        result.averaged += [name for name in found if name not in result.averaged]

    def compute_late(operator: Operator) -> None:
        read_parts(operator)
        read_averages(operator)
        late.update(operator.outputs)
        result.of_parts.update(operator.outputs)
        for name in operator.outputs:
            batch_dim.pop(name, None)

    def is_own(operator: Operator) -> bool:
        """Whether the mean of what microbatches compute is not what the means of operands give."""
        own = {i for i, n in enumerate(operator.inputs) if n in sums or n in result.statistics}
        is_affine = any(own.issubset(group) for group in operator.rule.linear)
        return late.isdisjoint(operator.inputs) and not is_affine

    def estimate(operator: Operator) -> tuple[str, ...] | None:
        """The results that are sums if some operands are scaled; None if that is of no use."""
        totals = [name for name in dict.fromkeys(operator.inputs) if name in sums]
        own = [name for name in dict.fromkeys(operator.inputs) if name in result.statistics]
        together = tuple(i for i, name in enumerate(operator.inputs) if name in {*totals, *own})
        if not totals or any(graph.value(n).dtype == "bool" for n in (*totals, *own)):
            return None
        if own and together in operator.rule.linear and _are_floats(graph, own):
            result.shares[operator.name] = own
            return operator.outputs
        with suppress(AccumulationError):
            added = adds_up(operator, ())
            result.estimates[operator.name] = totals
            return added
        return None

    for operator in graph.operators:
        if operator.phase == APPLY:
            read_parts(operator)
            read_averages(operator)
        elif operator.name in ends and not result.of_parts.isdisjoint(operator.inputs):
            compute_late(operator)
        elif operator.name in may_wait and not (
            _adds_up_alone(operator, sums, late) or (statistics and is_own(operator))
        ):
            late.update(operator.outputs)
            read_averages(operator)
        elif not result.early.keys() >= set(operator.outputs):
            try:
                added = adds_up(operator, sums)
            except AccumulationError:
                culprits = [name for name in operator.inputs if name in sums & known]
                if known.issuperset(operator.outputs):
                    result.early.update(dict.fromkeys(operator.outputs))
                    continue
                rest = sums - set(culprits)
                try:
                    added = adds_up(operator, rest)
                except AccumulationError:
                    if operator.name in ends:
                        compute_late(operator)
                        continue
                    estimated = estimate(operator) if statistics else None
                    if estimated is None:
                        raise
                    added = estimated
                else:
                    for name in culprits:
                        readers = result.early.setdefault(name, [])
                        if readers is not None:
                            readers.append(operator.name)
            sums.update(added)
            is_estimate = operator.name in result.estimates
            if is_estimate or not result.statistics.isdisjoint(operator.inputs):
                outputs = set(operator.outputs) - batch_dim.keys() - sums
                result.statistics |= outputs
    return result


def _are_floats(graph: Graph, names: Iterable[str]) -> bool:
    """Whether values can be divided without rounding to whole numbers."""
    return all(graph.value(n).dtype.startswith(("float", "bfloat", "complex")) for n in names)


def _batch_factors(
    names: Sequence[str], dims_of: Sequence[Dims], batch_dim: Mapping[str, int]
) -> set[int | None]:
    """The factors that run over examples; None for a batch dim without a leading factor."""
    return {
        next(iter(dims[batch_dim[name]]), None)
        for name, dims in zip(names, dims_of, strict=True)
        if name in batch_dim
    }


def known_values(graph: Graph, free: Collection[str]) -> set[str]:
    """The values of forward and backward that depend on `free` inputs only."""
    known = set(free)
    for op in graph.operators:
        if op.phase != APPLY and known.issuperset(op.inputs):
            known.update(op.outputs)
    return known


def returned_only(graph: Graph) -> set[str]:
    """Operators of forward from whose results no gradient follows: the step returns them."""
    found: set[str] = set()
    needed: set[str] = set()
    for operator in reversed(graph.operators):
        if operator.phase == FORWARD and needed.isdisjoint(operator.outputs):
            found.add(operator.name)
        elif operator.phase != APPLY:
            needed.update(operator.inputs)
    return found


def read_by_apply_only(graph: Graph, batch_dim: Mapping[str, int]) -> set[str]:
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


def partial_sums(
    operator: Operator,
    batch_dim: Mapping[str, int],
    sums: Collection[str],
    microbatches: int,
    equal: Mapping[str, Collection[int]],
    zeros: Collection[str],
    summands: Collection[str],
) -> tuple[str, ...]:
    """The results of an operator that are partial sums over the microbatches.

    It may be some of them: of a layer's backward, the gradients of weights are, those of examples
    are not. A loop or a branch may have examples in several factors, each in values that meet none
    with another inside. A result without a parallel factor does not depend on it, so all of them
    can be cut at once.
    """
    rule = operator.rule
    partial = tuple(i for i, name in enumerate(operator.inputs) if name in sums)
    if batch_dim.keys().isdisjoint(operator.inputs):
        for name in operator.outputs:
            if name in batch_dim and batch_dim[name] not in equal.get(name, ()):
                raise _mixing(operator, "its values depend on the size of the batch")
        if partial and partial not in rule.linear:
            raise _mixing(operator, "it is not linear in sums over the batch", _STATISTICS)
        return operator.outputs if partial else ()
    if partial:
        reason = "it combines single examples with a sum over all of them"
        raise _mixing(operator, reason, _STATISTICS)
    numbers = _batch_factors(operator.inputs, rule.operands, batch_dim)
    for name, dims in zip(operator.outputs, rule.results, strict=True):
        if name in batch_dim and batch_dim[name] in equal.get(name, ()):
            numbers |= set(dims[batch_dim[name]][:1])  # copies that a loop or a branch makes
    factors = [rule.factors[number] for number in numbers if number is not None]
    if len(factors) < len(numbers):
        raise _mixing(operator, "it combines different examples")
    if any(f.kind == "whole" or (f.kind == "reduce" and f.reduction != "sum") for f in factors):
        raise _mixing(operator, "it needs all examples at once")
    for name, dims in with_dims(operator):
        cut = [d for d, dim in enumerate(dims) if not numbers.isdisjoint(dim)]
        if any(dims[d][0] not in numbers or len(numbers.intersection(dims[d])) > 1 for d in cut):
            raise _mixing(operator, "its result interleaves examples of several microbatches")
        if cut != ([batch_dim[name]] if name in batch_dim else []):
            raise _mixing(operator, "it combines different examples")
    if any(factor.size % microbatches for factor in factors):
        raise _mixing(operator, "its result interleaves examples of several microbatches")
    n_sums = sum(factor.kind == "reduce" for factor in factors)
    if n_sums > 1:  # a result may be a product of the two sums
        raise _mixing(operator, "it combines different examples")
    if not n_sums:
        return ()
    added = {i for group in rule.linear if len(group) > 1 for i in group}
    added_to = {operator.inputs[i] for i in added}.union(summands)
    whole = added_to - batch_dim.keys() - set(zeros)
    if whole:
        raise _mixing(operator, f"it would add {min(whole)} once for each microbatch")
    return tuple(name for name in operator.outputs if name not in batch_dim)


def _mixing(operator: Operator, reason: str, way_out: str = "") -> AccumulationError:
    reads = ", ".join(operator.inputs) or "nothing"
    return AccumulationError(
        "a step that runs in microbatches must be a sum over its examples; "
        f"operator {operator.name} ({operator.kind}, reads {reads}) is not: {reason}. "
        f"Use microbatches=1, {way_out}or let operators that mix examples read no weights",
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
