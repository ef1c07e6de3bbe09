"""Strategies for schedules that can be run, and for their edges and placements."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st

from pipesched.base.action import Action
from pipesched.base.edge import Edge
from pipesched.base.kind import Kind
from pipesched.base.placement import Placement
from pipesched.schedule.schedule import Schedule


def actions(n_stages: int = 12, n_microbatches: int = 12) -> st.SearchStrategy[Action]:
    """Actions of every kind, whether or not a schedule can contain them."""
    stage, microbatch = st.integers(0, n_stages - 1), st.integers(0, n_microbatches - 1)
    ends = (Kind.SEND, Kind.RECEIVE)
    once = (Kind.REDUCE, Kind.UPDATE)
    each = [kind for kind in Kind if kind not in (*ends, *once)]
    computing = st.builds(Action, st.sampled_from(each), stage, microbatch)
    at_the_end = st.builds(Action, st.sampled_from(once), stage)
    if n_stages == 1:
        return computing | at_the_end
    edge = edge_sets(n_stages).filter(bool).map(lambda edges: edges[0])
    moving = st.builds(Action.send, edge, microbatch) | st.builds(Action.receive, edge, microbatch)
    return computing | at_the_end | moving


def path(n_stages: int) -> list[tuple[Kind, int]]:
    """The path of one microbatch through the pipeline."""
    stages = range(n_stages)
    return [(Kind.FORWARD, s) for s in stages] + [(Kind.BACKWARD, s) for s in reversed(stages)]


@st.composite
def schedules(
    draw: st.DrawFn, *, max_stages: int = 4, max_microbatches: int = 4, in_order: bool = False
) -> Schedule:
    """Schedules that can be run, most of which no generator makes.

    Every order in which microbatches take single steps along their paths can be run. The list of a
    rank is its part of such an order. Stages are placed on ranks at random.

    Args:
        draw: Passed by Hypothesis.
        max_stages: At least 1.
        max_microbatches: At least 1.
        in_order: Whether every stage runs the microbatches in the order of their numbers.
    """
    n_stages = draw(st.integers(1, max_stages))
    n_microbatches = draw(st.integers(1, max_microbatches))
    steps = path(n_stages)
    movers = draw(st.permutations([m for m in range(n_microbatches) for _ in steps]))
    homes = draw(st.lists(st.integers(0, n_stages - 1), min_size=n_stages, max_size=n_stages))
    rank_of = {home: rank for rank, home in enumerate(sorted(set(homes)))}
    ranks: list[list[Action]] = [[] for _ in rank_of]
    steps_taken: Counter[int] = Counter()
    arrivals: Counter[int] = Counter()
    for mover in movers:
        step = steps_taken[mover]
        kind, stage = steps[step]
        # At each step, the first to arrive becomes microbatch 0, the second 1, and so on. This
        # keeps the order valid.
        microbatch = arrivals[step] if in_order else mover
        ranks[rank_of[homes[stage]]].append(Action(kind, stage, microbatch))
        steps_taken[mover] += 1
        arrivals[step] += 1
    return Schedule("random", n_stages, n_microbatches, tuple(map(tuple, ranks)))


def edge_sets(n_stages: int) -> st.SearchStrategy[tuple[Edge, ...]]:
    """Any edges that point forwards in time, in any order: chains, skips, residuals, gaps."""
    steps = path(n_stages)
    possible = [
        Edge(src, dst) for i, src in enumerate(steps) for dst in steps[i + 1 :] if src[1] != dst[1]
    ]
    return st.lists(st.sampled_from(possible), unique=True).map(tuple) if possible else st.just(())


def placements(
    n_stages: int, n_microbatches: int, *, max_routes: int = 2
) -> st.SearchStrategy[Placement]:
    """Placements of any stage on any rank, with one route or several; each rank has a stage."""

    def build(routes: list[list[int]], route_of: list[int]) -> Placement:
        rank_of = {home: rank for rank, home in enumerate(sorted({h for r in routes for h in r}))}
        return Placement(
            tuple(tuple(rank_of[home] for home in route) for route in routes),
            tuple(route % len(routes) for route in route_of) if len(routes) > 1 else (),
        )

    return st.builds(
        build,
        st.lists(
            st.lists(st.integers(0, n_stages - 1), min_size=n_stages, max_size=n_stages),
            min_size=1,
            max_size=max_routes,
        ),
        st.lists(st.integers(0, max_routes - 1), min_size=n_microbatches, max_size=n_microbatches),
    )
