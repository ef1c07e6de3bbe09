"""The hosts of each stage, chosen so that neighbours in the pipeline are close.

Each stage takes a part of a host, or whole hosts. We want the hosts of each stage, such that

    first     as few hosts as possible lie between neighbours in the pipeline
    then      as many neighbours as possible share a host
    where     no device is taken twice, and whole hosts follow each other among those of their kind

Hosts are ordered by their device ids. The hosts between two stages are those between the nearest
two of their hosts. So an assignment that has all neighbours on the same host or on adjacent hosts
is optimal in the first count. Both counts are combined in one number, the *distance*: among S
stages, fewer than S pairs of neighbours share no host, so each host in between counts S, and each
such pair counts 1.

The search fills the hosts from first to last. A *filling* is some of the hosts with the stages on
them. Of two fillings of the same hosts with the same stages it keeps the one with the smaller
distance, as they can be continued in the same ways: from here on, distances to stages on filled
hosts grow by the same amount from host to host. This is a beam search: at each host it continues
the `width` most promising fillings. The width is first 1 and then doubles, until the distance is
the smallest possible, or no filling was left out, or the steps are used up. With width 1, hosts are
filled in pipeline order where that is possible. Every filling can be completed, as `Places`
decides. For a submesh of several kinds, only the next free hosts of each kind are tried.

Alpa (5.2) instead places stages in an order, larger submeshes first, and guarantees no distance.
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
        takes: What each stage takes, in pipeline order, in the form of `places.takes`. The stages
            can be placed together.
        places: The cluster.
        steps: How many additions to a filling to try before the best result so far is returned.

    Returns:
        For each stage the indices of its hosts in the cluster, ascending.
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
    """The stages that are placed, as bits."""
    used: tuple[int, ...] = ()
    """How many hosts of each kind are filled, always the first ones of the kind."""
    idle: tuple[int, ...] = ()
    """For each kind, the devices of its filled hosts that no stage has."""
    distance: int = 0
    """Sum over the neighbours that are both placed."""
    bound: int = 0
    """Lower bound of the distance of every complete filling that continues this one."""
    open: tuple[tuple[int, _Hosts], ...] = ()
    """The placed stages with a neighbour that is not placed, and their hosts."""
    added: tuple[tuple[int, _Hosts], ...] = ()
    """The stages that were placed last, and their hosts."""
    before: _Filling | None = None
    """The filling to which those stages were added."""


class _Search:
    def __init__(self, takes: Sequence[_Take], places: Places, steps: int) -> None:
        self.places, self.takes, self.steps_left = places, takes, steps
        self.is_exhaustive = True  # whether the last search left nothing out
        kinds = places.kinds
        self._kind_of = [kinds.index(kind) for kind, n in places.hosts for _ in range(n)]
        self._hosts: list[list[int]] = [[] for _ in kinds]  # the hosts of each kind
        for host, at in enumerate(self._kind_of):
            self._hosts[at].append(host)
        # For each kind: the stages that take from it, what they take, and the devices left idle.
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
        # A run is a maximal sequence of stages in which each can share a host with the previous
        # one. For each run: its first stage, and how many hosts the runs before it need at least.
        # For each stage: the devices per host that the stages before it take, summed.
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
        """The distance of two neighbours whose nearest hosts are `step` hosts from each other."""
        return 1 + (step - 1) * len(self.takes) if step else 0

    def least(self, first: int = 0, stop: int | None = None) -> int:
        """A lower bound of the distance of consecutive stages, from `first` to before `stop`.

        A stage that cannot share a host with the previous one adds 1. Stages that can share hosts
        need some number of hosts all the same, and each of these adds 1 but the first.
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
        """How many hosts some stages of one run need at least."""
        n_devices = self.places.kinds[self.takes[first][0][0]].n_devices
        return -(-(self._devices[stop] - self._devices[first]) // n_devices)

    def fill(self, width: int) -> _Filling:
        """The complete filling with the smallest distance that a beam search of `width` finds."""
        self.is_exhaustive = True
        none = (0,) * len(self._hosts)
        waiting: dict[int, dict[object, _Filling]] = {0: {None: _Filling(used=none, idle=none)}}
        for host in range(len(self._kind_of)):
            fillings = sorted(waiting.pop(host, {}).values(), key=_promise)
            self.is_exhaustive &= len(fillings) <= width
            for before in fillings[:width]:
                for stages in self._choices(before, host, width):
                    filling, next_host = self._add(before, host, stages)
                    # Open stages with a host further on are part of the key: their distances to
                    # stages that are not placed yet do not simply grow from host to host.
                    late = tuple(each for each in filling.open if each[1][-1] >= next_host)
                    rivals = waiting.setdefault(next_host, {})
                    key = (filling.placed, filling.used, late)
                    if key not in rivals or filling.bound < rivals[key].bound:
                        rivals[key] = filling
        [finished] = waiting.pop(len(self._kind_of)).values()
        return finished

    def _choices(self, filling: _Filling, host: int, width: int) -> Iterator[tuple[int, ...]]:
        """The sets of stages that can be placed on the next host; earlier stages first."""
        at = self._kind_of[host]
        most = self.places.kinds[at].n_devices
        missing = [each for each in self._stages[at] if not filling.placed >> each[0] & 1]
        whole = (stage for stage, _, m in missing if m == most)
        has_choice = False
        for stage in itertools.islice(whole, width):
            has_choice = True
            yield (stage,)
        self.is_exhaustive &= next(whole, None) is None

        parts = [(stage, m) for stage, _, m in missing if m < most]
        least = most - (self._spare[at] - filling.idle[at])
        sums = [0, *itertools.accumulate(m for _, m in parts)]
        # As many of the next parts as fill the host, and more of them with a larger width.
        enough = bisect.bisect_left(sums, most) + width.bit_length() - 1
        for last in range(len(sums)):
            if has_choice and last > enough:
                self.is_exhaustive = False
                return
            for block in _blocks(parts[:last], sums, least, most):
                if self._can_follow(filling, at, block):
                    has_choice = True
                    yield block
                    if self.is_over:
                        self.is_exhaustive = False
                        return

    def _can_follow(self, filling: _Filling, at: int, block: Sequence[int]) -> bool:
        """Whether the other stages can still be placed after a host is filled with `block`."""
        if self._is_counted[at]:
            return True  # `_blocks` has limited the idle devices, and counting is enough
        kind = self.places.kinds[at]
        parts = [kind.n_devices] * (filling.used[at] + 1)
        for stage, n, m in self._stages[at]:
            if not (filling.placed >> stage & 1 or stage in block):
                parts += [m] * n
        return self.places.ledgers[at].can_hold(kind.parts.index(m) for m in parts)

    def _add(self, before: _Filling, host: int, stages: tuple[int, ...]) -> tuple[_Filling, int]:
        """Place stages on the next host; returns the filling and the host that is next after it."""
        self.steps_left -= 1
        placed, used, idle = before.placed, list(before.used), list(before.idle)
        its_kind = self._kind_of[host]
        if stages and self.takes[stages[0]][0][2] == self.places.kinds[its_kind].n_devices:
            [stage] = stages
            its_hosts: list[int] = []
            for at, n, _ in self.takes[stage]:
                its_hosts += self._hosts[at][used[at] : used[at] + n]
                used[at] += n
            added: tuple[tuple[int, _Hosts], ...] = ((stage, tuple(sorted(its_hosts))),)
        else:
            added = tuple((stage, (host,)) for stage in stages)
            used[its_kind] += 1
            idle[its_kind] += self.places.kinds[its_kind].n_devices
            idle[its_kind] -= sum(self.takes[stage][0][2] for stage in stages)
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
        """A lower bound of the final distance, and those of the stages `near` that are open."""
        still_open = []
        missing = 0  # the stages from this one to the next in `near` are not placed
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
    """Sort key, the most promising first.

    Smallest bound, then fewest idle devices, then most stages placed from the start without a gap.
    """
    first_missing = (~filling.placed & (filling.placed + 1)).bit_length()
    return filling.bound, sum(filling.idle), -first_missing


def _blocks(
    parts: Sequence[tuple[int, int]], sums: Sequence[int], least: int, most: int
) -> Iterator[tuple[int, ...]]:
    """Sets of stages that contain the last one and take from `least` to `most` devices together.

    Args:
        parts: Stages, and how many devices each takes.
        sums: How many devices the first 0, 1, 2, ... stages take together.
        least: Devices, perhaps below 0. Then no stage at all is also a choice, if `parts` is empty.
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
