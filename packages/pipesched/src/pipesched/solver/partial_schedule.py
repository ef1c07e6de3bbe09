"""Partial schedules of lanes: which actions can run next, when, and a lower bound of the makespan.

Bounds: `look` computes the earliest start of the next action of every lane. It is not before the
rank is free. It is not before the results that it needs have arrived; if an action that produces
one has not started, its earliest start plus the time from there counts. And if the memory is full,
it is not before some action can free bytes. Then every schedule that continues the partial schedule
takes, for any set L of lanes of one rank, at least

    min_{i in L} earliest_s[i]  +  sum_{i in L} left_i seconds_i  +  min_{i in L} tail_i

where `left` is the number of actions that a lane still has, and `tail` the longest path from the
end of an action to the end of its microbatch. `bound` uses as L each lane alone, and for every n
the n lanes with the longest tails (the one-machine relaxation of Carlier, "The one-machine
sequencing problem", European Journal of Operational Research 11, 1982).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from pipesched.base.kind import Kind
from pipesched.solver.packed_state import ActionLane, Lanes


class PartialSchedule(NamedTuple):
    """The state of a partial schedule."""

    done: tuple[int, ...]
    """For each lane, how many of its actions have run."""
    free_s: tuple[float, ...]
    """For each rank, when it can start its next action."""
    held: tuple[float, ...]
    """For each rank, the bytes that it holds."""
    link_free_s: tuple[float, ...]
    """For each link, when it can take the next message."""
    queues: tuple[tuple[float, ...], ...]
    """For each queue, the arrival times of the results that are not used yet."""
    waiting: frozenset[int] = frozenset()
    """The lanes that let another lane of their rank go first."""


class Moves:
    """The ways to continue partial schedules of some lanes."""

    def __init__(self, lanes: Lanes) -> None:
        self.pipeline = lanes
        self.lanes, self.bounds, self.overlap = lanes.lanes, lanes.bounds, lanes.overlap
        self.occupied_s = [lane.seconds + self._sending_s(lane) for lane in self.lanes]
        self._forwards = [self._forwards_beside(lane) for lane in self.lanes]
        # Copies in tuples of the data that the search reads most often.
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
        # For each lane, the other lanes of its rank, each with whether its next action never needs
        # the next one of this lane. If False, it does not need it if it is of an older microbatch.
        self._others = [
            [
                (j, j < i or other.microbatches != lane.microbatches)
                for j, other in enumerate(self.lanes)
                if other.rank == lane.rank and j != i
            ]
            for i, lane in enumerate(self.lanes)
        ]
        # The lanes of which one must go before a lane that does not fit into memory.
        self._before = [
            [at for at in others if self.lanes[at[0]].taken < 0 or len(self._forwards[i]) > 1]
            for i, others in enumerate(self._others)
        ]
        self.may_wait = [self._may_wait(i) for i in range(len(self.lanes))]

    def _sending_s(self, lane: ActionLane) -> float:
        """How long the sends of an action block its rank after it."""
        left_s: dict[int, float] = {}
        longest_s = 0.0
        for departure in () if self.overlap else lane.departures:
            left_s[departure.link] = left_s.get(departure.link, 0.0) + departure.transfer_s
            longest_s = max(longest_s, left_s[departure.link] + departure.latency_s)
        return longest_s

    def _forwards_beside(self, lane: ActionLane) -> list[int]:
        """The lanes of forwards on the rank and route of a forward lane; empty for other lanes."""
        if lane.kind is not Kind.FORWARD:
            return []
        return [
            i
            for i, other in enumerate(self.lanes)
            if other.kind is Kind.FORWARD
            and (other.rank, other.microbatches) == (lane.rank, lane.microbatches)
        ]

    def _blocks(self, index: int, done: Sequence[int]) -> bool:
        """Whether a forward takes bytes that an older microbatch needs, so that the rank is stuck.

        The oldest microbatch that still has forwards on this rank needs memory for all its stages
        here. Meanwhile the newer microbatches keep theirs: they free nothing before the oldest one
        has.
        """
        after = [(self.lanes[i].taken, done[i] + (i == index)) for i in self._forwards[index]]
        oldest = min(n for _, n in after)
        if oldest == len(self.lanes[index].microbatches):
            return False
        needed = sum(taken * (1 + max(0, n - oldest - 1)) for taken, n in after)
        return needed > self.bounds[self.lanes[index].rank]

    def _may_wait(self, index: int) -> bool:
        """Whether running a lane's action may be worse than leaving its rank idle for as long.

        This is only possible if it takes bytes or a link that another lane of the rank waits for.
        """
        lane = self.lanes[index]
        others = [x for x in self.lanes if x.rank == lane.rank and x is not lane]
        takes = lane.taken > 0 and self.bounds[lane.rank] < inf
        links = {departure.link for departure in lane.departures if departure.transfer_s}
        return (takes and any(other.taken > 0 for other in others)) or any(
            departure.link in links for other in others for departure in other.departures
        )

    def start(self) -> PartialSchedule:
        """The state in which nothing has run."""
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
        """The state after the next action of the lane ran as early as possible."""
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
        """The state in which another lane of the rank has to go before this lane's next action."""
        return state._replace(waiting=state.waiting | {index})

    def look(self, state: PartialSchedule) -> tuple[list[float], list[int]]:
        """The earliest start of each lane's next action, and the lanes whose next action can run.

        The start is infinite for a lane that is done. An action can run if everything that it needs
        has run, and it fits into the memory of its rank.
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
        """As `look`, and the lanes that have to wait for others, mostly for memory.

        Args:
            state: The partial schedule.
            room_s: For lanes that have to wait, the earliest time at which they can go.
        """
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
        """A lower bound of the makespan, and the sum of such bounds for each rank."""
        done, free_s = state.done, state.free_s
        best_s = total_s = 0.0
        after_s = self.pipeline.after_s
        for rank_s, on in zip(free_s, self._by_tail, strict=True):
            first_s, work_s = inf, 0.0
            rank_s += after_s  # replaced below if the rank has work left
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
