import itertools

import pytest
from pipesched import Edge, EdgeError, Kind, ParseError, chain, gpipe, lower
from pipesched.testing import path

ENDPOINTS = path(4)


@pytest.mark.parametrize(("src", "dst"), list(itertools.product(ENDPOINTS, ENDPOINTS)))
def test_exactly_the_edges_forwards_in_time_between_two_stages_exist(
    src: tuple[Kind, int], dst: tuple[Kind, int]
) -> None:
    if src[1] == dst[1]:
        with pytest.raises(EdgeError, match="an edge joins two stages"):
            Edge(src, dst)
    elif ENDPOINTS.index(src) > ENDPOINTS.index(dst):
        with pytest.raises(EdgeError, match=r"an edge points forwards in F0, F1, \.\.\., B1, B0"):
            Edge(src, dst)
    else:
        assert Edge.parse(str(Edge(src, dst))) == Edge(src, dst)


def test_negative_stages_are_refused() -> None:
    with pytest.raises(EdgeError, match="stages are counted from 0; got src="):
        Edge((Kind.FORWARD, -1), (Kind.FORWARD, 0))


def test_other_texts_are_refused() -> None:
    with pytest.raises(ParseError, match=r"an edge reads .* got 'F0-F1'"):
        Edge.parse("F0-F1")


@pytest.mark.parametrize("n_stages", range(1, 6))
def test_the_chain_joins_each_step_of_the_way_to_the_next(n_stages: int) -> None:
    steps = itertools.pairwise(path(n_stages))
    assert chain(n_stages) == tuple(Edge(a, b) for a, b in steps if a[1] != b[1])


def test_skips_go_up_and_their_gradients_come_back() -> None:
    edges = [str(edge) for edge in chain(4, skips=[(0, 3)])]
    assert edges == [
        *("F0->F1", "F0->F3", "F1->F2", "F2->F3"),
        *("B3->B2", "B2->B1", "B3->B0", "B1->B0"),
    ]
    assert chain(4, [(0, 3)], backward=False) == chain(4, [(0, 3)])[:4]


@pytest.mark.parametrize(
    ("skip", "message"),
    [
        ((0, 3), "an edge joins stages 0 to 2; got F0->F3"),
        ((2, 0), "an edge points forwards"),
        ((0, 1), "edges differ from each other; got F0->F1 twice"),
    ],
)
def test_impossible_skips_are_refused(skip: tuple[int, int], message: str) -> None:
    with pytest.raises(EdgeError, match=message):
        chain(3, [skip])


def test_an_edge_joins_forwards_and_backwards_only() -> None:
    with pytest.raises(EdgeError, match="an edge joins forwards and backwards; got F0->W1"):
        Edge((Kind.FORWARD, 0), (Kind.WEIGHT_GRADIENT, 1))


def test_an_edge_out_of_the_pipeline_is_refused() -> None:
    edge = Edge.parse("F0->F2")
    with pytest.raises(EdgeError, match="an edge joins stages 0 to 1; got F0->F2"):
        lower(gpipe(2, 1), [edge])


def test_an_edge_given_twice_is_refused() -> None:
    with pytest.raises(EdgeError, match="edges differ from each other; got F0->F1 twice"):
        lower(gpipe(2, 1), [Edge.parse("F0->F1")] * 2)
