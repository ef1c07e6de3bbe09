"""`elastic`: a run that goes on after processes were lost, on those that there are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import torch.distributed as dist
from torch.distributed.checkpoint.stateful import Stateful

from frontends.run.elastic import check_run, check_same, steps_left, tell_start
from frontends.search.plan_options import check_kind
from frontends.torch.api.checkpoint import latest, read, save
from frontends.torch.api.parallel import ParallelStep
from frontends.torch.run.processes import gather


def elastic(
    step: ParallelStep,
    folder: str | os.PathLike[str],
    steps: int,
    *,
    every: int = 50,
    keep: int = 3,
    extra: Mapping[str, Stateful] | None = None,
) -> Iterator[int]:
    """Return the numbers of the steps that are left, and save checkpoints between them.

    The state is that of the folder's last checkpoint, if there is one, in the layouts of a plan for
    the processes that there are. So a program that a launcher starts again, with what is left,
    continues to the same losses: by `torchrun --nnodes 1:4 --max-restarts 9 ...`, or by a loop
    around mpiexec. Leave out `cluster=` of `parallelize`, so that it is that of the processes.

    Args:
        step: The step, after `step.prepare(batch)`.
        folder: The folder of the run's checkpoints, on a disk that all hosts share.
        steps: The number of all steps of the run.
        every: Steps between checkpoints; the last step has one, too. What was done after the last
            checkpoint is done again.
        keep: How many checkpoints to keep.
        extra: Other objects with state, as in `save`; all that the checkpoint has.

    Raises:
        CheckpointError: As `save` and `restore`, or a number is not from 1 on.
        PlanError: `step` is none of `parallelize`, or has no plan yet.

    Examples:
        >>> def train(step, batch_of):
        ...     step.prepare(batch_of(0))
        ...     for number in elastic(step, "checkpoints", 1000):
        ...         step(batch_of(number))
    """
    check_kind("step", step, ParallelStep, "parallelize(...) makes one")
    check_run(folder, steps, every, keep)
    plan, last = step.plan, latest(folder)
    if dist.is_initialized():
        check_same(folder, gather(str(last)))
    first = 0 if last is None else read(folder, step, last, extra or {}, is_all=True)
    if first and (not dist.is_initialized() or dist.get_rank() == 0):
        tell_start(first, steps, folder, plan)
    return steps_left(
        first, steps, every, lambda done: save(folder, done, step, keep=keep, extra=extra)
    )
