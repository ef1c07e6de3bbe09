"""Partial schedules of lanes: what can run next, when, and what the whole takes at least.

Bounds. `look` has the earliest start of every lane's next action: not before its rank is free; not
before what it needs has arrived or, if that has not started, its own earliest start and the way
from there; and if the memory is full, not before something can give bytes back. Whatever continues
the partial schedule then takes at least, for any lanes L of one rank,

    min_{i in L} earliest_s[i]  +  sum_{i in L} left_i seconds_i  +  min_{i in L} tail_i

where left is how many actions a lane still has, and tail the longest way from the end of one to
the end of its microbatch. `bound` takes for L each lane alone, and the lanes of the longest tails,
however many (the one-machine relaxation of Carlier, "The one-machine sequencing problem",
European Journal of Operational Research 11, 1982).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from pipesched.base.kind import Kind
from pipesched.solver.packed_state import ActionLane, Lanes


class PartialSchedule(NamedTuple):
    """A partial schedule."""

    done: tuple[int, ...]
    """Per lane, how many of its actions have run."""
    free_s: tuple[float, ...]
    """Per rank, when it can start its next action."""
    held: tuple[float, ...]
    """Per rank, the bytes that it holds."""
    link_free_s: tuple[float, ...]
    """Per link, when it can take the next message."""
    queues: tuple[tuple[float, ...], ...]
    """Per queue, when the results that are not used yet arrive."""
    waiting: frozenset[int] = frozenset()
    """Lanes that let another lane of their rank go first."""


class Moves:
    """How the partial schedules of some lanes go on."""

    def __init__(self, lanes: Lanes) -> None:
        self.pipeline = lanes
        self.lanes, self.bounds, self.overlap = lanes.lanes, lanes.bounds, lanes.overlap
        self.occupied_s = [lane.seconds + self._sending_s(lane) for lane in self.lanes]
        self._forwards = [self._forwards_beside(lane) for lane in self.lanes]
        # The same once more, as what the search reads most, in tuples.
        self._needs = [
            (
                lane.rank,
                len(lane.microbatches),
                self.bounds[lane.rank] - lane.taken if lane.taken > 0 else inf,
                self.bounds[lane.rank] < inf and len(self._forwards[i]) > 1,
                lane.depth,
                lanes.back(lane) if lane.depth < inf else i,
                [(src, self.lanes[src].seconds) for src in lane.follows],
                lane.arrivals,
            )
            for i, lane in enumerate(self.lanes)
        ]
        self._by_tail = [
            [
                (i, len(lane.microbatches), lane.seconds, lane.tail_s)
                for i, lane in sorted(enumerate(self.lanes), key=lambda item: -item[1].tail_s)
                if lane.rank == rank
            ]
            for rank in range(len(self.bounds))
        ]
        # Other lanes of the rank, and whether their next actions never need that of this one (else,
        # only if they are of an older microbatch).
        self._others = [
            [
                (j, j < i or other.microbatches != lane.microbatches)
                for j, other in enumerate(self.lanes)
                if other.rank == lane.rank and j != i
            ]
            for i, lane in enumerate(self.lanes)
        ]
        # What must go before a lane for which there is no room.
        self._before = [
            [at for at in others if self.lanes[at[0]].taken < 0 or len(self._forwards[i]) > 1]
            for i, others in enumerate(self._others)
        ]
        self.may_wait = [self._may_wait(i) for i in range(len(self.lanes))]

    def _sending_s(self, lane: ActionLane) -> float:
        """How long an action's sends keep its rank after it."""
        left_s: dict[int, float] = {}
        longest_s = 0.0
        for departure in () if self.overlap else lane.departures:
            left_s[departure.link] = left_s.get(departure.link, 0.0) + departure.transfer_s
            longest_s = max(longest_s, left_s[departure.link] + departure.latency_s)
        return longest_s

    def _forwards_beside(self, lane: ActionLane) -> list[int]:
        """The lanes of forwards on the lane's rank and route, if it is one of them."""
        if lane.kind is not Kind.FORWARD:
            return []
        return [
            i
            for i, other in enumerate(self.lanes)
            if other.kind is Kind.FORWARD
            and (other.rank, other.microbatches) == (lane.rank, lane.microbatches)
        ]

    def _blocks(self, index: int, done: Sequence[int]) -> bool:
        """Whether a forward takes bytes that an older microbatch needs, so that none can go on.

        The oldest microbatch with a forward to go on the rank needs room for all its stages there,
        while the newer ones keep theirs: they give nothing back before it has.
        """
        after = [(self.lanes[i].taken, done[i] + (i == index)) for i in self._forwards[index]]
        oldest = min(n for _, n in after)
        if oldest == len(self.lanes[index].microbatches):
            return False
        needed = sum(taken * (1 + max(0, n - oldest - 1)) for taken, n in after)
        return needed > self.bounds[self.lanes[index].rank]

    def _may_wait(self, index: int) -> bool:
        """Whether to run a lane's action may be worse than to leave its rank idle that long.

        Only if it takes bytes or a link that another lane of the rank waits for.
        """
        lane = self.lanes[index]
        others = [x for x in self.lanes if x.rank == lane.rank and x is not lane]
        takes = lane.taken > 0 and self.bounds[lane.rank] < inf
        links = {departure.link for departure in lane.departures if departure.transfer_s}
        return (takes and any(other.taken > 0 for other in others)) or any(
            departure.link in links for other in others for departure in other.departures
        )

    def start(self) -> PartialSchedule:
        """Nothing has run."""
        n_lanes, zero = len(self.lanes), (0.0,) * len(self.bounds)
        links = (0.0,) * self.pipeline.n_links
        return PartialSchedule((0,) * n_lanes, zero, zero, links, self.pipeline.queues)

    def has_needed(self, state: PartialSchedule, index: int) -> bool:
        """Whether all that the lane's next action needs has run."""
        lane, n_done = self.lanes[index], state.done[index]
        return all(state.done[src] > n_done for src in lane.follows) and all(
            state.queues[arrival.queue] for arrival in lane.arrivals
        )

    def run(self, state: PartialSchedule, index: int) -> PartialSchedule:
        """Run the lane's next action as early as its rank can."""
        lane = self.lanes[index]
        done, free_s, held = list(state.done), list(state.free_s), list(state.held)
        links, queues = state.link_free_s, state.queues
        start_s = free_s[lane.rank]
        if lane.arrivals or lane.departures:
            changed = list(queues)
            for arrival in lane.arrivals:
                start_s = max(start_s, queues[arrival.queue][0])
                changed[arrival.queue] = queues[arrival.queue][1:]
        stop_s = busy_s = start_s + lane.seconds
        if lane.arrivals or lane.departures:
            link_free_s = list(links)
            for queue, link, transfer_s, latency_s in lane.departures:
                link_free_s[link] = max(stop_s, link_free_s[link]) + transfer_s
                arrived_s = link_free_s[link] + latency_s
                changed[queue] += (arrived_s,)
                if not self.overlap:
                    busy_s = max(busy_s, arrived_s)
            links, queues = tuple(link_free_s), tuple(changed)
        done[index] += 1
        free_s[lane.rank] = busy_s
        held[lane.rank] += lane.taken
        waiting = state.waiting
        if waiting:
            waiting = frozenset(i for i in waiting if self.lanes[i].rank != lane.rank)
        return PartialSchedule(tuple(done), tuple(free_s), tuple(held), links, queues, waiting)

    def wait(self, state: PartialSchedule, index: int) -> PartialSchedule:
        """Let another lane of the rank go before the lane's next action."""
        return state._replace(waiting=state.waiting | {index})

    def look(self, state: PartialSchedule) -> tuple[list[float], list[int]]:
        """Per lane, the earliest start of its next action, infinite if it is done; lanes to run.

        A lane can be run if all that its next action needs has run, and its rank's memory has room.
        """
        earliest_s, ready, full = self._look(state, {})
        if full:
            room_s = {}
            for i in full:
                before = self._others[i] if i in state.waiting else self._before[i]
                room_s[i] = min(
                    (
                        earliest_s[j] + self.lanes[j].seconds
                        for j, independent in before
                        if (independent or state.done[j] < state.done[i]) and j not in full
                    ),
                    default=inf,
                )
            if any(earliest_s[i] < after_s for i, after_s in room_s.items()):
                earliest_s, ready, _ = self._look(state, room_s)
        return earliest_s, ready

    def _look(
        self, state: PartialSchedule, room_s: dict[int, float]
    ) -> tuple[list[float], list[int], list[int]]:
        """Also the lanes that cannot go yet; `room_s`: when they can, at least."""
        done, free_s, held, _, queues, waiting = state
        earliest_s: list[float] = []
        ready, full = [], []
        for i, (rank, n_actions, most_held, shares, depth, back, follows, arrivals) in enumerate(
            self._needs
        ):
            n_done = done[i]
            if n_done == n_actions:
                earliest_s.append(inf)
                continue
            start_s = free_s[rank]
            known = True
            for src, seconds in follows:
                if done[src] <= n_done:
                    known = False
                    time_s = earliest_s[src] + seconds
                    if time_s > start_s:
                        start_s = time_s
            for queue, src, lag_s in arrivals:
                queued = queues[queue]
                if queued:
                    time_s = queued[0]
                else:
                    known = False
                    time_s = earliest_s[src] + lag_s
                if time_s > start_s:
                    start_s = time_s
            if (
                held[rank] > most_held
                or n_done - done[back] >= depth
                or i in waiting
                or (shares and self._blocks(i, done))
            ):
                full.append(i)
                if i in room_s and room_s[i] > start_s:
                    start_s = room_s[i]
            elif known:
                ready.append(i)
            earliest_s.append(start_s)
        return earliest_s, ready, full

    def bound(self, state: PartialSchedule, earliest_s: Sequence[float]) -> tuple[float, float]:
        """What the step takes at least, and the sum of what each rank does."""
        done, free_s = state.done, state.free_s
        best_s = total_s = 0.0
        after_s = self.pipeline.after_s
        for rank_s, on in zip(free_s, self._by_tail, strict=True):
            first_s, work_s = inf, 0.0
            rank_s += after_s  # unless there is work left
            for i, n_actions, seconds, tail_s in on:
                lane_s = (n_actions - done[i]) * seconds
                if lane_s:
                    start_s = earliest_s[i]
                    work_s += lane_s
                    if start_s < first_s:
                        first_s = start_s
                    rank_s = first_s + work_s + tail_s
                    alone_s = start_s + lane_s + tail_s
                    if rank_s > best_s or alone_s > best_s:
                        best_s = max(rank_s, alone_s)
            best_s = max(best_s, rank_s)
            total_s += rank_s
        return best_s, total_s
