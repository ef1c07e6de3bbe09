"""torch.distributed.pipelining runs pipesched's schedules, and pipesched checks torch's."""

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from launching import started
from pipesched import (
    Schedule,
    ScheduleError,
    check,
    from_torch_csv,
    make,
    to_torch_csv,
    with_communication,
    with_reductions,
    without_communication,
)
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    _Action,
    _add_send_recv,
    _simulate_comms_compute,
)

from .schedules.ranks import batch, loss, model

N_MICROBATCHES = 4


def torch_1f1b(n_ranks: int, n_microbatches: int) -> str:
    """The order of torch's 1F1B, in torch's notation."""
    sizes = SimpleNamespace(_num_stages=n_ranks, _n_microbatches=n_microbatches)
    order = Schedule1F1B._get_pipeline_order(sizes)
    return "\n".join(",".join(map(str, filter(None, order[rank]))) for rank in sorted(order))


@pytest.mark.parametrize(("n_ranks", "n_microbatches"), [(2, 2), (4, 8), (8, 32)])
def test_torchs_order_of_1f1b_on_the_last_rank_is_refused(n_ranks, n_microbatches):
    """It counts the forwards of the last rank from 1, so microbatch 0 has no forward there."""
    schedule = from_torch_csv(torch_1f1b(n_ranks, n_microbatches), n_microbatches=n_microbatches)
    last = n_ranks - 1
    with pytest.raises(ScheduleError) as caught:
        check(schedule)
    error = caught.value
    assert (error.rule, error.rank) == ("completeness", last)
    assert schedule.ranks[last][error.position] == error.action
    assert f"has no F{last}.{n_microbatches}; got it at rank {last}, " in str(error)
    assert f"and no F{last}.0, which B{last}.0 at rank {last}, position 1, needs" in str(error)
    # The other ranks' orders are right.
    kept = (*schedule.ranks[:last], make("1f1b", n_ranks, n_microbatches).ranks[last])
    others = [[a for a in row if a.microbatch is not None] for row in kept]
    assert list(map(list, make("1f1b", n_ranks, n_microbatches).ranks)) == others


@pytest.mark.parametrize(
    ("name", "n_stages"), [("1f1b", 4), ("zb-h1", 4), ("interleaved-1f1b", 8), ("dualpipe-v", 8)]
)
def test_either_accepts_the_transfers_that_the_other_places(name, n_stages):
    """Torch's transfers pass our checker in all semantics; ours pass torch's dry run.

    The dry run detects deadlocks.
    """
    schedule = make(name, n_stages, 8)
    rank_of = schedule.placement.routes[0].__getitem__

    theirs = _add_send_recv(in_torch(schedule), rank_of, n_stages)
    rows = [",".join(map(str, theirs[rank])) for rank in sorted(theirs)]
    read = from_torch_csv("\n".join(rows))
    assert without_communication(read).ranks == schedule.ranks
    for semantics in ("buffered", "rendezvous", "stream"):
        check(read, semantics=semantics)

    full = with_communication(schedule)
    ran = _simulate_comms_compute(in_torch(full), rank_of, n_stages)
    assert sum(action is not None for row in ran.values() for action in row) == sum(
        map(len, full.ranks)
    )


def in_torch(schedule: Schedule) -> dict[int, list[_Action]]:
    rows = to_torch_csv(schedule).splitlines()
    return {rank: list(map(_Action.from_str, row.split(","))) for rank, row in enumerate(rows)}


def test_torchs_runtime_runs_our_schedules(tmp_path: Path):
    """In two processes over gloo, each schedule gives the gradients of the whole model."""
    jobs = {}
    for name, n_stages in (("1f1b", 2), ("zb-h1", 2), ("interleaved-1f1b", 4), ("zb-v", 4)):
        plain = make(name, n_stages, N_MICROBATCHES)
        full = with_communication(with_reductions(plain))
        for form, schedule in (("compute_only", plain), ("compute_comms", full)):
            jobs[f"{name}.{form}"] = {
                "n_stages": n_stages,
                "n_microbatches": N_MICROBATCHES,
                "ranks": schedule.placement.routes[0],
                "format": form,
            }
            (tmp_path / f"{name}.{form}.csv").write_text(to_torch_csv(schedule))
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    program = Path(__file__).parent / "schedules" / "ranks.py"
    with contextlib.ExitStack() as entered:
        ranks = [
            entered.enter_context(
                started([sys.executable, str(program), str(rank), "2", str(tmp_path)])
            )
            for rank in range(2)
        ]
        ended = [rank.wait(300) for rank in ranks]
    assert [rank.status for rank in ended] == [0, 0], "\n".join(rank.output for rank in ended)
    for name, job in jobs.items():
        gradients = {}
        for rank in range(2):
            gradients |= torch.load(tmp_path / f"{name}.{rank}.pt")
        expected = gradients_of_the_whole(job["n_stages"])
        assert gradients.keys() == expected.keys()
        for key, gradient in expected.items():
            torch.testing.assert_close(gradients[key], gradient)


def gradients_of_the_whole(n_stages: int) -> dict[str, torch.Tensor]:
    modules = model(n_stages)
    x, target = batch(N_MICROBATCHES)
    loss(torch.nn.Sequential(*modules)(x), target).backward()
    return {
        f"{stage}.{key}": parameter.grad
        for stage, module in enumerate(modules)
        for key, parameter in module.named_parameters()
    }
