"""Hypothesis strategies, and judges that share no code with what they judge (extra `testing`)."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Mapping
from functools import cache

from hypothesis import strategies as st

from pipesched.action import Action, Kind
from pipesched.edge import Edge
from pipesched.program import (
    Accumulate,
    Apply,
    Buffer,
    Free,
    Program,
    Receive,
    Received,
    Reduce,
    Run,
    Saved,
    Send,
)
from pipesched.schedule import Schedule
from pipesched.timeline import Timeline, Transfer


def path(n_stages: int) -> list[tuple[Kind, int]]:
    """The way of one microbatch through the pipeline."""
    stages = range(n_stages)
    return [(Kind.FORWARD, s) for s in stages] + [(Kind.BACKWARD, s) for s in reversed(stages)]


@st.composite
def schedules(
    draw: st.DrawFn, *, max_stages: int = 4, max_microbatches: int = 4, in_order: bool = False
) -> Schedule:
    """Schedules that can be run, most of which no generator makes.

    Any order in which microbatches take single steps along their paths can be run; each rank's
    list is its part of such an order. Stages are put on ranks at random.

    Args:
        draw: Given by Hypothesis.
        max_stages: At least 1.
        max_microbatches: At least 1.
        in_order: Whether every stage runs the microbatches in order of their numbers.
    """
    n_stages = draw(st.integers(1, max_stages))
    n_microbatches = draw(st.integers(1, max_microbatches))
    way = path(n_stages)
    movers = draw(st.permutations([m for m in range(n_microbatches) for _ in way]))
    homes = draw(st.lists(st.integers(0, n_stages - 1), min_size=n_stages, max_size=n_stages))
    rank_of = {home: rank for rank, home in enumerate(sorted(set(homes)))}
    ranks: list[list[Action]] = [[] for _ in rank_of]
    steps_taken: Counter[int] = Counter()
    arrivals: Counter[int] = Counter()
    for mover in movers:
        step = steps_taken[mover]
        kind, stage = way[step]
        # Calling the first to arrive at each step microbatch 0, and so on, keeps the order valid.
        microbatch = arrivals[step] if in_order else mover
        ranks[rank_of[homes[stage]]].append(Action(kind, stage, microbatch))
        steps_taken[mover] += 1
        arrivals[step] += 1
    return Schedule("random", n_stages, n_microbatches, tuple(map(tuple, ranks)))


def edge_sets(n_stages: int) -> st.SearchStrategy[tuple[Edge, ...]]:
    """Edges that point forwards in time, in any order: chains, skips, residuals, gaps."""
    way = path(n_stages)
    possible = [
        Edge(src, dst) for i, src in enumerate(way) for dst in way[i + 1 :] if src[1] != dst[1]
    ]
    return st.lists(st.sampled_from(possible), unique=True).map(tuple) if possible else st.just(())


def interpret(program: Program) -> tuple[tuple[str, ...], ...]:
    """Run a program on symbols, with rules as strict as any runtime's.

    A result is a hash of what was run and of all it used. A rank keeps the result of its last run
    only. Messages of an edge arrive in order; sending never waits.

    Returns:
        Per stage, the gradients that were applied, sorted; compare with `expected_gradients`.

    Raises:
        AssertionError: Something is used that is not there, or left behind, or nobody can go on.
    """
    buffers: dict[Buffer, str] = {}
    results: list[tuple[Action, str] | None] = [None] * len(program.ranks)
    streams: dict[Edge, deque[tuple[int, int, int, str]]] = {e: deque() for e in program.edges}
    gradients: list[list[str]] = [[] for _ in range(program.n_stages)]
    reduced: set[int] = set()
    applied: set[int] = set()

    def result_of(rank: int, action: Action) -> str:
        last = results[rank]
        assert last is not None, f"rank {rank} has no result yet"
        assert last[0] == action, f"rank {rank} has the result of {last[0]}, not of {action}"
        return last[1]

    def execute(rank: int, position: int) -> bool:
        """Execute one instruction; False if it has to wait."""
        match program.ranks[rank][position]:
            case Run(action):
                used: list[Buffer] = [
                    Received(edge, action.microbatch)
                    for edge in program.edges
                    if edge.dst == (action.kind, action.stage)
                ]
                saved = Saved(action.stage, action.microbatch)
                if action.kind is Kind.BACKWARD:
                    used.append(saved)
                for buffer in used:
                    assert buffer in buffers, f"{action} uses {buffer}, which is not there"
                value = _digest(action, *(buffers[buffer] for buffer in used))
                if action.kind is Kind.FORWARD:
                    assert saved not in buffers, f"{saved} is overwritten"
                    buffers[saved] = value
                results[rank] = (action, value)
            case Send(edge, microbatch, peer):
                value = result_of(rank, Action(*edge.src, microbatch))
                streams[edge].append((rank, peer, microbatch, value))
            case Receive(edge, microbatch, peer):
                if not streams[edge]:
                    return False
                sender, receiver, sent_microbatch, value = streams[edge].popleft()
                assert (sender, receiver) == (peer, rank), f"{edge}: wrong peer"
                assert sent_microbatch == microbatch, f"{edge}: got {sent_microbatch} out of order"
                assert Received(edge, microbatch) not in buffers, f"{edge} is overwritten"
                buffers[Received(edge, microbatch)] = value
            case Free(buffer):
                assert buffer in buffers, f"{buffer} is freed, but is not there"
                del buffers[buffer]
            case Accumulate(stage, microbatch):
                gradients[stage].append(result_of(rank, Action(Kind.BACKWARD, stage, microbatch)))
            case Reduce(stage):
                assert len(gradients[stage]) == program.n_microbatches, f"{stage} reduces too early"
                assert stage not in reduced, f"{stage} is reduced twice"
                reduced.add(stage)
            case Apply(stage):
                assert stage in reduced, f"{stage} is applied before it is reduced"
                assert stage not in applied, f"{stage} is applied twice"
                applied.add(stage)
        return True

    heads = [0] * len(program.ranks)
    ends = [len(instructions) for instructions in program.ranks]
    while heads != ends:
        before = list(heads)
        for rank in range(len(heads)):
            while heads[rank] < ends[rank] and execute(rank, heads[rank]):
                heads[rank] += 1
        assert heads != before, f"deadlock at {heads}"
    assert not buffers, f"never freed: {', '.join(map(str, buffers))}"
    assert not any(streams.values()), "sent, but never received"
    assert len(applied) == program.n_stages, f"applied only {sorted(applied)}"
    return tuple(tuple(sorted(of_stage)) for of_stage in gradients)


def expected_gradients(
    n_stages: int, n_microbatches: int, edges: tuple[Edge, ...]
) -> tuple[tuple[str, ...], ...]:
    """What `interpret` must return, found without any order: each result from those it needs."""

    @cache
    def value(kind: Kind, stage: int, microbatch: int) -> str:
        used = [value(*edge.src, microbatch) for edge in edges if edge.dst == (kind, stage)]
        if kind is Kind.BACKWARD:
            used.append(value(Kind.FORWARD, stage, microbatch))
        return _digest(Action(kind, stage, microbatch), *used)

    return tuple(
        tuple(sorted(value(Kind.BACKWARD, stage, m) for m in range(n_microbatches)))
        for stage in range(n_stages)
    )


def _digest(action: Action, *used: str) -> str:
    return hashlib.sha256(" ".join([str(action), *used]).encode()).hexdigest()


def check_timeline(
    timeline: Timeline,
    seconds: Mapping[tuple[Kind, int], float],
    edge_s: Mapping[Edge, float],
) -> None:
    """A timeline (with overlap) keeps the schedule's order and waits for exactly what it must.

    Every start equals the latest of what it waits for, so the timeline is both possible and the
    earliest. Exact: use times whose sums are exact in floating point.

    Args:
        timeline: What to judge.
        seconds: Of each stage's forward and backward.
        edge_s: Of each edge.

    Raises:
        AssertionError: Something happens too early, too late, not at all, or in another order.
    """
    schedule = timeline.schedule
    rank_of = {action.stage: rank for rank, row in enumerate(schedule.ranks) for action in row}
    stop_s = {event.action: event.stop_s for event in timeline.events}
    arrival_s = {(t.edge, t.microbatch): t.stop_s for t in timeline.transfers}
    wanted = {(edge, m) for edge in edge_s for m in range(schedule.n_microbatches)}
    assert arrival_s.keys() == wanted
    assert len(timeline.transfers) == len(wanted)
    for rank, actions in enumerate(schedule.ranks):
        events = [event for event in timeline.events if event.rank == rank]
        assert [event.action for event in events] == list(actions)
        free_s = 0.0
        for event in events:
            here = (event.action.kind, event.action.stage)
            waits = [arrival_s[e, event.action.microbatch] for e in edge_s if e.dst == here]
            assert event.start_s == max([free_s, *waits]), event
            assert event.stop_s == event.start_s + seconds[here], event
            free_s = event.stop_s
    links: dict[tuple[int, int], list[Transfer]] = {}
    for transfer in timeline.transfers:
        link = rank_of[transfer.edge.src[1]], rank_of[transfer.edge.dst[1]]
        links.setdefault(link, []).append(transfer)
    for transfers in links.values():
        free_s = 0.0
        for transfer in sorted(transfers, key=lambda t: (t.start_s, t.stop_s)):
            made_s = stop_s[Action(*transfer.edge.src, transfer.microbatch)]
            assert transfer.start_s == max(free_s, made_s), transfer
            assert transfer.stop_s == transfer.start_s + edge_s[transfer.edge], transfer
            free_s = transfer.stop_s
