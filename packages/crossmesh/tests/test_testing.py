"""The checkers refuse wrong plans and results."""

import dataclasses

import numpy as np
import pytest
from crossmesh import Copy, execute_local, plan
from crossmesh.testing import check_delivery, check_plan, shards_of
from shardspec import Layout, Mesh, Spec

SRC = Layout((4, 4), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0R"))
DST = Layout((4, 4), Mesh((2,), ("x",), (2, 3)), Spec.parse("RS0"))
PLAN = plan(SRC, DST, "float32")
FIRST, *REST = PLAN.tasks


def with_first(**changes):
    return (dataclasses.replace(FIRST, **changes), *REST)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (PLAN.tasks[:-1], "gets elements of tensor"),
        ((*PLAN.tasks, dataclasses.replace(FIRST, index=4)), "gets elements of tensor"),
        (PLAN.tasks[::-1], "is number 0"),
        (with_first(path=(1, 2)), r"one adder for \(0,\)"),
        (with_first(terms=((0, 1),)), r"\(0, 1\) are not all that hold a term"),
        (with_first(terms=((0,), (1,))), "has 1 terms"),
        (with_first(receivers=(2, 3)), "all receivers"),
        (with_first(receivers=(3,), path=(0, 3)), "gets elements of tensor"),
        (with_first(part=(0, 8)), "gets elements of tensor"),
        (with_first(part=(0, 7)), "cuts an element"),
        (with_first(part=(0, 20)), "not within 16 bytes"),
        (with_first(path=(0, 2, 2)), "all receivers"),
        (with_first(n_chunks=0), "at least one chunk"),
    ],
)
def test_check_plan_refuses(tasks, message):
    with pytest.raises(AssertionError, match=message):
        check_plan(dataclasses.replace(PLAN, tasks=tuple(tasks)))


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ((Copy(0, plan(SRC, SRC, "float32").copies[1].pieces),), "lacks elements"),
        ((), "gets elements"),
    ],
)
def test_check_plan_looks_at_what_devices_keep(copies, message):
    kept = plan(SRC, SRC, "float32")
    check_plan(kept)
    with pytest.raises(AssertionError, match=message):
        check_plan(dataclasses.replace(kept, copies=copies))


def test_check_delivery_refuses_a_wrong_element():
    whole = np.arange(16).reshape(4, 4)
    received = execute_local(plan(SRC, DST, whole.dtype), shards_of(SRC, whole))
    received[3][0, 0] += 1
    with pytest.raises(AssertionError, match="device 3"):
        check_delivery(PLAN, whole, received)
