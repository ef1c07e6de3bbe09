"""Transfers between eight processes by MPI and by gloo: they run ranks.py; these tests check it."""

import json
import re
import sys
import sysconfig
import threading
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import torch.distributed as dist
from crossmesh import PlanError, TaskStrategy, plan
from crossmesh.base.tensor import item_bytes
from crossmesh.engines.torch_transport import TorchTransport
from crossmesh.errors import TransportError
from crossmesh.mpi import MpiTransport
from crossmesh.testing import SAME_SIZE, batches
from crossmesh.transfer.solver import Order
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launching import run
from mpi4py import MPI

N_RANKS = 8
MOVES = [strategy for strategy in get_args(TaskStrategy) if strategy != "signal"]
MPIEXEC = str(Path(sysconfig.get_path("scripts"), "mpiexec"))
PROGRAM = str(Path(__file__).with_name("ranks.py"))
FOUND_OUT = {"TransportError", "DeadlineError", "RankError"}
PAIRS = [
    (planned, names[(i + step) % len(names)], side)
    for names in SAME_SIZE.values()
    for i, planned in enumerate(names)
    for step, side in ((0, "src"), (1, "src"), (2, "dst"))
]
"""(planned dtype, dtype of the shards, side of the shards); test_dtypes.py has all pairs."""


def start(engine, story, folder):
    """Run a story on all ranks; returns the exit status, the results by rank, and the output."""
    command = [sys.executable, PROGRAM, str(N_RANKS), story, str(folder)]
    if engine == "mpi":
        command = [MPIEXEC, "-n", str(N_RANKS), sys.executable, PROGRAM, "mpi", story, str(folder)]
    ended = run(command, deadline_s=120)
    texts = {int(path.stem): path.read_text() for path in sorted(folder.glob("[0-9].json"))}
    return ended.status, {rank: json.loads(text) for rank, text in texts.items()}, ended.output


def of_ranks(batch):
    """Whether the devices of a batch are ranks."""
    layouts = [*batch.src.values(), *batch.dst.values()]
    return layouts and all(max(layout.mesh.device_ids) < N_RANKS for layout in layouts)


def random_plans(transfers, count):
    """Random plans of small tensors, as JSON."""
    plans = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.filter_too_much],
    )
    @given(
        transfers,
        st.sampled_from(MOVES),
        st.sampled_from(get_args(Order)),
        st.integers(1, 5),
    )
    def collect(b, strategy, order, chunks):
        options = {"strategy": strategy, "order": order, "chunks": chunks, "chunk_bytes": 1}
        plans.append(plan(b.src, b.dst, b.dtype, b.hosts, b.links, **options).to_json())

    collect()
    return plans


