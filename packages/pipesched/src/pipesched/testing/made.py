"""Strategies for schedules that the generators make."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

from hypothesis import strategies as st

from pipesched.base.kind import Kind
from pipesched.errors import ArgumentError
from pipesched.generators.schedules import NAMES, make, schedule_entry
from pipesched.schedule.schedule import Schedule

LINEAR = tuple(
    name
    for name in NAMES
    if schedule_entry(name).stages_a_rank == schedule_entry(name).copies_of_stages == 1
    and schedule_entry(name).kinds == {Kind.FORWARD, Kind.BACKWARD}
)
"""The names of schedules with one stage on each rank and whole backwards."""


@cache
def sizes_of(name: str, max_stages: int, max_microbatches: int) -> tuple[tuple[int, int], ...]:
    """The numbers of stages and microbatches for which a schedule is defined."""

    def is_defined(n_stages: int, n_microbatches: int) -> bool:
        try:
            make(name, n_stages, n_microbatches)
        except ArgumentError:
            return False
        return True

    sizes = product(range(1, max_stages + 1), range(1, max_microbatches + 1))
    return tuple(size for size in sizes if is_defined(*size))


def made(
    names: Sequence[str] = NAMES, *, max_stages: int = 4, max_microbatches: int = 8
) -> st.SearchStrategy[Schedule]:
    """Schedules with any of the names, of sizes for which they are defined.

    Args:
        names: Some of `NAMES`.
        max_stages: At least 2, because some schedules have two stages on every rank.
        max_microbatches: At least 4, because some fill two stages twice.
    """
    all_arguments = [
        (name, *sizes) for name in names for sizes in sizes_of(name, max_stages, max_microbatches)
    ]
    return st.sampled_from(all_arguments).map(lambda arguments: make(*arguments))
