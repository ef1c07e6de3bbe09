"""`elastic`: a run that goes on after processes were lost, on those that there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import jax

from frontends.jax.api.checkpoint import latest, restore, save
from frontends.jax.api.parallel import ParallelStep
from frontends.jax.run.processes import gather
from frontends.run.elastic import check_run, check_same, steps_left, tell_start
from frontends.search.plan_options import check_kind


class Elastic:
    """The steps that a run has left, and its state; `elastic` makes it."""

    def __init__(
        self,
        state: Any,
        first: int,
        steps: int,
        every: int,
        save_state: Callable[[int, Any], None],
    ) -> None:
        self.state = state
        """What the step takes and returns; set it after each step."""

        self._numbers = steps_left(first, steps, every, lambda done: save_state(done, self.state))
        self._first, self._steps = first, steps

    def __iter__(self) -> Iterator[int]:
        """The numbers of the steps that are left; a checkpoint is saved where one is due."""
        return self._numbers

    def __repr__(self) -> str:
        return f"<Elastic: from step {self._first} to {self._steps}>"


def elastic(
    step: ParallelStep,
    folder: str | os.PathLike[str],
    steps: int,
    init: Callable[..., Any],
    *arguments: Any,
    every: int = 50,
    keep: int = 3,
) -> Elastic:
    """Return the steps that a run has left, with its state; checkpoints are saved between them.

    The state is that of the folder's last checkpoint, or else what `init` makes, in the layouts of
    a plan for the processes that there are. So a program that a launcher starts again, with what is
    left, continues to the same losses: by a loop around mpiexec. Pass `cluster=` of as many devices
    as there are processes.

    Args:
        step: The step, after `step.prepare(...)`.
        folder: The folder of the run's checkpoints, on a disk that all hosts share.
        steps: The number of all steps of the run.
        init: Makes the first state, as for `ParallelStep.init`.
        arguments: What `init` is called with; small arrays and keys.
        every: Steps between checkpoints; the last step has one, too. What was done after the last
            checkpoint is done again.
        keep: How many checkpoints to keep.

    Raises:
        CheckpointError: As `save` and `restore`, or a number is not from 1 on.
        PlanError: `step` is none of `parallelize`, has no plan yet, or one for other state.

    Examples:
        >>> def train(step, init, key, batch_of):
        ...     run = elastic(step, "checkpoints", 1000, init, key)
        ...     for number in run:
        ...         *run.state, loss = step(*run.state, batch_of(number))
    """
    check_kind("step", step, ParallelStep, "parallelize(...) makes one")
    check_run(folder, steps, every, keep)
    last = latest(folder)
    check_same(folder, gather(str(last), "look for its last checkpoint"))
    if last is None:
        state = step.init(init, *arguments)
    else:
        state = restore(folder, step.abstract_state(init, *arguments), last)
        if jax.process_index() == 0:
            tell_start(last, steps, folder, step.plan)
    is_tuple = isinstance(state, tuple)  # of which a step may make a list

    def save_state(done: int, now: Any) -> None:
        save(folder, done, tuple(now) if is_tuple else now, keep=keep)

    return Elastic(state, last or 0, steps, every, save_state)
