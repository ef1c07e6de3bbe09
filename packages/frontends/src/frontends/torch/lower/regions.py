"""Cuts a program into regions to compile: calls between collectives, cut where layers repeat.

A compiler fuses calls and plans their memory, so a region is as long as possible. But a stage of
many equal layers would be compiled for as long as it has layers. So a run of calls that repeats is
cut into its repetitions, which are equal regions: one of them is compiled for all. The repetitions
are found in the calls themselves, so that it does not matter how a model names its layers; those of
forward, of backward, and of the optimizer are found alike.

A view costs nothing, and a compiled region cannot return one of its operands without costs at each
call. So regions do not return views: they are made again where they are read, in each region.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from frontends.torch.base.compat.operators import is_view, writes_to
from frontends.torch.lower.in_place import may_fail
from frontends.torch.lower.nodes import Compute, LocalProgram, Node, Region, with_last

CanCompile = Callable[[Compute, Sequence[torch.dtype]], bool]

_SHORTEST = 4
"""Shorter regions run call by call: to call a compiled function costs as much."""

_SHORTEST_REPETITION = 8
"""Fewer calls than this are not worth a region of their own."""


def in_regions(
    program: LocalProgram, memory: Mapping[int, int], can_compile: CanCompile
) -> LocalProgram:
    """Return the program with its calls in regions.

    Args:
        program: A program whose collectives are begun and finished.
        memory: From `in_place.memory_of`, for the program before calls overwrite their operands.
        can_compile: Whether a call may be part of a region, given the types of its operands.
    """
    views = {
        register: node
        for node in program.nodes
        if isinstance(node, Compute) and _is_view(node)
        for register in node.results
    }
    state = {*program.reads}
    for register, result in _overwritten(n for n in program.nodes if isinstance(n, Compute)):
        if register in state:
            state.add(result)
    nodes: list[Node] = []
    made: set[int] = set()

    def make(registers: Iterable[int]) -> None:
        for register in registers:
            node = views.get(register)
            if node is not None and register not in made:
                make(node.operands)
                nodes.append(node)
                made.update(node.results)

    for calls in _runs(program, views, can_compile):
        if not isinstance(calls, list):
            make(calls.operands)
            nodes.append(calls)
            continue
        repetitions = _at_repetitions(calls, program)
        for part in (part for one in repetitions for part in _failing_apart(one, state, program)):
            region = _region(part, views)
            if len(part) < _SHORTEST or _overwrites_what_it_reads(region, memory):
                for node in part:
                    make(node.operands)
                    nodes.append(node)
            else:
                nodes.append(region)
    make((*program.totals, *program.writes))
    return with_last(program, _with_results(nodes, program), program.n_registers)


def _is_view(node: Compute) -> bool:
    return node.plain is not None and len(node.operands) == 1 and is_view(node.plain.target)


def _runs(
    program: LocalProgram, views: Iterable[int], can_compile: CanCompile
) -> Iterator[list[Compute] | Node]:
    """Yield the calls between nodes that cannot be compiled, together, and these nodes."""
    calls: list[Compute] = []
    is_made = frozenset(views)
    for node in program.nodes:
        if isinstance(node, Compute) and not is_made.isdisjoint(node.results):
            continue
        if isinstance(node, Compute):
            dtypes = [program.kinds[register].dtype for register in node.operands]
            if can_compile(node, dtypes):
                calls.append(node)
                continue
        if calls:
            yield calls
            calls = []
        yield node
    if calls:
        yield calls


def _failing_apart(
    calls: list[Compute], state: set[int], program: LocalProgram
) -> Iterator[list[Compute]]:
    """Yield the calls, cut between those that may fail and those that overwrite state after them.

    Within a region, a compiler may overwrite state before another call fails.
    """
    end = 1 + max((at for at, node in enumerate(calls) if may_fail(node, program)), default=-1)
    if end and any(register in state for register, _ in _overwritten(calls[end:])):
        yield calls[:end]
        yield calls[end:]
    else:
        yield calls


def _region(calls: Sequence[Compute], views: dict[int, Compute]) -> Region:
    """Return a region of calls, and of the views that they read."""
    nodes: list[Compute] = []
    inside: set[int] = set()
    operands: dict[int, None] = {}

    def read(registers: Iterable[int]) -> None:
        for register in registers:
            if register in inside:
                continue
            node = views.get(register)
            if node is None:
                operands[register] = None
            else:
                add(node)

    def add(node: Compute) -> None:
        read(node.operands)
        nodes.append(node)
        inside.update(node.results)

    for node in calls:
        add(node)
    return Region(tuple(nodes), tuple(operands), (), ())


def _overwrites_what_it_reads(region: Region, memory: Mapping[int, int]) -> bool:
    """Return whether a region overwrites memory that two of its operands may share.

    A compiler that does not know of it might read one of them after the other was overwritten.
    """
    where = [memory[register] for register in region.operands]
    return any(
        where.count(memory[register]) > 1
        for register, _ in _overwritten(region.nodes)
        if register in region.operands
    )


def _overwritten(calls: Iterable[Compute]) -> list[tuple[int, int]]:
    """Return each register that a call overwrites, with the call's result."""
    return [
        (node.operands[node.plain.arguments[0].place], node.results[0])
        for node in calls
        if node.plain is not None and writes_to(node.plain.target)
    ]


