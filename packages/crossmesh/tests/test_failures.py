"""Whatever happens to one rank of a transfer, all ranks raise an error in time that says why."""

import re
from itertools import count

import numpy as np
import pytest
from crossmesh import (
    ChecksumError,
    CrossmeshError,
    DeadlineError,
    Execution,
    MismatchError,
    PlanError,
    RankError,
    RankShardError,
    ShardError,
    StallError,
    TransferError,
    TransportError,
    execute,
    plan,
)
from crossmesh.base.reasons import culprits_of, error_of, reason_of, silent_of
from crossmesh.run.transport import CONTROL
from crossmesh.testing import shards_of
from crossmesh.testing_transport import Wires, WireTransport, take_turns
from crossmesh.transfer.arrays import check_apart
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec

# Rows on devices 0 and 1 to columns on devices 2 to 4, each replicated from there to 5 to 7.
SRC = Layout((6, 6), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0R"))
DST = Layout((6, 6), Mesh((2, 3), ("x", "y"), (2, 3, 4, 5, 6, 7)), Spec.parse("RS1"))
RANK_OF = {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3, 7: 3}
PLAN = plan(SRC, DST, "i4", RANK_OF, chunks=3, chunk_bytes=1)
WHOLE = np.arange(36, dtype="i4").reshape(6, 6)
RANKS = range(4)


def shards(rank):
    return {d: s.copy() for d, s in shards_of(SRC, WHOLE).items() if RANK_OF[d] == rank}


def outs(rank):
    mine = [device for device in DST.mesh.device_ids if RANK_OF[device] == rank]
    return {device: np.full(DST.local_shape(device), -1, "i4") for device in mine}


def begin(wires=None, transports=None, frozen=False, **by_rank):
    """An execution on each rank. The clock advances whenever it is read, unless it is frozen."""
    wires = wires or Wires(RANK_OF, 4)
    ticks = count()
    defaults = {"plan": PLAN, "shards": None, "window": 2, "checksums": False, "out": None}
    defaults |= {"deadline_s": 1.0, "stall_s": None}
    executions = []
    for rank, transport in enumerate(transports or wires.transports()):
        own = defaults | {name: values[rank] for name, values in by_rank.items()}
        shards_, plan_ = own.pop("shards"), own.pop("plan")
        executions.append(
            Execution(
                plan_,
                shards(rank) if shards_ is None else shards_,
                transport,
                clock=lambda: 0.0 if frozen else next(ticks) / 2_000,
                **own,
            )
        )
    return executions, wires


def test_ranks_with_different_plans_refuse_before_the_first_byte():
    other = plan(SRC, DST, "i4", RANK_OF, chunks=2, chunk_bytes=1)
    given_out = [outs(rank) for rank in RANKS]
    executions, wires = begin(plan=[PLAN, PLAN, other, PLAN], out=given_out)
    errors = take_turns(executions)
    assert all(
        isinstance(error, MismatchError) or "MismatchError" in str(error) for error in errors
    )
    assert any(isinstance(error, MismatchError) for error in errors)
    rule = "all ranks execute the same plan, with the same arguments; "
    assert all(rule in str(error) and "rank 2 has" in str(error) for error in errors)
    assert {error.culprits for error in errors} in ({(0, 2)}, {(2, 3)})
    assert not wires.sent_bytes
    assert all((array == -1).all() for out in given_out for array in out.values())
    assert [error.invalid for error in errors] == [()] * 4


@given(st.sets(st.integers(0, 3), min_size=1), st.integers(0, 2**32 - 1))
def test_ranks_that_can_tell_what_is_wrong_do_not_wait_for_the_deadline(wrong, seed):
    draws = np.random.default_rng(seed)
    wires = Wires(RANK_OF, 4, lambda: bool(draws.integers(2)))
    windows = [0 if rank in wrong else 2 for rank in RANKS]
    checksums = [bool(draws.integers(2)) for _ in RANKS]
    executions, _ = begin(wires, frozen=True, window=windows, checksums=checksums)
    assert None not in take_turns(executions, lambda: int(draws.integers(4)), most=10_000)


def test_ranks_that_differ_about_checksums_refuse():
    executions, _ = begin(checksums=[True, False, False, False])
    errors = take_turns(executions)
    assert {type(error) for error in errors} <= {MismatchError, RankError}
    assert isinstance(errors[0], MismatchError)


@pytest.mark.parametrize("missing", RANKS)
def test_a_rank_that_never_comes_is_named_by_all_others(missing):
    executions, wires = begin()
    others = [rank for rank in RANKS if rank != missing]
    errors = take_turns([executions[rank] for rank in others])
    for rank, error in zip(others, errors, strict=True):
        assert isinstance(error, DeadlineError | RankError)
        assert f"waits for rank {missing} to begin" in str(error)
        assert error.culprits == (missing,)
        assert error.invalid == ()
        if isinstance(error, DeadlineError):
            assert error.waiting_for == (missing,)
            assert str(error).startswith("all ranks are done within the deadline; 1.0 s passed")
            assert f"rank {rank} waits" in str(error)
    assert any(isinstance(error, TimeoutError) for error in errors)
    assert not wires.sent_bytes


@given(st.integers(0, 3), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_when_a_rank_stops_all_others_raise_or_are_done(stopping, after, seed):
    draws = np.random.default_rng(seed)
    given_out = [outs(rank) for rank in RANKS]
    executions, _ = begin(Wires(RANK_OF, 4, lambda: bool(draws.integers(2))), out=given_out)
    for _ in range(after):
        for execution in executions:
            execution.step()
    others = [execution for rank, execution in enumerate(executions) if rank != stopping]
    errors = take_turns(others, lambda: int(draws.integers(4)))
    for rank, error in zip([r for r in RANKS if r != stopping], errors, strict=True):
        right = all((array == WHOLE[DST.slices(d)]).all() for d, array in given_out[rank].items())
        if error is None:
            assert right
        else:
            assert isinstance(error, DeadlineError | RankError)
            assert error.culprits == (stopping,)
            written = any((array != -1).any() for array in given_out[rank].values())
            assert not written or set(error.invalid) == {("tensor", d) for d in given_out[rank]}


@given(st.integers(0, 3), st.integers(30, 60), st.integers(0, 2**32 - 1))
def test_a_rank_that_stops_is_named_as_soon_as_it_was_silent_for_the_stall_limit(
    stopping, after, seed
):
    draws = np.random.default_rng(seed)
    wires = Wires(RANK_OF, 4, lambda: bool(draws.integers(2)))
    executions, _ = begin(wires, deadline_s=[1000.0] * 4, stall_s=[0.5] * 4)
    for _ in range(after):
        for execution in executions:
            execution.step()
    others = [execution for rank, execution in enumerate(executions) if rank != stopping]
    for error in take_turns(others, lambda: int(draws.integers(3)), most=50_000):
        if error is not None:
            assert isinstance(error, StallError | RankError)
            assert error.culprits == (stopping,)


class Deaf(WireTransport):
    """Gets no shards, as if the network were very slow."""

    def receive(self, rank, data, tag):
        return super().receive(rank, data, tag) if tag == CONTROL else Never()


class Never:
    """A message that does not arrive."""

    def test(self):
        return False


def test_nobody_is_to_blame_if_all_do_their_part():
    wires = Wires(RANK_OF, 4)
    executions, _ = begin(wires, [Deaf(wires, rank) for rank in RANKS], stall_s=[0.5] * 4)
    errors = take_turns(executions)
    assert all(isinstance(error, DeadlineError | RankError) for error in errors)
    assert [error.culprits for error in errors] == [()] * 4


def test_a_rank_that_can_wait_longer_answers_those_that_ask_whether_it_is_there():
    """Rank 2 does not ask by itself yet when the deadline of rank 0 passes."""
    executions, _ = begin(deadline_s=[1.0, 10.0, 10.0, 10.0])
    (error, *_) = take_turns(executions[:3])  # rank 3 does not come
    assert isinstance(error, DeadlineError)
    assert (error.waiting_for, error.culprits) == ((3,), ())


def test_equal_stall_limits_may_be_written_as_different_numbers():
    executions, _ = begin(stall_s=[1, 1.0, np.float32(1), 1])
    assert take_turns(executions) == [None] * 4


@pytest.mark.parametrize("n_culprits", [0, 1, 16, 40])
def test_a_rank_names_as_many_culprits_as_it_tells_the_others(n_culprits):
    error = DeadlineError("late")
    error.culprits = tuple(range(n_culprits))
    told = error_of(reason_of(7, error))
    assert told.culprits == culprits_of(7, error) == tuple(range(min(n_culprits, 16)))
    assert silent_of(told) == told.culprits


@pytest.mark.parametrize("stall_s", [0, -1.0, float("inf"), "soon"])
def test_a_stall_limit_is_a_positive_number(stall_s):
    executions, _ = begin(stall_s=[stall_s] * 4)
    for error in take_turns(executions):
        assert isinstance(error, PlanError | RankError)
        assert "a stall limit is a positive, finite number of seconds, or None" in str(error)


def test_a_rank_with_wrong_shards_fails_and_so_do_all_at_once():
    wrong = {0: np.zeros((3, 6), "i8")}
    executions, wires = begin(shards=[wrong, None, None, None])
    errors = take_turns(executions)
    assert isinstance(errors[0], ShardError)
    assert [error.culprits for error in errors] == [(0,)] * 4
    for error in errors[1:]:
        assert isinstance(error, RankError)
        assert error.rank == 0
        assert str(error).startswith("all ranks complete a transfer, or none; rank 0 failed: ")
        assert isinstance(error, RankShardError)
        assert "ShardError: shards have the dtype that is planned; got int64" in str(error)
    assert not wires.sent_bytes


OTHER_PLAN = plan(SRC, DST, "i4", RANK_OF, chunks=2, chunk_bytes=1)
WRONG = {
    "plan": (OTHER_PLAN, "all ranks execute the same plan"),
    "window": (0, "at least one task is open at a time"),
    "out": ({9: np.zeros(3)}, "ShardError: shards has one array for each device"),
}


@given(
    st.sampled_from(sorted(WRONG)),
    st.sets(st.integers(0, 3), min_size=1, max_size=3),
    st.sets(st.integers(0, 3)),
    st.integers(0, 40),
    st.integers(0, 2**32 - 1),
)
def test_no_rank_leaves_before_all_have_been_told_however_late_some_are(
    what, wrong, late, until, seed
):
    """A rank that leaves breaks its connections; late ranks have only begun to receive messages."""
    draws = np.random.default_rng(seed)
    wires = Wires(RANK_OF, 4, lambda: bool(draws.integers(2)), like_gloo=True)
    value, reason = WRONG[what]
    own = {"plan": [PLAN] * 4, "window": [2] * 4, "out": [None] * 4}
    own[what] = [value if rank in wrong else own[what][rank] for rank in RANKS]
    executions, _ = begin(wires, frozen=True, **own)
    early = [execution for rank, execution in enumerate(executions) if rank not in late]
    failed = {}
    for _ in range(until * len(early)):
        execution = early[int(draws.integers(len(early)))]
        if execution not in failed:
            try:
                execution.step()
            except CrossmeshError as error:
                failed[execution] = error
    rest = [execution for execution in executions if execution not in failed]
    errors = [*failed.values(), *take_turns(rest, lambda: int(draws.integers(4)), most=10_000)]
    assert len(errors) == 4
    for error in errors:
        assert not isinstance(error, TransportError)
        assert reason.removeprefix("ShardError: ") in str(error)
        assert isinstance(error, ShardError) == (what == "out")
    assert not wires.sent_bytes


@given(st.integers(0, 20), st.sets(st.integers(0, 3), max_size=3), st.integers(0, 2**32 - 1))
def test_an_error_during_the_transfer_reaches_all_ranks_before_any_leaves(after, late, seed):
    draws = np.random.default_rng(seed)
    wires = Wires(RANK_OF, 4, lambda: bool(draws.integers(2)), like_gloo=True)
    arrived = count()

    def flip(data):
        data[0] ^= next(arrived) == after

    wires.corrupt = flip
    executions, _ = begin(wires, frozen=True, checksums=[True] * 4)
    weights = np.array([0.01 if rank in late else 1.0 for rank in RANKS])
    errors = take_turns(
        executions, lambda: int(draws.choice(4, p=weights / weights.sum())), most=100_000
    )
    assert sum(isinstance(error, ChecksumError) for error in errors) == 1
    for error in errors:
        assert isinstance(error, ChecksumError | RankError)
        assert "bytes arrive as they were sent" in str(error)


class Short(WireTransport):
    """Sends too few bytes to one rank."""

    def send(self, rank, data, tag):
        return super().send(rank, data[:-1] if rank == 3 and tag else data, tag)


def test_a_short_message_is_an_error_of_all_ranks():
    wires = Wires(RANK_OF, 4)
    executions, _ = begin(wires, [Short(wires, rank) for rank in RANKS])
    errors = take_turns(executions)
    assert isinstance(errors[3], TransportError)
    assert "a message has as many bytes as its receive" in str(errors[3])
    assert all(isinstance(error, RankError) for error in errors[:3])
    assert all("rank 3 failed: TransportError" in str(error) for error in errors[:3])


def test_checksums_find_a_flipped_bit():
    wires = Wires(RANK_OF, 4)

    def flip(data):
        data[0] ^= 1

    wires.corrupt = flip
    executions, _ = begin(wires, checksums=[True] * 4)
    errors = take_turns(executions)
    assert any(isinstance(error, ChecksumError) for error in errors)
    assert all(isinstance(error, ChecksumError | RankError) for error in errors)
    with pytest.raises(ChecksumError, match=r"another CRC-32 for task \d bytes .* to device"):
        raise next(error for error in errors if isinstance(error, ChecksumError))


def test_a_failed_transfer_closes_the_transports():
    wires = Wires(RANK_OF, 4)
    transports = wires.transports()
    executions, _ = begin(wires, transports, window=[0, 2, 2, 2])
    assert all(isinstance(e, TransferError | PlanError) for e in take_turns(executions))
    assert all(transport.closed for transport in transports)


def test_a_destination_that_the_caller_gave_is_what_is_returned():
    given_out = [outs(rank) for rank in RANKS]
    executions, _ = begin(out=given_out)
    assert take_turns(executions) == [None] * 4
    for execution, out in zip(executions, given_out, strict=True):
        assert {d: id(array) for d, array in execution.result.items()} == {
            d: id(array) for d, array in out.items()
        }
        for device, array in out.items():
            np.testing.assert_array_equal(array, WHOLE[DST.slices(device)])


def read_only(array):
    array.flags.writeable = False
    return array


SHARED = np.zeros((6, 6), "i4")
ONE_ROW = np.lib.stride_tricks.as_strided(np.zeros(2, "i4"), (6, 2), (0, 4), writeable=True)


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"window": 0}, PlanError, "at least one task is open at a time; got window=0"),
        ({"window": 1.5}, PlanError, r"window is a whole number; got 1\.5"),
        ({"out": {}}, ShardError, r"devices \[\] instead of \[2\] for 'tensor' on this rank"),
        ({"out": {2: read_only(np.zeros((6, 2), "i4"))}}, ShardError, "read-only array"),
        ({"shards": {1: SHARED[:3]}, "out": {2: SHARED[:, :2]}}, ShardError, "shares no memory"),
        ({"out": {2: ONE_ROW}}, ShardError, r"its own memory; .* strides \(0, 4\) for device 2 of"),
        ({"shards": {"tensor": {}}}, ShardError, r"got devices \[\] instead of \[1\]"),
        ({"shards": {"other": {}}}, ShardError, r"got \['other'\] for the tensors \['tensor'\]"),
    ],
)
def test_says_what_is_wrong_with_the_arguments(changed, kind, message):
    own = {name: [None, value, None, None] for name, value in changed.items()}
    if "window" in own:
        own["window"] = [2, changed["window"], 2, 2]
    executions, _ = begin(**own)
    errors = take_turns(executions)
    with pytest.raises(kind, match=message):
        raise errors[1]
    assert all(isinstance(errors[rank], RankError) for rank in (0, 2, 3))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.booleans()), min_size=1))
