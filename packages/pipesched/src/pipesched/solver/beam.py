"""Beam search over partial schedules, exact if the beam is wide enough.

A level holds partial schedules of equally many actions. One is continued as in Giffler and
Thompson's active schedules: of all actions that can run, take the one that would end first, with
its sends if its rank waits for them; some best schedule continues with an action of the same rank
that starts before that end, since if all started later, there would be room for this one. (Where it
would take memory or a link that others need, the rank may also wait, see `Moves.may_wait`.) Of two
partial schedules in which every lane is equally far, one that is nowhere earlier is dropped. What
then is left but for the `width` most promising is dropped too, and the least of their bounds is a
bound of what was missed: if it is not below the best schedule found, that one is optimal.

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
"""The lanes that ran, latest first: the others, and the latest."""


class Node(NamedTuple):
    """A partial schedule and what is known of it."""

    bound_s: float
    """No schedule that continues it takes less."""
    total_s: float
    """Sum of the ranks' bounds: of two with one bound, the smaller is the more promising."""
    state: PartialSchedule
    """How far it is."""
    earliest_s: list[float]
    """Per lane, the earliest start of its next action."""
    ready: list[int]
    """Lanes that can be run."""
    path: Path
    """What ran."""


_PROMISE = itemgetter(0, 1)


class Beam(NamedTuple):
    """What a beam search comes to."""

    node: Node | None
    """The best complete schedule that was found; None if none is better than `below_s`."""
    bound_s: float
    """No schedule takes less than this, or than `below_s` if that is less."""
    n_steps: int
    """Partial schedules that were continued."""


def root(moves: Moves) -> Node:
    """The empty schedule."""
    return _node(moves, moves.start(), None)


def beam_search(moves: Moves, width: int, below_s: float = inf) -> Beam:
    """Look for a schedule that takes less than `below_s`, keeping `width` partial ones a level."""
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
    """The partial schedules of one more action that may lead to less than `below_s`."""
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
    """Those of equally far partial schedules than which no other is everywhere as early."""
    kept: list[Node] = []
    for node in sorted(group, key=_PROMISE) if len(group) > 1 else group:
        if not any(_is_as_early(other.state, node.state) for other in kept):
            kept.append(node)
    return kept


def _is_as_early(one: PartialSchedule, other: PartialSchedule) -> bool:
    return (
        all(a <= b for a, b in zip(one.free_s, other.free_s, strict=True))
        and all(a <= b for a, b in zip(one.link_free_s, other.link_free_s, strict=True))
        and all(
            a <= b
            for x, y in zip(one.queues, other.queues, strict=True)
            for a, b in zip(x, y, strict=True)
        )
    )