@pytest.fixture(scope="module", params=["mpi", "gloo"])
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def healthy(engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp(engine)
    Path(folder, "plans.json").write_text(json.dumps(random_plans(batches(), 20)))
    small = random_plans(batches(partial=False).filter(of_ranks), 8)
    Path(folder, "copies.json").write_text(json.dumps(small))
    Path(folder, "pairs").write_text(json.dumps(PAIRS))
    status, found, output = start(engine, "healthy", folder)
    assert status == 0, output
    assert sorted(found) == list(range(N_RANKS)), output
    return [found[rank] for rank in range(N_RANKS)]


def test_messages_arrive_in_order_between_all_pairs_on_both_tags(healthy):
    assert [found["messages"] for found in healthy] == [{"returned": True}] * N_RANKS


def test_shards_of_random_plans_are_their_slices_on_eight_ranks(healthy):
    assert [found["plans"] for found in healthy] == [{"returned": 0}] * N_RANKS


def test_all_ranks_raise_when_one_has_another_plan(healthy):
    raised = [found["another_plan"]["raised"] for found in healthy]
    assert set(raised) <= {"MismatchError", "RankError"}
    assert "MismatchError" in raised
    for found in healthy:
        assert "all ranks execute the same plan" in found["another_plan"]["message"]
        assert "rank 3 has digest" in found["another_plan"]["message"]


@pytest.mark.parametrize("late", [0, 1, 6])
def test_a_rank_that_was_late_is_told_what_is_wrong_before_others_leave(healthy, late):
    for found in healthy:
        assert found[f"late {late}"]["raised"] in ("MismatchError", "RankError")
        assert "all ranks execute the same plan" in found[f"late {late}"]["message"]


def test_shards_of_another_dtype_are_refused_on_all_ranks_and_others_arrive_bit_for_bit(healthy):
    outcomes = [found["dtypes"]["returned"] for found in healthy]
    for number, (planned, other, _) in enumerate(PAIRS):
        for rank, of_rank in enumerate(outcomes):
            if other in (planned, f"|V{item_bytes(planned)}"):
                assert of_rank[number] == {}
                continue
            wrong = rank == number % N_RANKS
            assert of_rank[number]["raised"] == ("ShardError" if wrong else "RankShardError")
            assert "shards have the dtype that is planned; got" in of_rank[number]["message"]
            assert f"instead of {planned} for 'tensor'" in of_rank[number]["message"]


@pytest.mark.parametrize("missing", [5, 0])
def test_all_others_raise_when_one_rank_does_not_come(healthy, missing):
    outcomes = [found[f"missing {missing}"] for found in healthy]
    assert outcomes.pop(missing) == {"returned": None}
    assert {found["raised"] for found in outcomes} <= FOUND_OUT
    late = [found for found in outcomes if found["raised"] == "DeadlineError"]
    assert late
    assert [found["culprits"] for found in outcomes] == [[missing]] * len(outcomes)
    for found in late:
        assert found["waiting_for"] == [missing]
        assert f"waits for rank {missing} to begin" in found["message"]


@pytest.mark.parametrize("engine", ["gloo"], indirect=True, scope="module")
def test_batches_of_random_plans_on_eight_ranks_give_slices(healthy):
    assert [found["batched"] for found in healthy] == [{"returned": 0}] * N_RANKS


@pytest.mark.parametrize("length", ["shorter", "longer"])
def test_a_message_of_another_length_completes_no_receive(healthy, engine, length):
    outcome = healthy[1][length]
    if engine == "mpi":
        assert outcome["raised"] == "TransportError"
        reason = {"shorter": "got 90000 from rank 0 for 100000", "longer": "Message truncated"}
        assert reason[length] in outcome["message"]
    else:
        assert outcome == {"returned": False}


def test_nothing_completes_or_begins_after_close(healthy):
    assert healthy[0]["closed"] == {"returned": ["TransportError"] * 3}


@pytest.mark.parametrize("victim", [2, 0])
def test_all_others_raise_and_end_when_a_rank_is_gone_in_the_middle(engine, victim, tmp_path):
    outcomes = outcomes_without(victim, *start(engine, f"killed {victim}", tmp_path), engine)
    assert {outcome["raised"] for outcome in outcomes} <= FOUND_OUT
    first = {"mpi": "DeadlineError", "gloo": "TransportError"}[engine]
    assert first in [outcome["raised"] for outcome in outcomes]
    assert [outcome["culprits"] for outcome in outcomes] == [[victim]] * len(outcomes)


@pytest.mark.parametrize("engine", ["mpi"], indirect=True, scope="module")
def test_a_rank_that_is_stopped_is_named_by_all_others_long_before_the_deadline(engine, tmp_path):
    outcomes = outcomes_without(5, *start(engine, "stalled 5", tmp_path), engine)
    assert {outcome["raised"] for outcome in outcomes} <= {"StallError", "RankError"}
    assert [outcome["culprits"] for outcome in outcomes] == [[5]] * len(outcomes)


def outcomes_without(victim, status, found, output, engine):
    """What the ranks saw that are not the victim of a signal."""
    # By MPI the rank is stopped, and the others, when they have written, abort the job.
    assert status == (3 if engine == "mpi" else 0), output
    assert sorted(found) == [rank for rank in range(N_RANKS) if rank != victim], output
    return [of_rank["killed"] for of_rank in found.values()]


def test_the_program_in_the_readme_prints_what_each_device_has(tmp_path):
    readme = Path(__file__).parents[1].joinpath("README.md").read_text()
    (program,) = [
        t for t in re.findall(r"```python\n(.*?)```", readme, re.S) if "MpiTransport" in t
    ]
    path = Path(tmp_path, "spread.py")
    path.write_text(program)
    command = [MPIEXEC, "-n", "3", sys.executable, "-m", "mpi4py", str(path)]
    ended = run(command, deadline_s=120)
    assert ended.status == 0, ended.output
    # mpiexec may pass on the ends of lines after the lines of two ranks.
    found = re.findall(r"device \d has \[[\d ]*\]", ended.output)
    assert sorted(found) == ["device 1 has [0 1 2]", "device 2 has [3 4 5]"]


@pytest.fixture
def alone():
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_gloo_refuses_a_group_without_it(alone):
    group = dist.ProcessGroup(dist.HashStore(), 0, 1)
    with pytest.raises(PlanError, match="gloo for CPUs; got none; make one with"):
        TorchTransport(group, {})


def test_gloo_may_be_a_group_that_torch_did_not_make(alone):
    store = dist.HashStore()
    group = dist.ProcessGroup(store, 0, 1)
    gloo = dist.ProcessGroupGloo(store, 0, 1)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    assert TorchTransport(group, {0: 0}).n_ranks == 1


@pytest.mark.parametrize("group", [dist.GroupMember.NON_GROUP_MEMBER, None])
def test_gloo_refuses_a_group_that_this_process_is_not_in(alone, group):
    with pytest.raises(PlanError, match="a process group that this process is in; got"):
        TorchTransport(group, {})


def test_gloo_leaves_no_threads_after_close(alone):
    before = threading.active_count()
    transport = TorchTransport(dist.group.WORLD, {})
    transport.close()
    with pytest.raises(TransportError, match="a closed transport moves nothing"):
        transport.send(0, np.zeros(1, np.uint8), 0)
    assert threading.active_count() == before


def test_mpi_refuses_a_communicator_that_this_process_is_not_in():
    with pytest.raises(PlanError, match=r"that this process is in; got MPI\.COMM_NULL; make one"):
        MpiTransport(MPI.COMM_NULL, {})


def test_mpi_refuses_a_rank_that_there_is_not():
    with pytest.raises(
        TransportError, match="MPI failed to send 1 bytes, other rank 1: Invalid rank"
    ):
        MpiTransport(MPI.COMM_SELF, {}).send(1, np.zeros(1, np.uint8), 0)
