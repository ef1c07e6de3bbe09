"""The steps that a run has left, which goes on from its last checkpoint after processes were lost.

Launchers start and watch processes, and start them again: torchrun's elastic agents with what is
left of them, or a loop around mpiexec. Each start plans anew for the processes that there are, and
reads the last checkpoint into the layouts of that plan.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence

from frontends.answer.plan import Plan
from frontends.errors import CheckpointError
from frontends.run.checkpoints import check_keep
from frontends.search.plan_options import is_number


def check_run(folder: str | os.PathLike[str], steps: int, every: int, keep: int) -> None:
    """Raise `CheckpointError` unless a run can keep its checkpoints in a folder.

    Args:
        folder: The folder; it need not exist.
        steps: The number of all steps, from 1 on.
        every: Steps between checkpoints, from 1 on.
        keep: How many checkpoints to keep, from 1 on.
    """
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise CheckpointError(
            f"the checkpoints of a run are in a folder; {os.fspath(folder)} is a file: name another"
        )
    check_keep(keep)
    for name, value in (("steps", steps), ("every", every)):
        if not (is_number(value) and value > 0):
            raise CheckpointError(
                f"a run has a number of steps, and saves a checkpoint after every so many of them; "
                f"got {name}={value!r}: give a whole number from 1 on"
            )


def check_same(folder: str | os.PathLike[str], seen: Sequence[str]) -> None:
    """Raise `CheckpointError` unless all processes see the same last checkpoint.

    Args:
        folder: The folder of the checkpoints.
        seen: By process, the number of the last checkpoint that it sees, as text.
    """
    other = next((p for p, number in enumerate(seen) if number != seen[0]), None)
    if other is not None:
        raise CheckpointError(
            f"the processes of a run share the folder of its checkpoints; in {os.fspath(folder)}, "
            f"process 0 sees {seen[0]} as the last step, and process {other} sees {seen[other]}: "
            "name a folder on a disk that all hosts share"
        )


def steps_left(first: int, steps: int, every: int, save: Callable[[int], None]) -> Iterator[int]:
    """The numbers of the steps from `first` on; each is done when the next one is asked for.

    Args:
        first: The number of steps that are done.
        steps: The number of all steps.
        every: Steps between checkpoints; the last step has one, too.
        save: Saves a checkpoint; called with the number of steps that are done.
    """
    for number in range(first, steps):
        yield number
        done = number + 1
        if done % every == 0 or done == steps:
            save(done)


def tell_start(first: int, steps: int, folder: str | os.PathLike[str], plan: Plan) -> None:
    """Say on standard error from where a run goes on, and by which plan."""
    print(
        f"meshwright: going on after step {first} of {steps}, from {os.fspath(folder)}: {plan!r}",
        file=sys.stderr,
        flush=True,
    )
