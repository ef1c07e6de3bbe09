"""When each value of a graph takes memory, and in how many copies.

An input is held all the time; a result from its operator to its last reader; a value that the first
phase saves for later ones, once for each microbatch in flight; a sum over microbatches, all the
time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autoshard.graph.graph_fields import GraphFields

Kind = Literal[
    "parameter", "optimizer_state", "input", "gradient", "activation", "temporary", "copy"
]
"""`gradient`: computed after the first phase, and read in a phase after its own; `activation`:
computed in the first phase and read in a later one; `copy`: the result of a conversion;
`temporary`: the rest."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a value is held, as indices of operators, and in how many copies."""

    first: int
    last: int
    """Exclusive."""
    copies: int
    """The number of microbatches whose value is held at the same time."""


def lifetimes(graph: GraphFields, in_flight: int, saved: Sequence[str]) -> dict[str, Lifetime]:
    """The lifetime of every value, by name.

    With several microbatches in flight, a saved activation counts as held, for all of them, until
    the end of the phase that reads it last: an upper bound.

    Args:
        graph: The program.
        in_flight: Microbatches whose saved activations are held at a time.
        saved: The graph's `saved_activations`.
    """
    read, held, ends = graph.readers, set(saved), phase_ends(graph)
    end = max(len(graph.operators), 1)
    leaves = {output.value: ends[graph.phase_of_output(output)] for output in graph.outputs}
    lives = {}
    for name in graph.by_name:
        copies = in_flight if name in held else 1
        if name not in graph.producers:
            lives[name] = Lifetime(0, end, copies)
            continue
        first = graph.producers[name][0]
        last = read[name][-1] if read[name] else first
        made_in, last_read_in = graph.operators[first].phase, graph.operators[last].phase
        summed = graph.phases[made_in].repeats > graph.phases[last_read_in].repeats
        until = max(last + 1, leaves.get(name, 0))
        if copies > 1:
            lives[name] = Lifetime(0, max(until, ends[last_read_in]), copies)
        else:
            lives[name] = Lifetime(0 if summed else first, until, copies)
    return lives


def kinds_of(graph: GraphFields, saved: Sequence[str]) -> dict[str, Kind]:
    """The kind of memory that each value takes, by name.

    Args:
        graph: The program.
        saved: The graph's `saved_activations`.
    """
    held = set(saved)
    kinds: dict[str, Kind] = {}
    for name, read in graph.readers.items():
        role = graph.value(name).role
        if name not in graph.producers:
            kinds[name] = role if role in ("parameter", "optimizer_state") else "input"
            continue
        made_in = graph.operators[graph.producers[name][0]].phase
        later = bool(read) and graph.operators[read[-1]].phase > made_in
        kinds[name] = "activation" if name in held else "gradient" if later else "temporary"
    return kinds


def saved_activations(graph: GraphFields) -> tuple[str, ...]:
    """Names of values that the first phase computes, or reads as data, and a later phase reads."""
    names = []
    for name, read in graph.readers.items():
        phases = [graph.operators[index].phase for index in read]
        if name in graph.producers:
            begins = graph.operators[graph.producers[name][0]].phase == 0
        else:
            begins = graph.value(name).role in ("batch", "activation") and 0 in phases
        if begins and max(phases, default=0) > 0:
            names.append(name)
    return tuple(names)


def phase_ends(graph: GraphFields) -> list[int]:
    """For each phase: the index after that of its last operator."""
    phases = [operator.phase for operator in graph.operators]
    return [bisect_right(phases, phase) for phase in range(len(graph.phases))]
