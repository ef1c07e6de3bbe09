"""The entries of a difference add up to the difference of two shardings' prices."""

import math

import pytest
from autoshard import GraphError, baseline, shard
from autoshard.answer.diff import diff
from autoshard.programs import mlp_step
from shardspec import Mesh


@pytest.fixture(scope="module")
def zero(mlp):
    return baseline(mlp.graph, mlp.mesh, mlp.cluster, "zero")


def test_nothing_is_different_from_itself(mlp):
    assert str(diff(mlp, mlp)) == "nothing is different"


def test_a_difference_looks_like_this(mlp, zero, check_golden):
    check_golden("difference.txt", str(diff(mlp, zero)))


def test_the_parts_of_a_difference_are_all_of_it(mlp, zero):
    found = diff(mlp, zero)
    compute = math.fsum(new.seconds - old.seconds for old, new in found.operators)
    moved = math.fsum(move.seconds for move in found.added)
    saved = math.fsum(move.seconds for move in found.removed)
    assert compute + moved - saved == pytest.approx(zero.objective_s - mlp.objective_s)
    assert found.seconds == zero.objective_s - mlp.objective_s
    assert all((found.inputs, found.operators, found.added, found.removed))


def test_the_way_back_is_the_reverse(mlp, zero):
    there, back = diff(mlp, zero), diff(zero, mlp)
    assert back.seconds == -there.seconds
    assert back.n_bytes == -there.n_bytes
    assert (back.added, back.removed) == (there.removed, there.added)
    assert [pair[::-1] for pair in back.operators] == list(there.operators)
    assert [(name, new, old) for name, old, new in back.inputs] == list(there.inputs)


def test_other_graphs_and_meshes_cannot_be_compared(mlp):
    other = mlp_step(batch=4, width=4, hidden=4)
    with pytest.raises(GraphError, match=r"of one graph .* got 48 operators and \d+ operators"):
        diff(mlp, shard(other, mlp.mesh, mlp.cluster, compare=False))
    with pytest.raises(GraphError, match=r"on \(2, 2\) and \(4,\)"):
        diff(mlp, shard(mlp.graph, Mesh((4,), ("x",)), mlp.cluster, compare=False))


def test_what_is_no_sharding_cannot_be_compared(mlp):
    for pair in ((None, mlp), (mlp, 3)):
        with pytest.raises(GraphError, match=r"diff compares two Shardings; got (None|3)"):
            diff(*pair)
