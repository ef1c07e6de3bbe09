"""Beam search over partial schedules, exact if the beam is wide enough.

A level holds partial schedules with equally many actions. A partial schedule is continued as in
Giffler and Thompson's active schedules. Of all actions that can run, take the one that would end
first, including its sends if its rank waits for them. Some best schedule continues with an action
of the same rank that starts before this end: if all of them started later, there would be room for
this action. (If it would take memory or a link that others need, the rank may also wait, see
`Moves.may_wait`.) If two partial schedules have run equally many actions of every lane, and one is
nowhere earlier than the other, it is dropped. Then all but the `width` most promising are dropped.
The smallest of the bounds of the dropped ones is a bound of what was missed: if it is not below the
best schedule that is found, this schedule is optimal.

References:
    Giffler, Thompson, "Algorithms for Solving Production-Scheduling Problems", Operations Research
    8(4), 1960 (active schedules).
    Sabuncuoglu, Bayiz, "Job shop scheduling with beam search", EJOR 118(2), 1999.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from operator import itemgetter
from typing import NamedTuple

from pipesched.solver.partial_schedule import Moves, PartialSchedule

Path = tuple["Path", int] | None
"""The lanes whose actions ran, as a linked list: the path before, and the latest lane."""


class Node(NamedTuple):
    """A partial schedule with its bounds."""

    bound_s: float
    """No schedule that continues it takes less."""
    total_s: float
    """Sum of the bounds of the ranks. Of two nodes with the same bound, the one with the smaller
    sum is more promising."""
    state: PartialSchedule
    """The partial schedule."""
    earliest_s: list[float]
    """For each lane, the earliest start of its next action."""
    ready: list[int]
    """The lanes whose next action can run."""
    path: Path
    """The actions that ran."""


_PROMISE = itemgetter(0, 1)


class Beam(NamedTuple):
    """The result of a beam search."""

    node: Node | None
    """The best complete schedule that was found; None if none is better than `below_s`."""
    bound_s: float
    """No schedule takes less than this, or than `below_s` if that is less."""
    n_steps: int
    """Number of partial schedules that were continued."""


def root(moves: Moves) -> Node:
    """The node of the empty schedule."""
    return _node(moves, moves.start(), None)


def beam_search(moves: Moves, width: int, below_s: float = inf) -> Beam:
    """Search for a schedule that takes less than `below_s`, with `width` nodes on each level."""
    level, missed_s, n_steps = [root(moves)], inf, 0
    for _ in range(moves.pipeline.n_actions):
        groups: dict[object, list[Node]] = {}
        for node in level:
            n_steps += 1
            for child in _children(moves, node, below_s):
                groups.setdefault((child.state.done, child.state.waiting), []).append(child)
        level = [node for group in groups.values() for node in _undominated(group)]
        level.sort(key=_PROMISE)
        if not level:
            break
        if len(level) > width:
            missed_s = min(missed_s, level[width].bound_s)
            del level[width:]
    return Beam(
        level[0] if level else None, min([missed_s, *(n.bound_s for n in level[:1])]), n_steps
    )


def _node(moves: Moves, state: PartialSchedule, path: Path) -> Node:
    earliest_s, ready = moves.look(state)
    return Node(*moves.bound(state, earliest_s), state, earliest_s, ready, path)


def _children(moves: Moves, node: Node, below_s: float) -> Iterator[Node]:
    """The nodes with one more action that may lead to a schedule below `below_s`."""
    while True:
        state, earliest_s = node.state, node.earliest_s
        if not node.ready:
            return
        end_s, first = min([(earliest_s[i] + moves.occupied_s[i], i) for i in node.ready])
        rank = moves.lanes[first].rank
        for i in node.ready:
            if i == first or (moves.lanes[i].rank == rank and earliest_s[i] < end_s):
                child = _node(moves, moves.run(state, i), (node.path, i))
                if child.bound_s < below_s:
                    yield child
        if not moves.may_wait[first]:
            return
        node = _node(moves, moves.wait(state, first), node.path)
        if node.bound_s >= below_s:
            return


def _undominated(group: list[Node]) -> list[Node]:
    """The nodes without those for which another node is everywhere as early.

    All nodes have run equally many actions of every lane.
    """
    kept: list[Node] = []
    for node in sorted(group, key=_PROMISE) if len(group) > 1 else group:
        if not any(_is_as_early(other.state, node.state) for other in kept):
            kept.append(node)
    return kept


def _is_as_early(one: PartialSchedule, other: PartialSchedule) -> bool:
    """Whether no rank, link or result of `one` is later than that of `other`."""
    return (
        all(a <= b for a, b in zip(one.free_s, other.free_s, strict=True))
        and all(a <= b for a, b in zip(one.link_free_s, other.link_free_s, strict=True))
        and all(
            a <= b
            for x, y in zip(one.queues, other.queues, strict=True)
            for a, b in zip(x, y, strict=True)
        )
    )
