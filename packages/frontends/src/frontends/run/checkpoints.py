"""A folder of checkpoints: their numbers increase, and a run resumes from the last one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from frontends.errors import CheckpointError
from frontends.search.plan_options import is_number


def check_next(folder: str | os.PathLike[str], number: int, last: int | None) -> None:
    """Check that a checkpoint may be added to a folder.

    Args:
        folder: The folder.
        number: The number of the new checkpoint.
        last: The largest number in the folder; None if it is empty.

    Raises:
        CheckpointError: The folder has a checkpoint with this number or a larger one.
    """
    if last is not None and number <= last:
        raise CheckpointError(
            "checkpoints are added in the order of their steps, and never written over; got "
            f"number={number}, and {folder} has one of step {last}: save into another folder"
        )


def check_keep(keep: int) -> None:
    """Raise `CheckpointError` unless at least one checkpoint is kept."""
    if not is_number(keep) or keep < 1:
        raise CheckpointError(
            f"a folder keeps its last checkpoint at least; got keep={keep!r}: give a whole number "
            "from 1 on"
        )


def number_to_read(
    folder: str | os.PathLike[str], number: int | None, existing: Sequence[int]
) -> int:
    """The number of the checkpoint to read.

    Args:
        folder: The folder of the checkpoints.
        number: The number that the user asked for; None for the last one.
        existing: The numbers in the folder, in increasing order.

    Raises:
        CheckpointError: The folder has no checkpoint with this number, or none at all.
    """
    if not existing or (number is not None and number not in existing):
        wanted = "checkpoint" if number is None else f"checkpoint of step {number}"
        raise CheckpointError(f"there is no {wanted} in {folder}; steps that it has: {[*existing]}")
    return existing[-1] if number is None else number
