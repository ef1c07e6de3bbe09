import math
from collections import Counter

import numpy as np
import pytest
from crossmesh import MismatchError, RankError, RankShardError, ShardError
from crossmesh.run.agreement import DONE, READY, Agreement, children_of, parent_of
from crossmesh.testing_transport import Wires
from hypothesis import given, settings
from hypothesis import strategies as st

sizes = st.integers(1, 40)


def agreements(n_ranks, digests=None, wires=None):
    return [
        Agreement(transport, digests[transport.rank] if digests else b"equal")
        for transport in (wires or Wires({}, n_ranks)).transports()
    ]


def slow_wires(n_ranks, seed):
    """Wires on which a message may arrive later than it could."""
    draws = np.random.default_rng(seed)
    return Wires({}, n_ranks, lambda: bool(draws.integers(2)))


def over(agreement):
    """Whether a rank is done and no longer receives messages."""
    return agreement.reached == DONE and agreement.sent()


def talk(ranks, rounds=200):
    """Let the ranks receive each other's messages, for long enough."""
    for _ in range(rounds):
        for agreement in ranks:
            if not over(agreement):
                agreement.hear()


def all_are_done_and_nothing_is_left_over(ranks, wires):
    return all(map(over, ranks)) and not any(wires.ways.values())


@given(sizes)
def test_all_ranks_are_in_one_tree_of_few_levels(n_ranks):
    depths = {0: 0}
    for rank in range(1, n_ranks):
        assert rank in children_of(parent_of(rank), n_ranks)
        depths[rank] = depths[parent_of(rank)] + 1
    assert sum(len(children_of(rank, n_ranks)) for rank in range(n_ranks)) == n_ranks - 1
    assert max(depths.values()) <= math.log2(n_ranks)


@given(sizes, st.integers(0, 2**32 - 1))
def test_a_state_is_reached_only_when_all_ranks_have_reported_it(n_ranks, seed):
    wires = slow_wires(n_ranks, seed)
    ranks = agreements(n_ranks, wires=wires)
    for what in (READY, DONE):
        for rank in np.random.default_rng(seed).permutation(n_ranks):
            assert {agreement.reached for agreement in ranks} == {what - 1}
            ranks[rank].say(what)
            talk(ranks, 1)
        talk(ranks)
        assert {agreement.reached for agreement in ranks} == {what}
    assert all_are_done_and_nothing_is_left_over(ranks, wires)


@given(sizes)
def test_each_pair_of_neighbours_exchanges_four_messages(n_ranks):
    wires = Wires({}, n_ranks)
    sent = Counter()
    transports = wires.transports()
    for transport in transports:
        transport.send = lambda rank, data, tag, send=transport.send: (
            sent.update([rank]) or send(rank, data, tag)
        )
    ranks = [Agreement(transport, b"") for transport in transports]
    for what in (READY, DONE):
        for agreement in ranks:
            agreement.say(what)
        talk(ranks)
    assert sent.total() == 4 * (n_ranks - 1)


@given(sizes.filter(lambda n: n > 1), st.data())
def test_all_know_who_is_missing_when_one_of_them_has_waited_for_long(n_ranks, data):
    what = data.draw(st.sampled_from([READY, DONE]))
    missing = data.draw(st.integers(0, n_ranks - 1))
    others = [rank for rank in range(n_ranks) if rank != missing]
    impatient = data.draw(st.sampled_from(others))
    wires = slow_wires(n_ranks, data.draw(st.integers(0, 2**32 - 1)))
    ranks = agreements(n_ranks, wires=wires)
    if what == DONE:
        for agreement in ranks:
            agreement.say(READY)
        talk(ranks)
    present = [ranks[rank] for rank in others]
    for agreement in present:
        agreement.say(what)
        talk(present, 1)
    ranks[impatient].say_waiting()
    talk(present)
    # The missing rank passes nothing on, so those on its other sides have to ask by themselves.
    for agreement in present:
        agreement.say_waiting()
    talk(present)
    assert {agreement.lacking for agreement in present} == {(missing,)}
    # Once the missing rank takes part, all complete.
    talk(ranks)
    for rest in range(what, DONE + 1):
        ranks[missing].say(rest)
        for agreement in present:
            agreement.say(rest)
        talk(ranks)
    assert all_are_done_and_nothing_is_left_over(ranks, wires)