def _with_results(nodes: Sequence[Node], program: LocalProgram) -> list[Node]:
    """Return the nodes, with regions that know which of their results are read after them."""
    read = {*program.totals, *program.writes}
    backwards: list[Node] = []
    for node in reversed(nodes):
        if isinstance(node, Region):
            node = _returning(node, read)
        read.update(node.operands)
        backwards.append(node)
    return backwards[::-1]


def _returning(region: Region, read: set[int]) -> Region:
    """Return a region with the results that are read; overwritten operands are not returned."""
    origins: dict[int, int] = {}
    for register, result in _overwritten(region.nodes):
        origin = origins.get(register, register)
        if origin in region.operands:
            origins[result] = origin
    results = [r for node in region.nodes for r in node.results if r in read and not _is_view(node)]
    returned = tuple(r for r in results if r not in origins)
    same = tuple((r, origins[r]) for r in results if r in origins)
    return Region(region.nodes, region.operands, returned, same)


def key_of(region: Region) -> Hashable:
    """Return a key that is equal for regions that do the same, whatever their registers are."""
    numbers: dict[int, int] = {}

    def number(registers: Iterable[int]) -> tuple[int, ...]:
        return tuple(numbers.setdefault(r, len(numbers)) for r in registers)

    return (
        number(region.operands),
        tuple((node.key, number(node.operands), number(node.results)) for node in region.nodes),
        number(region.results),
        tuple(map(number, region.same)),
    )


def _at_repetitions(calls: list[Compute], program: LocalProgram) -> Iterator[list[Compute]]:
    """Yield the parts of a run of calls, cut where it repeats."""
    numbers: dict[Hashable, int] = {}
    tokens = np.array(
        [
            numbers.setdefault(
                (node.key, tuple(program.kinds[r] for r in node.operands)), len(numbers)
            )
            for node in calls
        ]
    )
    start = 0
    for cut in [*_cuts(calls, tokens, 0), len(calls)]:
        if cut > start:
            yield calls[start:cut]
        start = cut


def _cuts(calls: Sequence[Compute], tokens: np.ndarray, offset: int) -> list[int]:
    """Return where to cut a sequence so that repetitions are apart, in increasing order."""
    start, period, count = _longest_repetition(tokens)
    if not count:
        return []
    # It may begin anywhere in a period; best where the fewest values pass from one to the next.
    slack = min(period - 1, _n_periodic(tokens, start, period) - count * period)
    start = min(range(start, start + slack + 1), key=lambda at: _n_passed(calls, at, period))
    end = start + count * period
    before = _cuts(calls[:start], tokens[:start], offset)
    after = _cuts(calls[end:], tokens[end:], offset + end)
    return [*before, *range(offset + start, offset + end + 1, period), *after]


def _n_passed(calls: Sequence[Compute], at: int, period: int) -> int:
    """Return how many values are made within a period before a call and read within one after."""
    made = {register for node in calls[max(at - period, 0) : at] for register in node.results}
    read = {register for node in calls[at : at + period] for register in node.operands}
    return len(made & read)


def _longest_repetition(tokens: np.ndarray) -> tuple[int, int, int]:
    """Return start, period and count of the repetition that leaves the fewest calls to compile."""
    n, best, most = len(tokens), (0, 0, 0), 0
    for period in range(_SHORTEST_REPETITION, n // 2 + 1):
        equal = tokens[:-period] == tokens[period:]
        if np.count_nonzero(equal) <= max(most, period - 1):
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.view(np.int8), [0]))))
        lengths = edges[1::2] - edges[::2]
        longest = int(np.argmax(lengths))
        saved = int(lengths[longest]) // period * period
        if saved > most:
            most, best = saved, (int(edges[2 * longest]), period, saved // period + 1)
    return best


def _n_periodic(tokens: np.ndarray, start: int, period: int) -> int:
    """Return how many tokens from `start` on repeat with a period."""
    equal = tokens[start:-period] == tokens[start + period :]
    return period + (len(equal) if equal.all() else int(np.argmin(equal)))
