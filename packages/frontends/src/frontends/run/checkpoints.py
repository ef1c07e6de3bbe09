"""A folder of checkpoints: their numbers rise, and the last is what a run goes on from."""

from __future__ import annotations

import os
from collections.abc import Sequence

from frontends.errors import CheckpointError


def check_next(folder: str | os.PathLike[str], number: int, last: int | None) -> None:
    """A checkpoint may be added.

    Raises:
        CheckpointError: There is one of this number or a larger.
    """
    if last is not None and number <= last:
        raise CheckpointError(
            "checkpoints are added in the order of their steps, and never written over; got "
            f"number={number}, and {folder} has one of step {last}: save into another folder"
        )


def number_to_read(folder: str | os.PathLike[str], number: int | None, there: Sequence[int]) -> int:
    """The number of the checkpoint that is asked for; the last one if none is.

    Args:
        folder: That they are in.
        number: That is asked for.
        there: The numbers that there are, in their order.

    Raises:
        CheckpointError: There is none.
    """
    if not there or (number is not None and number not in there):
        wanted = "checkpoint" if number is None else f"checkpoint of step {number}"
        raise CheckpointError(f"there is no {wanted} in {folder}; steps that it has: {[*there]}")
    return there[-1] if number is None else number
