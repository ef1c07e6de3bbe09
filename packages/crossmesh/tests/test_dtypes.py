"""A shard has the planned dtype, or consists of raw bytes of its size; anything else is refused."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from crossmesh import (
    LocalTransport,
    MissingExtraError,
    PlanError,
    RankShardError,
    ShardError,
    execute_local,
    plan,
)
from crossmesh.base.reduce import number_type
from crossmesh.base.tensor import _EXTENSIONS, _OPAQUE, can_add, dtype_name, holds, item_bytes
from crossmesh.run.executor import Execution
from crossmesh.testing import SAME_SIZE
from crossmesh.testing_transport import Wires, ranks_shards, take_turns
from shardspec import Layout, Mesh, Spec, shard

PAIRS = [
    (n_bytes, planned, given)
    for n_bytes, names in SAME_SIZE.items()
    for planned, given in itertools.product(names, names)
]
ROWS = Layout((2, 3), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0R"))
COLUMNS = Layout((2, 3), Mesh((3,), ("x",), (1, 2, 3)), Spec.parse("RS0"))
RANK_OF = {0: 0, 1: 1, 2: 1, 3: 2}


def whole(name, n_bytes, seed=0):
    """A whole tensor of random bits, some of which are not a number."""
    bits = np.random.default_rng(seed).integers(256, size=6 * n_bytes, dtype=np.uint8)
    return bits.view(number_type(name)).reshape(2, 3)


def test_sizes_are_those_of_numpy_and_all_of_ml_dtypes_are_there():
    for n_bytes, names in SAME_SIZE.items():
        for name in names:
            assert number_type(name).itemsize == item_bytes(name) == n_bytes
            assert dtype_name(number_type(name)) == name
    assert set(_EXTENSIONS) - {"complex32", "bcomplex32"} <= set(
        itertools.chain(*SAME_SIZE.values())
    )


def test_a_type_holds_itself_and_raw_bytes_hold_all():
    for n_bytes, planned, given in PAIRS:
        exact = given in (planned, f"|V{n_bytes}")
        assert holds(planned, number_type(given)) == exact, (planned, given)


@pytest.mark.parametrize("n_bytes", SAME_SIZE)
def test_in_one_process_every_type_arrives_bit_for_bit_or_is_refused(n_bytes):
    names = SAME_SIZE[n_bytes]
    for planned in names:
        transport = LocalTransport(plan(ROWS, COLUMNS, planned))
        for given in names:
            shards = shard(ROWS, whole(given, n_bytes))
            if holds(planned, number_type(given)):
                received = transport(shards)
                for device, array in shard(COLUMNS, whole(given, n_bytes)).items():
                    assert received[device].dtype == number_type(given)
                    assert received[device].tobytes() == array.tobytes()
            else:
                with pytest.raises(ShardError, match="shards have the dtype that is planned; got "):
                    transport(shards)


@pytest.mark.parametrize("n_bytes", SAME_SIZE)
@pytest.mark.parametrize("side", ["src", "dst"])
def test_between_ranks_every_type_arrives_bit_for_bit_or_all_refuse(n_bytes, side):
    for number, (size, planned, given) in enumerate(PAIRS):
        if size != n_bytes:
            continue
        made = plan(ROWS, COLUMNS, planned)
        wrong = number % 2 + (side == "dst")
        held = ranks_shards({"tensor": shard(ROWS, whole(planned, n_bytes))}, RANK_OF, 3)
        out = [
            {
                d: np.zeros((2, 1), number_type(planned))
                for d, rank in RANK_OF.items()
                if d and rank == r
            }
            for r in range(3)
        ]
        at_wrong = held[wrong]["tensor"] if side == "src" else out[wrong]
        at_wrong |= {d: array.view(number_type(given)) for d, array in at_wrong.items()}
        wires = Wires(RANK_OF, 3)
        errors = take_turns(
            [
                Execution(made, of["tensor"], transport, window=1, deadline_s=1.0,
                          clock=lambda: 0.0, out=out[transport.rank])
                for of, transport in zip(held, wires.transports(), strict=True)
            ]
        )  # fmt: skip
        if holds(planned, number_type(given)):
            assert errors == [None] * 3
            for device, array in shard(COLUMNS, whole(planned, n_bytes)).items():
                assert out[RANK_OF[device]][device].tobytes() == array.tobytes()
            continue
        assert all(isinstance(error, ShardError) for error in errors)
        for rank, error in enumerate(errors):
            assert isinstance(error, RankShardError) == (rank != wrong)
            assert f"instead of {planned} for 'tensor' on device " in str(error)
        assert not wires.sent_bytes
        assert not any(array.tobytes().strip(b"\0") for of in out for array in of.values())


PARTIAL = Layout((6,), Mesh((2,), ("x",), (0, 1)), Spec.parse("R+P0"))
SUM = Layout((6,), Mesh((1,), ("x",), (1,)), Spec.parse("R"))


@pytest.mark.parametrize("planned", [name for names in SAME_SIZE.values() for name in names])
def test_only_bits_of_the_planned_type_are_added(planned):
    if not can_add(planned):
        with pytest.raises(PlanError, match="a partial source has numbers as elements"):
            plan(PARTIAL, SUM, planned)
        return
    made, n_bytes = plan(PARTIAL, SUM, planned), item_bytes(planned)
    for given in SAME_SIZE[n_bytes]:
        terms = {d: np.ones(6, number_type(planned)).view(number_type(given)) for d in (0, 1)}
        if holds(planned, number_type(given)):
            (total,) = execute_local(made, terms).values()
            expected = np.ones(6, number_type(planned))
            np.add(expected, expected, out=expected)
            assert total.tobytes() == expected.tobytes()
        else:
            with pytest.raises(ShardError, match="shards have the dtype that is planned; got "):
                execute_local(made, terms)


def test_types_that_no_array_has_are_raw_bytes():
    for name, n_bytes in _OPAQUE.items():
        assert dtype_name(name) == name
        assert item_bytes(name) == n_bytes
        assert not can_add(name)
        assert holds(name, np.dtype(f"V{n_bytes}"))
        assert not any(holds(name, number_type(other)) for other in SAME_SIZE[n_bytes][:-1]
                       if not other.startswith("|V"))  # fmt: skip


def forget_bfloat16(monkeypatch):
    """Make ml_dtypes appear not to be installed."""
    monkeypatch.delattr(ml_dtypes, "bfloat16")
    monkeypatch.delitem(np.sctypeDict, "bfloat16")


def test_a_rank_without_shards_makes_raw_bytes_where_the_type_is_not_there(monkeypatch):
    made = plan(ROWS, COLUMNS, "bfloat16")
    shards = shard(ROWS, whole("bfloat16", 2).view("V2"))
    forget_bfloat16(monkeypatch)
    with pytest.raises(MissingExtraError, match="an array of type bfloat16 needs the extra"):
        number_type("bfloat16")
    executions = [
        Execution(made, own["tensor"], transport, window=1, deadline_s=1.0, clock=lambda: 0.0)
        for own, transport in zip(
            ranks_shards({"tensor": shards}, RANK_OF, 3),
            Wires(RANK_OF, 3).transports(),
            strict=True,
        )
    ]
    assert take_turns(executions) == [None] * 3
    assert executions[2].result[3].dtype == "V2"


def test_terms_that_cannot_be_added_are_refused_before_anything_moves(monkeypatch):
    made = plan(PARTIAL, SUM, "bfloat16")
    terms = {d: np.ones(6, "V2") for d in (0, 1)}
    forget_bfloat16(monkeypatch)
    wires = Wires({0: 0, 1: 1}, 2)
    executions = [
        Execution(made, {t.rank: terms[t.rank]}, t, window=1, deadline_s=1.0, clock=lambda: 0.0)
        for t in wires.transports()
    ]
    assert {type(error) for error in take_turns(executions)} == {MissingExtraError}
    assert not wires.sent_bytes


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (np.dtypes.StringDType(), "an element has plain bytes"),
        (
            ml_dtypes.bfloat16(0).dtype.newbyteorder(),
            r"byte order of the machine; got .*bfloat16.*\(>V2\); view the elements as raw bytes",
        ),
    ],
)
def test_types_whose_bytes_are_not_their_own_are_no_dtype_of_a_plan(dtype, message):
    with pytest.raises(PlanError, match=message):
        dtype_name(dtype)
    assert not holds(f"|V{dtype.itemsize}", dtype)
    assert not holds("bfloat16", dtype)
