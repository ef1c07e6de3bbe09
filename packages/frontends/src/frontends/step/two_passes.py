"""Split a step whose loss compares all examples into two passes, each of which is a sum over them.

A contrastive loss compares each example with all others, so its gradients are no sum over
microbatches. But it reads little of each example: the features that the layers below make of it.
A first pass computes the features of all microbatches, and from these, once, the gradients of the
loss by the features. The second pass computes forward again, and goes backward from these
gradients, which are then as good as labels: each microbatch takes those of its examples. The sum of
its gradients is exactly that of the whole batch (Gao et al., Scaling Deep Contrastive Learning
Batch Size under Memory Limited Setup, arXiv 2101.06983, section 3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from autoshard import Graph, Operator

from frontends.errors import AccumulationError
from frontends.step.accumulate import (
    known_values,
    partial_sums,
    read_by_apply_only,
    returned_only,
)
from frontends.step.examples import dims_of_examples
from frontends.step.step import APPLY

_LONGEST = 4
"""How many operators are looked at together, such as a reshape and the gather that reads it; with
fewer, whatever does not make less by itself would end the search [chosen]."""


def made_by_first_pass(
    graph: Graph,
    microbatches: int,
    *,
    equal: Mapping[str, Collection[int]],
    zeros: Collection[str] = (),
    summands: Mapping[str, Collection[str]] = MappingProxyType({}),
    free: Collection[str] = (),
) -> dict[str, int | None]:
    """The values that a first pass computes for the second one: gradients by features, and more.

    The first pass has the operators that mix examples, and all that these depend on. An operator
    that reads what they make belongs to it, too, if less is to be passed on then: the sum for the
    gradient of a temperature reads the similarities of all pairs.

    Args:
        graph: The step on the whole batch.
        microbatches: How many parts the batch is cut into.
        equal: For values that are filled with copies: the dims along which all slices are equal.
        zeros: Values that are filled with zeros.
        summands: By operator: what it reads only to add to it, such as a loop's carry.
        free: Inputs of which nothing follows from weights.

    Returns:
        The values, and of each the dim that holds the examples, if any. None of them if there is no
        such pass: nothing mixes examples; or what follows from those that do reads matrices of
        weights, as layers above a batch norm do, so that it is most of the step.
    """
    batch_dim = dims_of_examples(graph, lambda n: n % microbatches == 0)
    known = known_values(graph, free)
    waiting = read_by_apply_only(graph, batch_dim) | returned_only(graph)
    compute = [
        op for op in graph.operators if op.phase != APPLY and not known.issuperset(op.outputs)
    ]

    sums: set[str] = set()
    mixing: set[str] = set()
    for op in compute:
        if op.name in waiting:
            continue
        own = summands.get(op.name, ())
        try:
            sums.update(partial_sums(op, batch_dim, sums - known, microbatches, equal, zeros, own))
        except AccumulationError:
            mixing.add(op.name)
    if not mixing:
        return {}
    first = _ancestors(compute, mixing)
    matrices = _matrices(graph, known)
    mixed: set[str] = set()
    for op in compute:
        if op.name in mixing or (op.name in first and not mixed.isdisjoint(op.inputs)):
            mixed.update(op.outputs)
            if not matrices.isdisjoint(op.inputs):
                return {}
    wanted = _fewest_bytes(graph, compute, first, mixed, known, matrices)
    return {name: batch_dim.get(name) for op in compute for name in op.outputs if name in wanted}


def _ancestors(operators: Sequence[Operator], names: Collection[str]) -> set[str]:
    """The operators with these names, and all that they depend on."""
    found: set[str] = set()
    needed: set[str] = set()
    for op in reversed(operators):
        if op.name in names or not needed.isdisjoint(op.outputs):
            found.add(op.name)
            needed.update(op.inputs)
    return found


def _matrices(graph: Graph, known: Collection[str]) -> set[str]:
    """Weights with several dims, and what has as many and is computed from these alone."""

    def is_matrix(name: str) -> bool:
        return sum(size > 1 for size in graph.value(name).shape) > 1

    state = {n for n in graph.inputs if n not in known and graph.value(n).role != "batch"}
    found = set(filter(is_matrix, state))
    for op in graph.operators:
        if op.inputs and found.issuperset(op.inputs):
            found.update(filter(is_matrix, op.outputs))
    return found


def _fewest_bytes(
    graph: Graph,
    operators: Sequence[Operator],
    first: set[str],
    mixed: set[str],
    known: Collection[str],
    matrices: Collection[str],
) -> set[str]:
    """The values that are passed on, after operators have joined the first pass that lessen them.

    Args:
        graph: The step.
        operators: Its forward and backward.
        first: The operators that the first pass has in any case.
        mixed: What they make of several examples.
        known: What is computed before any pass.
        matrices: What no operator of the first pass reads beside what is mixed.
    """
    outside: dict[str, list[Operator]] = {}
    for op in graph.operators:
        for name in dict.fromkeys(op.inputs):
            if op.name not in first:
                outside.setdefault(name, []).append(op)
    returned = {output.value for output in graph.outputs}
    available = {name for op in operators if op.name in first for name in op.outputs}
    available.update(graph.inputs, known)
    available.difference_update(matrices)

    def n_bytes(names: Iterable[str], without: Collection[str] = ()) -> int:
        """The bytes of those that are passed on, if some operators belong to the first pass."""
        return sum(
            graph.value(name).n_bytes
            for name in names
            if name in returned or any(op.name not in without for op in outside.get(name, ()))
        )

    def chain_from(op: Operator) -> Iterator[list[Operator]]:
        """The operator, then with the only one that reads its result, and so on."""
        chain, there = [op], available.union(op.outputs)
        yield chain
        while len(chain) < _LONGEST:
            readers = [op for name in chain[-1].outputs for op in outside.get(name, ())]
            if (
                len(readers) != 1
                or readers[0].phase == APPLY
                or not there.issuperset(readers[0].inputs)
            ):
                return
            chain = [*chain, readers[0]]
            there.update(readers[0].outputs)
            yield chain

    def joins(chain: Sequence[Operator]) -> bool:
        before = {name for op in chain for name in op.inputs} & mixed
        after = before.union(*(op.outputs for op in chain))
        return n_bytes(after, [op.name for op in chain]) < n_bytes(before)

    grows = True
    while grows:
        grows = False
        for op in operators:
            if (
                op.name in first
                or mixed.isdisjoint(op.inputs)
                or not available.issuperset(op.inputs)
            ):
                continue
            for joined in next(filter(joins, chain_from(op)), ()):
                first.add(joined.name)
                mixed.update(joined.outputs)
                available.update(joined.outputs)
                for name in dict.fromkeys(joined.inputs):
                    outside[name].remove(joined)
                grows = True
    return {name for name in mixed if n_bytes([name])}
