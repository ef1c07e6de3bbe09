"""Find the blocks of operators that a model repeats; as layers, they are equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import stagecut
from autoshard import Graph, Operator

_MOST_GROUPS = 8
"""The most different blocks that a model may repeat; a Wide-ResNet has 4 [chosen: twice that]."""

_LEAST_SHARE = 0.5
"""The least share of the FLOPs in repeated blocks for which layers follow them [chosen]: with less,
most of the model would be in layers that nothing balances."""

_FEWEST = 4
"""The fewest layers for which they follow blocks, so that stages can be cut [chosen]."""

Spans = tuple[tuple[int, int], ...]
"""First and last operator of each layer, included."""


def blocks_of(graph: Graph, forward: Sequence[Operator]) -> Spans | None:
    """The layers that follow repeated blocks; None if blocks do not repeat, or do too little work.

    Args:
        graph: The graph of the step.
        forward: Operators of forward that compute with examples, in program order.
    """
    numbers: dict[object, int] = {}
    words = [numbers.setdefault((op.kind, op.rule, op.flops), len(numbers)) for op in forward]
    boundaries = boundaries_of(graph, forward)
    total = sum(op.flops for op in forward)
    for n_groups in range(1, _MOST_GROUPS + 1):
        try:
            spans = stagecut.repeated_blocks(words, boundaries, n_groups)
        except stagecut.InvalidInputError:
            return None
        repeated = 0.0
        contents = [tuple(words[first : last + 1]) for first, last in spans]
        for place, ((first, last), content) in enumerate(zip(spans, contents, strict=True)):
            if content in contents[max(0, place - 1) : place] + contents[place + 1 : place + 2]:
                repeated += sum(op.flops for op in forward[first : last + 1])
        if repeated >= _LEAST_SHARE * total and len(spans) >= _FEWEST:
            return spans if n_groups == 1 else _without_light(forward, spans)
    return None


def _without_light(forward: Sequence[Operator], spans: Spans) -> Spans:
    """Merge layers of little work into the previous one; at the beginning, into the next one.

    Little is less than 1 % of the FLOPs of the largest. The repetitions of a block have the same
    work, so that all of them stay, or none does.
    """
    least = max(sum(op.flops for op in forward[a : b + 1]) for a, b in spans) / 100
    joined: list[tuple[int, int]] = []
    waiting: int | None = None
    for first, last in spans:
        start = first if waiting is None else waiting
        if sum(op.flops for op in forward[start : last + 1]) >= least:
            joined.append((start, last))
            waiting = None
        elif joined:
            joined[-1] = (joined[-1][0], last)
        else:
            waiting = start
    return tuple(joined)


def boundaries_of(graph: Graph, forward: Sequence[Operator]) -> list[stagecut.Boundary]:
    """The values that operators of forward pass to others, as stagecut's boundaries."""
    readers: dict[str, list[int]] = defaultdict(list)
    for index, op in enumerate(forward):
        for name in dict.fromkeys(op.inputs):
            readers[name].append(index)
    return [
        stagecut.Boundary(index, graph.value(name).n_bytes, tuple(readers[name]))
        for index, op in enumerate(forward)
        for name in op.outputs
        if name in readers
    ]