def test_destinations_share_no_memory_with_any_source(slices):
    room = np.zeros(64, "u1")
    views = [(room[start : start + n][:: -1 if n % 2 else 1], dst) for start, n, dst in slices]
    out = {"t": {i: view for i, (view, dst) in enumerate(views) if dst}}
    sources = {"t": {i: view for i, (view, dst) in enumerate(views) if not dst}}
    if any(np.shares_memory(a, b) for a in out["t"].values() for b in sources["t"].values()):
        with pytest.raises(ShardError, match="shares no memory with a source"):
            check_apart(out, sources)
    else:
        check_apart(out, sources)


@pytest.mark.parametrize("deadline_s", [float("inf"), float("nan"), "soon"])
def test_a_transfer_has_a_deadline(deadline_s):
    wires = Wires(RANK_OF, 4)
    executions = [
        Execution(PLAN, shards(rank), transport, window=1,
                  deadline_s=deadline_s if rank == 2 else 1.0, clock=lambda: 0.0)
        for rank, transport in enumerate(wires.transports())
    ]  # fmt: skip
    errors = take_turns(executions)
    message = re.escape(f"a finite number of seconds; got deadline_s={deadline_s!r}")
    with pytest.raises(PlanError, match=message):
        raise errors[2]
    assert all(isinstance(errors[rank], RankError) for rank in (0, 1, 3))
    with pytest.raises(PlanError, match=message):
        execute(PLAN, shards(0), wires.transports()[0], window=1, deadline_s=deadline_s)


def test_a_rank_that_comes_after_others_have_left_says_so():
    wires = Wires(RANK_OF, 4, like_gloo=True)
    executions, _ = begin(wires)
    early = take_turns([executions[rank] for rank in (0, 2, 3)])
    assert all(isinstance(error, DeadlineError | RankError) for error in early)
    (error,) = take_turns([begin(wires)[0][1]])
    assert isinstance(error, TransportError)
    assert "before rank 1 could receive its reason: ranks that closed have no conn" in str(error)


def test_every_device_of_the_plan_has_a_rank():
    wires = Wires({device: 0 for device in range(7)}, 1)
    execution = Execution(PLAN, {}, wires.transports()[0], window=1, deadline_s=1.0)
    with pytest.raises(PlanError, match=r"one of the 1 ranks; rank_of lacks devices \[7\]"):
        execution.step()
