from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import Costs, Placement, chain
from pipesched.solver.beam import beam_search
from pipesched.solver.packed_state import (
    Lanes,
    alone,
    busy_depths,
    fitting_share,
    lanes_of,
    memory_bound_s,
    with_depths,
)
from pipesched.solver.partial_schedule import Moves


def whole(placement: Placement, n_microbatches: int, costs: Costs, cap: float = inf) -> Lanes:
    """Lanes of whole backwards on a chain, each forward taking one byte."""
    n_stages = placement.n_stages
    bounds = (cap,) * placement.n_ranks
    ones = [1] * n_stages
    return lanes_of(n_microbatches, costs, placement, chain(n_stages), ones, None, bounds)


@given(st.integers(1, 8))
def test_what_keeps_equal_ranks_busy_is_what_1f1b_has_in_flight(n_ranks: int) -> None:
    lanes = whole(Placement.linear(n_ranks), 8, Costs(2, 4))
    assert busy_depths(lanes)[:n_ranks] == list(range(n_ranks, 0, -1))


def test_latency_asks_for_more_in_flight() -> None:
    lanes = whole(Placement.linear(3), 8, Costs(2, 4, latency_s=3))
    assert busy_depths(lanes)[:3] == [30 / 6, 18 / 6, 1]


@given(st.integers(1, 6), st.integers(2, 20), st.integers(0, 3))
def test_the_fitting_share_fits(n_ranks: int, cap: int, latency_s: int) -> None:
    lanes = whole(Placement.v(n_ranks), 8, Costs(2, 4, latency_s=latency_s), cap)
    limited = with_depths(lanes, fitting_share(lanes))
    for rank in range(n_ranks):
        depths = [lane.depth for lane in limited.lanes if lane.rank == rank and lane.depth < inf]
        assert sum(depths) <= cap


@pytest.mark.parametrize(("rank", "bound_s"), [(0, 78), (1, 70), (3, 72)])
def test_a_rank_alone_takes_what_its_memory_asks_for(rank: int, bound_s: int) -> None:
    """Rank 0 waits 24 s for what it has sent on; rank 3 never, but starts 9 s late."""
    lanes = whole(Placement.linear(4), 8, Costs(2, 4, latency_s=1), cap=4)
    beam = beam_search(Moves(alone(lanes, rank)), 64)
    assert beam.node is not None
    assert (beam.node.bound_s, beam.bound_s) == (bound_s, bound_s)


def test_memory_is_held_for_the_way_there_and_back() -> None:
    """Rank 0: 8 microbatches of 30 s, in 4 places that fill in 2 s and empty in 4 s each."""
    lanes = whole(Placement.linear(4), 8, Costs(2, 4, latency_s=1), cap=4)
    assert memory_bound_s(lanes) == (8 * 30 + 6 * (2 + 4)) / 4
