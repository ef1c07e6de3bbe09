"""Detects the repeated layers of a graph (AutoDDL 4.5.1).

A model repeats its layers, and its operators are in the order of the layers. So a stretch of
operators of one phase in which each is like the one `period` positions before it is a number of
layers (or of parameters, in an optimizer's update). In it, operators that are a multiple of the
period apart repeat each other. The longest such stretch is taken first, then the longest in what is
left on either side of it, until there is none (-> `repeated_operators`).

Backward runs the layers in reverse, which makes no difference. Two operators are alike if their
phase, kind, rule, FLOP and dtypes are equal; how they are connected is not compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from autoshard.graph.graph_fields import GraphFields


def repeated_operators(graph: GraphFields) -> tuple[int, ...]:
    """For each operator the first one that it repeats, which may be itself.

    Examples:
        >>> from autoshard.programs import deep_mlp_step
        >>> graph = deep_mlp_step(widths=(8,) * 5, batch=4)
        >>> len(graph.operators) > len(set(repeated_operators(graph)))
        True
    """
    alike: dict[Hashable, int] = {}
    kinds = [
        alike.setdefault(
            (
                op.phase,
                op.kind,
                op.rule,
                op.flops,
                op.accesses,
                tuple(graph.value(name).dtype for name in op.inputs + op.outputs),
            ),
            len(alike),
        )
        for op in graph.operators
    ]
    first = list(range(len(kinds)))
    waiting = [(0, len(kinds))]
    while waiting:
        start, stop = waiting.pop()
        period, begin, end = longest_repeat(kinds[start:stop])
        if not period:
            continue
        begin, end = begin + start, end + start
        for index in range(begin + period, end):
            first[index] = first[index - period]
        waiting += [(start, begin), (end, stop)]
    return tuple(first)


def longest_repeat(kinds: Sequence[int]) -> tuple[int, int, int]:
    """The stretch in which the most items equal the item one period earlier.

    Of equally long ones it is that of the shortest period, then the first.

    Returns:
        Period, begin and end (exclusive); (0, 0, 0) if no stretch repeats a whole period.

    Examples:
        >>> longest_repeat([7, 1, 2, 3, 1, 2, 3, 1, 2, 8])
        (3, 1, 9)
    """
    items, best, most = np.asarray(kinds), (0, 0, 0), 0
    for period in range(1, len(items) // 2 + 1):
        same = np.concatenate(([False], items[period:] == items[:-period], [False]))
        changes = np.flatnonzero(same[1:] != same[:-1])
        starts, stops = changes[::2], changes[1::2]
        if not len(starts):
            continue
        lengths = stops - starts
        longest = int(lengths.argmax())
        # fewer equal items than a period: parts of layers are alike, but no layer is repeated
        if lengths[longest] > most and lengths[longest] >= period:
            most = int(lengths[longest])
            best = (period, int(starts[longest]), int(stops[longest]) + period)
    return best
