"""The checkers notice what is wrong."""

import dataclasses

import numpy as np
import pytest
from crossmesh import execute_local, plan_transfer
from crossmesh.testing import check_delivery, check_plan, shards_of
from shardspec import Layout, Mesh, Spec

SRC = Layout((4, 4), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0R"))
DST = Layout((4, 4), Mesh((2,), ("x",), (2, 3)), Spec.parse("RS0"))
PLAN = plan_transfer(SRC, DST, 4)
FIRST, *REST = PLAN.tasks


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (PLAN.tasks[:-1], "gets its elements"),
        ((*PLAN.tasks, dataclasses.replace(FIRST, index=4)), "gets its elements"),
        (PLAN.tasks[::-1], "is number 0"),
        ((dataclasses.replace(FIRST, sender=1), *REST), "the sender does not hold"),
        ((dataclasses.replace(FIRST, senders=(0, 1)), *REST), "hold the slice"),
        ((dataclasses.replace(FIRST, receivers=(2, 3)), *REST), "not all for device 3"),
    ],
)
def test_check_plan_refuses(tasks, message):
    with pytest.raises(AssertionError, match=message):
        check_plan(dataclasses.replace(PLAN, tasks=tuple(tasks)))


def test_check_delivery_refuses_a_wrong_element():
    whole = np.arange(16).reshape(4, 4)
    received = execute_local(plan_transfer(SRC, DST, 8), shards_of(SRC, whole))
    received[3][0, 0] += 1
    with pytest.raises(AssertionError, match="device 3"):
        check_delivery(PLAN, whole, received)
