"""Strategies send what their papers say, and processes on emulated hosts send the right bytes.

These tests do not check times: `python integration/ranking` measures them, on a machine without
other work, for docs/costs.md.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator

import netlab
import pytest
from ranking import strategies
from ranking.compare import MODELS, Experiment, compare, kendall_tau, sent_bytes
from ranking.measure import lab, measure
from ranking.program import KINDS, Collective, Matmul, Task, dump, load
from ranking.strategies import Layer

LAYER = Layer(sequences=4, positions=8, d_model=64, heads=4)
STEPS = {task.name: task for task in strategies.tasks(LAYER)}
WEIGHT_BYTES = 12 * LAYER.d_model**2 * 4
ACTIVATION_BYTES = LAYER.sequences * LAYER.positions * LAYER.d_model * 4

MISSING = netlab.supported()
on_a_lab = pytest.mark.skipif(bool(MISSING), reason=f"no lab can be brought up: {MISSING}")
backends = pytest.mark.parametrize("backend", ["gloo", "mpi"])

# A host sends more than the tensors: headers of frames of 3000 bytes (2.3 %), acknowledgements,
# messages of the library, and barriers.
OVERHEAD = 1.10


def collectives(task: Task) -> Iterator[Collective]:
    return (operation for operation in task.program if isinstance(operation, Collective))


def test_there_are_at_least_eight_strategies_that_send_different_bytes():
    assert len(STEPS) == len(strategies.STRATEGIES) >= 8
    assert len({sent_bytes(task, "mpi") for task in STEPS.values()}) == len(STEPS)


@pytest.mark.parametrize("name", STEPS)
def test_every_strategy_divides_all_of_the_arithmetic(name):
    tokens, d = LAYER.sequences * LAYER.positions, LAYER.d_model
    products = 3 * 2 * tokens * 12 * d * d
    attention = 6 * 2 * tokens * LAYER.positions * d
    done = sum(2 * o.m * o.n * o.k * o.batch for o in STEPS[name].program if isinstance(o, Matmul))
    assert done * math.prod(STEPS[name].mesh) == products + attention


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [
        ("data parallel", 2 * 3 / 4 * WEIGHT_BYTES),
        ("ZeRO-3", 3 * 3 / 4 * WEIGHT_BYTES),
        ("tensor parallel", 4 * 2 * 3 / 4 * ACTIVATION_BYTES),
        ("tensor and sequence parallel", 10 * 3 / 4 * ACTIVATION_BYTES),
        ("data x tensor", 1 / 2 * WEIGHT_BYTES + 4 * 1 / 2 * ACTIVATION_BYTES),
    ],
)
def test_known_strategies_send_what_their_papers_say(name, n_bytes):
    """ZeRO (section 7.2.2) sends 1.5 times the bytes of data parallelism. Megatron has 4
    all-reduces a layer. With sequence parallelism (Korthikanti et al., section 4.2.2), the backward
    pass gathers the inputs again."""
    assert sent_bytes(STEPS[name], "mpi") == n_bytes


def test_tasks_survive_json():
    tasks = list(STEPS.values())
    assert load(json.loads(json.dumps(dump(tasks)))) == tasks


def test_tau_counts_pairs_in_the_same_order():
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1
    assert kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(4 / 6)


@on_a_lab
@backends
def test_hosts_send_the_bytes_of_every_collective(backend):
    experiment = Experiment(
        n_hosts=2,
        rate="400mbit",
        meshes=((2,),),
        sizes=(1 << 16, 1 << 17, 1 << 18),
        layer=None,
        repeats=1,
    )
    with lab(2, experiment.rate, f"rk{os.getpid()}") as hosts:
        result, profile = compare(hosts, backend, experiment)
        assert hosts.drops() == 0
    assert [row["name"] for row in result["collectives"]] == [
        f"{kind} of 2, {1 << 17} bytes" for kind in KINDS
    ]
    for row in result["collectives"]:
        assert 1 < row["sent_bytes"] / row["predicted_bytes"] < OVERHEAD
        assert set(row["predicted"]) == set(MODELS)
    assert {point.n_bytes for point in profile.collectives} == {1 << 16, 1 << 18}
    assert {point.n for point in profile.collectives} == {2}


@on_a_lab
@backends
def test_hosts_send_the_bytes_of_every_strategy(backend):
    # Large enough that headers are a small part of the bytes.
    layer = Layer(sequences=4, positions=64, d_model=128, heads=4)
    steps = strategies.tasks(layer)
    with lab(4, "400mbit", f"rs{os.getpid()}") as hosts:
        seen = measure(hosts, backend, steps, repeats=1)
    for task, one in zip(steps, seen, strict=True):
        assert one.name == task.name
        assert len(one.seconds) == 1
        assert 1 < one.sent_bytes / sent_bytes(task, backend) < OVERHEAD