@settings(max_examples=settings().max_examples // 4)
@given(sizes, st.integers(0, 2**32 - 1))
def test_ranks_complete_even_if_some_ask_who_is_missing_at_any_time(n_ranks, seed):
    draws = np.random.default_rng(seed)
    wires = slow_wires(n_ranks, seed)
    ranks = agreements(n_ranks, wires=wires)
    said = [0] * n_ranks
    for _ in range(500 * n_ranks):
        rank = int(draws.integers(n_ranks))
        if over(ranks[rank]):
            continue
        if ranks[rank].reached == said[rank]:
            said[rank] += 1
            ranks[rank].say(said[rank])
        elif draws.integers(4) == 0:
            ranks[rank].say_waiting()
        ranks[rank].hear()
    assert all_are_done_and_nothing_is_left_over(ranks, wires)


def errors_of(ranks, on_error=lambda agreement, error: None):
    """The errors by rank, after the ranks have received each other's messages for long enough."""
    errors = {}
    for _ in ranks:
        for rank, agreement in enumerate(ranks):
            if rank not in errors:
                try:
                    agreement.hear()
                except (RankError, MismatchError) as error:
                    errors[rank] = error
                    on_error(agreement, error)
    return errors


@given(sizes, st.data())
def test_the_reason_of_a_failed_rank_reaches_all_others(n_ranks, data):
    failing = data.draw(st.integers(0, n_ranks - 1))
    ranks = agreements(n_ranks)
    ranks[failing].say_failed(ShardError("wrong shape"))
    errors = errors_of(ranks, lambda agreement, error: agreement.say_failed(error))
    errors.pop(failing, None)  # its own reason may come back to it
    assert len(errors) == n_ranks - 1
    assert {error.rank for error in errors.values()} <= {failing}
    text = f"all ranks complete a transfer, or none; rank {failing} failed: ShardError: wrong shape"
    assert {str(error) for error in errors.values()} <= {text}
    assert {type(error) for error in errors.values()} <= {RankShardError}


@given(sizes, st.sets(st.integers(0, 39), min_size=1), st.integers(0, 2**32 - 1))
def test_a_rank_that_failed_leaves_when_all_know_why_and_nothing_is_left_over(n, failing, seed):
    draws = np.random.default_rng(seed)
    wires = Wires({}, n, lambda: bool(draws.integers(2)), like_gloo=True)
    transports = wires.transports()
    ranks = [Agreement(transport, b"equal") for transport in transports]
    first = {rank % n for rank in failing}
    errors, left = {}, set()
    for rank in first:
        errors[rank] = ValueError("wrong")
        ranks[rank].say_failed(errors[rank])
    for _ in range(1000 * n):
        rank = int(draws.integers(n))
        if rank in left:
            continue
        if rank in errors:
            if ranks[rank].told():
                assert errors.keys() == set(range(n))
                transports[rank].close()
                left.add(rank)
            continue
        if draws.integers(4) == 0:
            ranks[rank].say(READY)
        try:
            ranks[rank].hear()
        except RankError as error:
            errors[rank] = error
            ranks[rank].say_failed(error)
    assert left == set(range(n))
    heard = [error for rank, error in errors.items() if rank not in first]
    assert {error.rank for error in heard} <= first
    assert {error.reason for error in heard} <= {"ValueError: wrong"}
    assert all(wires.begun[*way, "send"] == wires.begun[*way, "receive"] for way in wires.ways)


@given(sizes.filter(lambda n: n > 1), st.data())
def test_a_rank_with_another_digest_is_detected_by_its_neighbours_in_the_tree(n_ranks, data):
    other = data.draw(st.integers(0, n_ranks - 1))
    digests = [b"another" if rank == other else b"digests" for rank in range(n_ranks)]
    ranks = agreements(n_ranks, digests)
    for agreement in ranks:
        agreement.say(READY)
    errors = errors_of(ranks)
    assert errors
    for rank, error in errors.items():
        assert isinstance(error, MismatchError)
        assert other in (rank, *children_of(rank, n_ranks))
        assert f"rank {other} has" in str(error)
    assert {agreement.reached for agreement in ranks} == {0}


def test_says_which_digests_differ():
    ranks = agreements(2, [b"\x01" * 32, b"\x02" * 32])
    ranks[1].say(READY)
    with pytest.raises(MismatchError, match=r"rank 1 has digest 0202.*, rank 0 has 0101.*; make"):
        ranks[0].hear()
