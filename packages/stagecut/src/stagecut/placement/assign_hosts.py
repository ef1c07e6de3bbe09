"""Which hosts each stage gets, so that neighbours in the pipeline are close.

Given is what each stage takes: a part of a host, or whole hosts. Wanted are hosts for each, so that

    first     as few hosts as possible lie between neighbours in the pipeline
    then      as many neighbours as possible share a host
    where     no device is taken twice, and whole hosts follow each other among those of their kind

Hosts stand in the order of their device ids. Of two stages that are apart, those hosts count that
lie between the nearest of theirs. So wherever some assignment has all neighbours on one host or on
adjacent ones, that is what is wanted. Both counts make one number: with S stages, fewer than S
neighbours are apart, so each host between them counts S, and each two neighbours that are apart 1.

The search fills the hosts from first to last. Of two fillings of some hosts with the same stages
the one with the smaller distance is kept, as all that follows is the same: from there on, distances
to stages on filled hosts just grow from host to host. For each host the `width` most promising
fillings go on, at first one, then twice as many each time, until the distance is the least there
can be, or nothing was left out, or the steps are used up. With width 1 hosts are filled in pipeline
order where that is possible. Each filling can be completed, as `Places` decides. Of a submesh of
several kinds only the next free hosts of each kind are tried.

Alpa (5.2) gives an order instead, larger submeshes first, and promises no distance.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stagecut.placement.offers import Places
from stagecut.placement.packing_states import counting_is_enough

_Hosts = tuple[int, ...]
_Take = tuple[tuple[int, int, int], ...]


def nearest_hosts(takes: Sequence[_Take], places: Places, steps: int) -> tuple[_Hosts, ...]:
    """Find the hosts of each stage.

    Args:
        takes: Of each stage in pipeline order, as in `places.takes`; they can be placed together.
        places: The cluster.
        steps: How many additions to a filling to try before the best so far is taken.

    Returns:
        For each stage its hosts, rising, counted through the cluster.
    """
    if not takes:
        return ()
    search = _Search(tuple(takes), places, steps)
    best, width = search.fill(1), 2
    while not (search.is_exhaustive or search.is_over or best.distance == search.least()):
        best, width = min(best, search.fill(width), key=lambda each: each.distance), 2 * width
    hosts: dict[int, _Hosts] = {}
    filling: _Filling | None = best
    while filling is not None:
        hosts.update(filling.added)
        filling = filling.before
    return tuple(hosts[stage] for stage in range(len(takes)))


@dataclass(frozen=True, slots=True)
class _Filling:
    """Some hosts with the stages on them."""

    placed: int = 0
    """Those stages, as bits."""
    used: tuple[int, ...] = ()
    """How many hosts of each kind, always the first ones."""
    idle: tuple[int, ...] = ()
    """How many devices of those hosts no stage has."""
    distance: int = 0
    """Between neighbours that are both placed."""
    bound: int = 0
    """No filling of all stages that follows from this one has a smaller distance."""
    open: tuple[tuple[int, _Hosts], ...] = ()
    """The placed stages with a neighbour that is not, and their hosts."""
    added: tuple[tuple[int, _Hosts], ...] = ()
    """The stages that were placed last, and their hosts."""
    before: _Filling | None = None
    """What they were added to."""


class _Search:
    def __init__(self, takes: Sequence[_Take], places: Places, steps: int) -> None:
        self.places, self.takes, self.steps_left = places, takes, steps
        self.is_exhaustive = True  # whether the last search left nothing out
        kinds = places.kinds
        self._kind_of = [kinds.index(kind) for kind, n in places.hosts for _ in range(n)]
        self._hosts: list[list[int]] = [[] for _ in kinds]  # of each kind
        for host, at in enumerate(self._kind_of):
            self._hosts[at].append(host)
        # Of each kind: the stages that take from it, what they take, and the devices left idle.
        self._stages: list[list[tuple[int, int, int]]] = [[] for _ in kinds]
        self._spare = [
            len(hosts) * kind.n_devices for hosts, kind in zip(self._hosts, kinds, strict=True)
        ]
        for stage, take in enumerate(takes):
            for at, n, m in take:
                self._spare[at] -= n * m
                self._stages[at].append((stage, n, m))
        self._is_counted = [
            counting_is_enough(kind, len(hosts))
            for kind, hosts in zip(kinds, self._hosts, strict=True)
        ]
        # Runs of stages in which each can share a host with the one before it: where they start,
        # how many hosts those before need, and how many devices the stages before take of a host.
        self._starts, self._needed, self._devices = [0], [0], [0]
        for stage, ((at, _, m), *_) in enumerate(takes):
            if stage and not (
                takes[stage - 1][0][0] == at and takes[stage - 1][0][2] + m <= kinds[at].n_devices
            ):
                self._needed.append(self._needed[-1] + self._hosts_of_run(self._starts[-1], stage))
                self._starts.append(stage)
            self._devices.append(self._devices[-1] + m)

    @property
    def is_over(self) -> bool:
        """Whether the steps are used up."""
        return self.steps_left <= 0

    def _distance(self, step: int) -> int:
        """What it counts that the hosts of two neighbours are so many hosts from each other."""
        return 1 + (step - 1) * len(self.takes) if step else 0

    def least(self, first: int = 0, stop: int | None = None) -> int:
        """A distance that some stages in a row have at least.

        One that cannot share a host with the one before it is 1 from it; and those that can still
        need some number of hosts, each 1 from the one before.
        """
        stop = len(self.takes) if stop is None else stop
        if first == stop:
            return 0
        run, last_run = (bisect.bisect(self._starts, at) - 1 for at in (first, stop - 1))
        if run == last_run:
            return self._hosts_of_run(first, stop) - 1
        return (
            self._hosts_of_run(first, self._starts[run + 1])
            + self._needed[last_run]
            - self._needed[run + 1]
            + self._hosts_of_run(self._starts[last_run], stop)
            - 1
        )

    def _hosts_of_run(self, first: int, stop: int) -> int:
        """How many hosts stages of one run need at least."""
        n_devices = self.places.kinds[self.takes[first][0][0]].n_devices
        return -(-(self._devices[stop] - self._devices[first]) // n_devices)

    def fill(self, width: int) -> _Filling:
        """The nearest of the fillings that `width` fillings of each host lead to."""
        self.is_exhaustive = True
        none = (0,) * len(self._hosts)
        waiting: dict[int, dict[object, _Filling]] = {0: {None: _Filling(used=none, idle=none)}}
        for host in range(len(self._kind_of)):
            fillings = sorted(waiting.pop(host, {}).values(), key=_promise)
            self.is_exhaustive &= len(fillings) <= width
            for before in fillings[:width]:
                for stages in self._choices(before, host, width):
                    filling, next_host = self._add(before, host, stages)
                    # Stages with a host further on are told apart: their distance to those that
                    # are not placed yet does not just grow from here.
                    late = tuple(each for each in filling.open if each[1][-1] >= next_host)
                    rivals = waiting.setdefault(next_host, {})
                    key = (filling.placed, filling.used, late)
                    if key not in rivals or filling.bound < rivals[key].bound:
                        rivals[key] = filling
        [finished] = waiting.pop(len(self._kind_of)).values()
        return finished

    def _choices(self, filling: _Filling, host: int, width: int) -> Iterator[tuple[int, ...]]:
        """Stages that can be on the next host, alone or together; earlier stages first."""
        at = self._kind_of[host]
        most = self.places.kinds[at].n_devices
        missing = [each for each in self._stages[at] if not filling.placed >> each[0] & 1]
        whole = (stage for stage, _, m in missing if m == most)
        found = False
        for stage in itertools.islice(whole, width):
            found = True
            yield (stage,)
        self.is_exhaustive &= next(whole, None) is None

        parts = [(stage, m) for stage, _, m in missing if m < most]
        least = most - (self._spare[at] - filling.idle[at])
        sums = [0, *itertools.accumulate(m for _, m in parts)]
        # As many of the next parts as fill the host, and some more the longer the search.
        enough = bisect.bisect_left(sums, most) + width.bit_length() - 1
        for last in range(len(sums)):
            if found and last > enough:
                self.is_exhaustive = False
                return
            for block in _blocks(parts[:last], sums, least, most):
                if self._can_follow(filling, at, block):
                    found = True
                    yield block
                    if self.is_over:
                        self.is_exhaustive = False
                        return

    def _can_follow(self, filling: _Filling, at: int, block: Sequence[int]) -> bool:
        """Whether what is left can be placed once a host of this kind is filled with a block."""
        if self._is_counted[at]:
            return True  # as the number of idle devices is right
        kind = self.places.kinds[at]
        taken = [kind.n_devices] * (filling.used[at] + 1)
        for stage, n, m in self._stages[at]:
            if not (filling.placed >> stage & 1 or stage in block):
                taken += [m] * n
        return self.places.ledgers[at].can_hold(kind.parts.index(m) for m in taken)

    def _add(self, before: _Filling, host: int, stages: tuple[int, ...]) -> tuple[_Filling, int]:
        """Place stages that were chosen for the next host; also tells the host after it."""
        self.steps_left -= 1
        placed, used, idle = before.placed, list(before.used), list(before.idle)
        own = self._kind_of[host]
        if stages and self.takes[stages[0]][0][2] == self.places.kinds[own].n_devices:
            [stage] = stages
            taken: list[int] = []
            for at, n, _ in self.takes[stage]:
                taken += self._hosts[at][used[at] : used[at] + n]
                used[at] += n
            added: tuple[tuple[int, _Hosts], ...] = ((stage, tuple(sorted(taken))),)
        else:
            added = tuple((stage, (host,)) for stage in stages)
            used[own] += 1
            idle[own] += self.places.kinds[own].n_devices
            idle[own] -= sum(self.takes[stage][0][2] for stage in stages)
        distance = before.distance
        near = dict(before.open)
        for stage, hosts in added:
            for other in (stage - 1, stage + 1):
                if other in near:
                    distance += self._distance(
                        min(abs(one - two) for one in hosts for two in near[other])
                    )
            near[stage] = hosts
            placed |= 1 << stage
        next_host = min(
            (hosts[n] for hosts, n in zip(self._hosts, used, strict=True) if n < len(hosts)),
            default=len(self._kind_of),
        )
        bound, still_open = self._bound(distance, near, placed, next_host)
        used_now, idle_now = tuple(used), tuple(idle)
        return (
            _Filling(placed, used_now, idle_now, distance, bound, still_open, added, before),
            next_host,
        )

    def _bound(
        self, distance: int, near: dict[int, _Hosts], placed: int, next_host: int
    ) -> tuple[int, tuple[tuple[int, _Hosts], ...]]:
        """The least distance in the end; and which of the placed stages `near` are still open."""
        still_open = []
        missing = 0  # from this stage on up to the next that is placed
        for stage, hosts in sorted(near.items()):
            before_it = stage > 0 and not placed >> (stage - 1) & 1
            after_it = stage + 1 < len(self.takes) and not placed >> (stage + 1) & 1
            if before_it:
                distance += self.least(missing, stage)
            if before_it or after_it:
                still_open.append((stage, hosts))
                next_distance = self._distance(max(1, next_host - hosts[-1]))
                distance += (before_it + after_it) * next_distance
                missing = stage + 1
        if not placed >> (len(self.takes) - 1) & 1:
            distance += self.least(missing)
        return distance, tuple(still_open)


def _promise(filling: _Filling) -> tuple[int, int, int]:
    """What goes on first: what can be nearest, packs densest, and goes furthest from the start."""
    first_missing = (~filling.placed & (filling.placed + 1)).bit_length()
    return filling.bound, sum(filling.idle), -first_missing


def _blocks(
    parts: Sequence[tuple[int, int]], sums: Sequence[int], least: int, most: int
) -> Iterator[tuple[int, ...]]:
    """Stages, the last of them included, that have at least and at most so many devices together.

    Args:
        parts: Stages and how many devices each takes.
        sums: How many devices the first stages take together, from none of them to all.
        least: Devices, perhaps below 0.
        most: Devices.
    """
    if not parts:
        if least <= 0:
            yield ()
        return
    stage, m = parts[-1]
    if m > most:
        return
    if least <= m:
        yield (stage,)
    for end in range(len(parts) - 1, 0, -1):
        if sums[end] + m < least:
            return
        for block in _blocks(parts[:end], sums, least - m, most - m):
            yield (*block, stage)
