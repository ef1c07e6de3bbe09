"""Checks of arguments: numbers of numpy and other libraries pass, NaN and texts do not.

Sizes have a limit, because otherwise a file of one line could ask for more memory than exists.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral, Real
from typing import Any

from pipesched.errors import ArgumentError

MOST = 10_000_000
"""The limit for stages times microbatches, and for ranks. Making and checking a schedule of this
size takes minutes."""


def is_count(value: object, least: int = 1) -> bool:
    """Whether `value` is a whole number of at least `least`.

    Examples:
        >>> is_count(3), is_count(0), is_count(0, least=0), is_count(2.0), is_count(None)
        (True, False, True, False, False)
    """
    return isinstance(value, (int, Integral)) and int(value) >= least


def is_amount(value: object) -> bool:
    """Whether `value` is a number that is finite and not negative.

    Examples:
        >>> is_amount(0.5), is_amount(-1), is_amount(math.nan), is_amount(math.inf), is_amount("1")
        (True, False, False, False, False)
    """
    if isinstance(value, Integral):  # it may be too large for a float
        return int(value) >= 0
    return isinstance(value, (float, Real)) and 0 <= float(value) < math.inf


def check_sizes(n_stages: int, n_microbatches: int) -> None:
    """Raise `ArgumentError` if there is no stage or no microbatch, or more than `MOST` of both."""
    if not is_count(n_stages) or not is_count(n_microbatches):
        raise ArgumentError(
            "a pipeline has at least one stage and one microbatch; "
            f"got n_stages={n_stages!r} and n_microbatches={n_microbatches!r}"
        )
    if n_stages * n_microbatches > MOST:
        raise ArgumentError(
            f"stages times microbatches are at most {MOST:,}; "
            f"got n_stages={n_stages} and n_microbatches={n_microbatches}"
        )


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise `ArgumentError` unless the argument called `name` is an instance of `kind`."""
    if not isinstance(value, kind):
        raise ArgumentError(
            f"{name} is a {kind.__name__}; got {name}={value!r:.60} of {type(value).__name__}"
        )


def bounds_of(name: str, value: object, n: int) -> tuple[float, ...]:
    """One number for each of `n` stages or ranks, from one number for all or one for each.

    The numbers are not negative; an infinite one means that there is no bound.

    Raises:
        ArgumentError: `value` is anything else.
    """
    numbers: tuple[Any, ...] = (value,) * n
    if isinstance(value, Iterable) and not isinstance(value, (str, Mapping, Set)):
        numbers = tuple(value)
    if len(numbers) != n:
        raise ArgumentError(
            f"{name} is one number, or one for each of {n}; got {len(numbers)} numbers"
        )
    for number in numbers:
        if not is_amount(number) and number != math.inf:
            raise ArgumentError(f"{name} is a number that is not negative; got {name}={value!r}")
    return numbers


def memory_limits(
    n_ranks: int,
    activation_cap: float | Sequence[float] | None,
    memory_bytes: float | Sequence[float] | None,
) -> tuple[float, ...]:
    """The limit of each rank, in the unit of the argument that is set; infinite if neither is.

    Raises:
        ArgumentError: Both are set, or a limit is not one number for all ranks or one for each.
    """
    if activation_cap is not None and memory_bytes is not None:
        raise ArgumentError(
            "memory is limited in microbatches or in bytes, not in both; "
            f"got activation_cap={activation_cap} and memory_bytes={memory_bytes}"
        )
    for name, limit in (("activation_cap", activation_cap), ("memory_bytes", memory_bytes)):
        if limit is not None:
            return bounds_of(name, limit, n_ranks)
    return (math.inf,) * n_ranks


def match(pattern: re.Pattern[str], text: object) -> re.Match[str] | None:
    """The match of `pattern` with the whole of `text`; None also if `text` is not a string."""
    return pattern.fullmatch(text) if isinstance(text, str) else None
