import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import ArgumentError, ParseError, Placement
from pipesched.testing import placements

counts = st.integers(1, 6)
any_placement = st.tuples(counts, counts).flatmap(lambda sizes: placements(*sizes, max_routes=3))


@given(any_placement)
def test_text_round_trip(placement: Placement) -> None:
    assert Placement.parse(str(placement)) == placement


@given(any_placement)
def test_repr_is_the_constructor_call(placement: Placement) -> None:
    assert eval(repr(placement)) == placement


@given(any_placement)
def test_ranks_stages_and_chunks_agree(placement: Placement) -> None:
    n_microbatches = len(placement.route_of) or 1
    pairs = {(r, s) for r in range(placement.n_ranks) for s in placement.stages_of(r)}
    assert pairs == {(r, s) for s in range(placement.n_stages) for r in placement.ranks_of(s)}
    for stage in range(placement.n_stages):
        for microbatch in range(n_microbatches):
            assert placement.rank(stage, microbatch) in placement.ranks_of(stage)
    for rank in range(placement.n_ranks):
        stages = placement.stages_of(rank)
        assert [placement.chunk(rank, stage) for stage in stages] == list(range(len(stages)))


@given(counts, counts)
def test_looped_deals_the_stages_out(n_ranks: int, n_chunks: int) -> None:
    placement = Placement.looped(n_ranks, n_chunks)
    for rank in range(n_ranks):
        assert placement.stages_of(rank) == tuple(range(rank, n_ranks * n_chunks, n_ranks))
    assert Placement.linear(n_ranks) == Placement.looped(n_ranks, 1)


@given(counts, counts)
def test_v_turns_at_the_ends(n_ranks: int, n_chunks: int) -> None:
    (route,) = Placement.v(n_ranks, n_chunks).routes
    assert sorted(route) == sorted(list(range(n_ranks)) * n_chunks)
    steps = {abs(b - a) for a, b in itertools.pairwise(route)}
    assert steps <= {0, 1}
    assert all(route[c * n_ranks] == route[c * n_ranks - 1] for c in range(1, n_chunks))


@given(counts, counts)
def test_bidirectional_goes_up_and_down(n_ranks: int, n_microbatches: int) -> None:
    placement = Placement.bidirectional(n_ranks, n_microbatches)
    n_up = sum(placement.rank(0, m) == 0 for m in range(n_microbatches))
    assert 0 <= 2 * n_up - n_microbatches <= 1 or n_ranks == 1
    for rank in range(n_ranks):
        assert placement.stages_of(rank) == tuple(sorted({rank, n_ranks - 1 - rank}))


@pytest.mark.parametrize("routes", [(), ((),), ((0, 1), (0,)), ((0, -1),)], ids=str)
def test_impossible_routes_are_refused(routes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ArgumentError, match="a placement has at least one route, each with one"):
        Placement(routes)


@pytest.mark.parametrize(
    ("routes", "route_of"), [(((0,),), (0,)), (((0,), (0,)), ()), (((0,), (0,)), (2,))], ids=str
)
def test_microbatches_take_one_of_several_routes(
    routes: tuple[tuple[int, ...], ...], route_of: tuple[int, ...]
) -> None:
    with pytest.raises(ArgumentError, match="route_of is empty if there is one route"):
        Placement(routes, route_of)


@pytest.mark.parametrize(
    "make", [Placement.looped, Placement.v, Placement.bidirectional], ids=lambda m: m.__name__
)
def test_there_is_a_rank_and_a_chunk(make) -> None:
    with pytest.raises(ArgumentError, match=r"has at least one rank, .* got 0 ranks and 1"):
        make(0, 1)
    with pytest.raises(ArgumentError, match="got 1 ranks and 0"):
        make(1, 0)


def test_a_chunk_is_of_a_stage_that_the_rank_has() -> None:
    with pytest.raises(ArgumentError, match=r"rank 1 has the stages \(1, 2\); got stage=0"):
        Placement.v(2).chunk(1, 0)


@pytest.mark.parametrize("text", ["", "0,", "0 1", "a", "0|0:", "0:x1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match="a placement reads <rank>,<rank>"):
        Placement.parse(text)
