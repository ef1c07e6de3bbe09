"""The collectives that serve all readers of one value in one phase.

They form a tree from how the value is made to what is asked for. Copies that nobody gains by are
left out, and ways that begin alike share their first collectives.
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
    """The single collectives that make a value available in all specs that are asked for.

    Args:
        converter: For the mesh.
        value: What is converted.
        made: How it is there.
        asked: By its readers in one phase, in their order.
        copies: What may be made first, for others to start from, where that is cheaper.

    Returns:
        (before, after) of each collective or slice, each after what it starts from; and the seconds
        of one run, infinite if there is no way.
    """
    wanted = tuple(dict.fromkeys(spec for spec in asked if spec != made))
    useful = tuple(dict.fromkeys(spec for spec in copies if spec != made))
    plans = (
        _attached(converter, value, made, (*order, *wanted))
        for count in range(len(useful) + 1)
        for chosen in combinations(useful, count)
        for order in permutations(chosen)
    )
    found, seconds = min(plans, key=lambda plan: plan[1])
    needed = set(wanted)
    kept: list[Hop] = []
    for src, dst in reversed(found):
        if dst in needed:
            kept.append((src, dst))
            needed.add(src)
    return tuple(reversed(kept)), seconds


def _attached(
    converter: Converter, value: Value, made: Spec, order: Sequence[Spec]
) -> tuple[list[Hop], float]:
    """Make one spec after the other, each from the cheapest of what is there by then."""
    there, hops, total = [made], list[Hop](), 0.0
    for dst in order:
        if dst in there:
            continue
        seconds = converter.seconds(value, spec_set(tuple(there)), spec_set((dst,)))[:, 0]
        src = there[int(seconds.argmin())]
        if seconds.min() == float("inf"):
            return [], float("inf")
        for after in converter.path(value, src, dst):
            if after not in there:
                hops.append((src, after))
                total += _seconds(converter, value, src, after)
                there.append(after)
            src = after
    return hops, total


def _seconds(converter: Converter, value: Value, src: Spec, dst: Spec) -> float:
    return float(converter.seconds(value, spec_set((src,)), spec_set((dst,)))[0, 0])
