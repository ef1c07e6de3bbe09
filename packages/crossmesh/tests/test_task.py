import pytest
from crossmesh import Hop, Piece, UnitTask


def task(strategy: str, path=(0, 1, 2, 3), receivers=(1, 2, 3), terms=((0,),), reduction=()):
    pieces = (Piece(0, ((0, 10),)),)
    return UnitTask(0, pieces, (2, 8), terms, reduction, receivers, strategy, path, 1)


@pytest.mark.parametrize(
    ("strategy", "hops"),
    [
        ("broadcast", [(0, 1, 6), (1, 2, 6), (2, 3, 6)]),
        ("signal", [(0, 1, 1), (1, 2, 1), (2, 3, 1)]),
        (
            "global_allgather",
            [(0, 1, 2), (0, 2, 2), (0, 3, 2), (1, 2, 4), (2, 3, 4), (3, 1, 4)],
        ),
    ],
)
def test_hops_are_those_of_section_3_1(strategy, hops):
    assert list(task(strategy).hops) == [Hop(*hop) for hop in hops]


@pytest.mark.parametrize(
    ("n_receivers", "sizes"), [(1, [6]), (4, [1, 2, 1, 2]), (7, [0] + [1] * 6)]
)
def test_shares_of_an_all_gather_are_as_equal_as_can_be(n_receivers, sizes):
    devices = tuple(range(1, n_receivers + 1))
    shares = task("global_allgather", (0, *devices), devices).shares()
    assert shares[0][0] == 2
    assert shares[-1][1] == 8
    assert [stop - start for start, stop in shares] == sizes


def test_terms_of_one_kind_are_added_on_the_way():
    chain = task("broadcast", (4, 0, 1), (0, 1), ((0,), (4,)), (("sum", 2),))
    assert (chain.adders, chain.senders, chain.sender, chain.followers) == ((4, 0), (0, 4), 0, (1,))
    assert list(chain.hops) == [Hop(4, 0, 6), Hop(0, 1, 6)]


def test_terms_of_several_kinds_meet_at_the_last_adder():
    terms = ((0,), (1,), (2,), (3,))
    star = task("broadcast", (0, 1, 2, 3), (3,), terms, (("sum", 2), ("max", 2)))
    assert list(star.hops) == [Hop(0, 3, 6), Hop(1, 3, 6), Hop(2, 3, 6)]


@pytest.mark.parametrize("strategy", ["broadcast", "local_allgather", "global_allgather"])
def test_sender_that_alone_receives_sends_to_nobody(strategy):
    alone = task(strategy, (4, 0), (0,), ((0,), (4,)), (("sum", 2),))
    assert list(alone.hops) == [Hop(4, 0, 6)]
    assert alone.shares() == ()


def test_prints_who_adds_and_who_receives():
    chain = task("broadcast", (4, 0, 1), (0, 1), ((0,), (4,)), (("sum", 2),))
    assert str(chain) == "0: 0[0:10] bytes 2:8 4 + 0 -> 0, 1"
