"""The collectives that bring one value to all its readers in one phase.

They form a tree, from the spec in which the value is computed to those that its readers need.
Copies that no reader gains by are left out, and paths that begin with the same collectives share
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

from shardspec import Spec

from autoshard.graph.graph_fields import Value
from autoshard.space.conversion import Converter, spec_set

Hop = tuple[Spec, Spec]


def convert(
    converter: Converter,
    value: Value,
    made: Spec,
    asked: Sequence[Spec],
    copies: Sequence[Spec] = (),
) -> tuple[tuple[Hop, ...], float]:
    """The single collectives that make a value available in all specs that its readers need.

    Args:
        converter: Prices the conversions on the mesh.
        value: The value to convert.
        made: The spec in which it is computed or stored.
        asked: The specs that its readers in one phase need, in their order.
        copies: Specs that may be made first, for other conversions to start from, if that is
            cheaper.

    Returns:
        (before, after) of each collective or slice, in an order in which they can run; and the
        seconds of one run, infinite if some spec cannot be reached.
    """
    wanted = tuple(dict.fromkeys(spec for spec in asked if spec != made))
    useful = tuple(dict.fromkeys(spec for spec in copies if spec != made))
    plans = (
        _attached(converter, value, made, (*order, *wanted))
        for count in range(len(useful) + 1)
        for chosen in combinations(useful, count)
        for order in permutations(chosen)
    )
    hops, seconds = min(plans, key=lambda plan: plan[1])
    needed = set(wanted)
    kept: list[Hop] = []
    for src, dst in reversed(hops):
        if dst in needed:
            kept.append((src, dst))
            needed.add(src)
    return tuple(reversed(kept)), seconds


def _attached(
    converter: Converter, value: Value, made: Spec, order: Sequence[Spec]
) -> tuple[list[Hop], float]:
    """Make one spec after the other, each from the cheapest spec that is available by then.

    Returns:
        The collectives and slices, and their seconds; none and infinite if one cannot be reached.
    """
    available, hops, total = [made], list[Hop](), 0.0
    for dst in order:
        if dst in available:
            continue
        seconds = converter.seconds(value, spec_set(tuple(available)), spec_set((dst,)))[:, 0]
        src = available[int(seconds.argmin())]
        if seconds.min() == float("inf"):
            return [], float("inf")
        for after in converter.path(value, src, dst):
            if after not in available:
                hops.append((src, after))
                total += _seconds(converter, value, src, after)
                available.append(after)
            src = after
    return hops, total


def _seconds(converter: Converter, value: Value, src: Spec, dst: Spec) -> float:
    return float(converter.seconds(value, spec_set((src,)), spec_set((dst,)))[0, 0])
