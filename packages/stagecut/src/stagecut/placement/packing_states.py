"""Which stages can still be placed on equal hosts, as an automaton that reads stage after stage.

Whether stages can be placed together depends on all of them, while a dynamic program sees one at a
time. So it needs a state, which says what the stages so far leave possible. Two sets of stages have
the same state if the same further stages complete both. Where counting devices is enough (see
`host_packing`), the state is the number of devices taken. Elsewhere we enumerate the states:

- All that matters about the stages placed so far is how many devices of each host are free: a
  *layout*. The same stages can be placed with several layouts; a state starts as the set of them.
- A layout whose free pieces fit into those of another layout is dropped, because the other can take
  whatever this one can take.
- States that allow the same further stages are merged, from the last to the first. This gives the
  smallest possible number of states (minimisation of an acyclic automaton, Revuz 1992).
"""

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from stagecut.placement.host_packing import HostKind, uncoverable

_Layout = tuple[int, ...]
"""The number of free pieces of 0, 1, 2, ... devices, each within one host; none has 0 devices."""

_Layouts = frozenset[_Layout]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The states of some equal hosts; in state 0 nothing is placed."""

    after: NDArray[np.intp]
    """Shape (n_parts, n_states): the state after a stage takes a part of a host, the last part
    being a whole host; -1 if the part does not fit. The new state has a larger number."""
    complete: NDArray[np.bool_]
    """Shape (n_states,): whether the stages placed so far may be all."""

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.complete)

    def can_hold(self, parts: Iterable[int]) -> bool:
        """Whether these parts (indices) can be placed together and may be all."""
        state = 0
        for part in parts:
            state = int(self.after[part, state])
            if state < 0:
                return False
        return bool(self.complete[state])

    def after_whole(self, n_hosts: int) -> NDArray[np.intp]:
        """The state that follows each state when a stage takes `n_hosts` whole hosts; -1 if none.

        Shape (n_states,).
        """
        state, step = np.arange(self.n_states), self.after[-1]
        while n_hosts:  # `step` takes 1, 2, 4, ... hosts
            padded = np.append(step, -1)  # the entry that index -1 reads
            state = padded[state] if n_hosts % 2 else state
            step, n_hosts = padded[step], n_hosts // 2
        return state


def ledger(kind: HostKind, n_hosts: int, use_all: bool) -> Ledger:
    """The states of `n_hosts` hosts of one kind; with `use_all`, every device must be taken."""
    return (_counted if counting_is_enough(kind, n_hosts) else _explored)(kind, n_hosts, use_all)


def counting_is_enough(kind: HostKind, n_hosts: int) -> bool:
    """Whether stages can be placed on the hosts whenever these have enough devices."""
    if n_hosts == 1:
        return True
    if any(kind.n_devices % part for part in kind.parts):
        return False
    # Devices that stay free count as parts of one device, even if a stage may not have such a part.
    bad = uncoverable(kind.n_devices, tuple(sorted({1, *kind.parts})))
    return bad is None or sum(bad) > n_hosts * kind.n_devices


def _counted(kind: HostKind, n_hosts: int, use_all: bool) -> Ledger:
    n_devices = n_hosts * kind.n_devices
    taken = np.arange(n_devices + 1)
    after = taken + np.asarray(kind.parts)[:, None]
    complete = taken == n_devices if use_all else np.ones(n_devices + 1, dtype=np.bool_)
    return Ledger(np.where(after <= n_devices, after, -1), complete)


def _explored(kind: HostKind, n_hosts: int, use_all: bool) -> Ledger:
    steps: dict[_Layouts, tuple[_Layouts, ...]] = {}
    waiting = [frozenset({(0,) * kind.n_devices + (n_hosts,)})]
    while waiting:
        layouts = waiting.pop()
        if layouts not in steps:
            steps[layouts] = tuple(_place(layouts, part, kind) for part in kind.parts)
            waiting += filter(None, steps[layouts])

    def n_free(layouts: _Layouts) -> int:
        return sum(n * free for free, n in enumerate(next(iter(layouts))))

    numbers: dict[tuple[bool, tuple[int, ...]], int] = {}
    number_of: dict[_Layouts, int] = {frozenset(): -1}
    for layouts in sorted(steps, key=n_free):  # a state comes after all that follow it
        complete = not use_all or n_free(layouts) == 0
        after = tuple(number_of[each] for each in steps[layouts])
        is_dead_end = not complete and max(after) < 0
        number = -1 if is_dead_end else numbers.setdefault((complete, after), len(numbers))
        number_of[layouts] = number
    # Number the states in the reverse order, so that the state in which nothing is placed is 0.
    states = list(reversed(numbers))
    table = np.array([after for _, after in states]).T
    return Ledger(
        np.where(table < 0, -1, len(states) - 1 - table),
        np.array([complete for complete, _ in states]),
    )


def _place(layouts: _Layouts, part: int, kind: HostKind) -> _Layouts:
    """The layouts after one more part is taken, without those that fit into another of them."""
    remaining = {
        _exchange(layout, piece, _split(piece - part, kind.parts))
        for layout in layouts
        for piece in range(part, len(layout))
        if layout[piece]
    }
    return frozenset(
        each
        for each in remaining
        if not any(each != other and _fits(each, other) for other in remaining)
    )


def _exchange(layout: _Layout, piece: int, pieces: Iterable[int]) -> _Layout:
    """The layout with one free piece replaced by smaller ones."""
    changed = list(layout)
    changed[piece] -= 1
    for each in pieces:
        changed[each] += 1
    return tuple(changed)


@cache
def _split(free: int, parts: tuple[int, ...]) -> tuple[int, ...]:
    """Free devices of a host, divided into pieces into which everything fits that fits into them.

    The pieces are as small as this allows, so that layouts which allow the same are equal.
    """
    if free == 0:
        return ()
    # Devices that stay free count as parts of one device.
    fillings = list(_fillings(free, (*(part for part in reversed(parts) if part > 1), 1)))
    for piece in range(1, free // 2 + 1):
        if all(piece in _sums(filling) for filling in fillings):
            return (*_split(piece, parts), *_split(free - piece, parts))
    return (free,)


def _fillings(n_devices: int, parts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All multisets of parts that sum up to `n_devices`; `parts` is descending."""
    if n_devices == 0:
        yield ()
    for at, part in enumerate(parts):
        if part <= n_devices:
            for rest in _fillings(n_devices - part, parts[at:]):
                yield (part, *rest)


def _sums(parts: tuple[int, ...]) -> set[int]:
    """The sums of all subsets of the parts."""
    sums = {0}
    for part in parts:
        sums |= {each + part for each in sums}
    return sums


def _fits(inner: _Layout, outer: _Layout) -> bool:
    """Whether the free pieces of `inner` fit into those of `outer`, with equally many devices."""
    # We may assume that pieces which both layouts have fill each other: if another piece lay in the
    # outer one of them, it could be exchanged with the inner one. So only the difference counts.
    return _differ_and_fit(tuple(map(operator.sub, outer, inner)))


@cache
def _differ_and_fit(more: tuple[int, ...]) -> bool:
    """`_fits`, given how many more pieces of each size the outer layout has."""
    largest = max((piece for piece, n in enumerate(more) if n < 0), default=0)
    return largest == 0 or any(
        _differ_and_fit(_exchange(more, free, (free - largest, largest)))
        for free in range(largest + 1, len(more))
        if more[free] > 0
    )
