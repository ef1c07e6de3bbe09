"""What counts as an argument: numpy's numbers do where numbers are asked for, NaN and texts do not.

Sizes have a limit, as a file of one line could otherwise ask for more memory than there is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Set
from numbers import Integral, Real
from typing import Any

from pipesched.errors import ArgumentError

MOST = 10_000_000
"""Stages times microbatches, and ranks, at most: making and checking that many takes minutes."""


def is_count(value: object, least: int = 1) -> bool:
    """Whether it is a whole number from `least` on.

    Examples:
        >>> is_count(3), is_count(0), is_count(0, least=0), is_count(2.0), is_count(None)
        (True, False, True, False, False)
    """
    return isinstance(value, (int, Integral)) and int(value) >= least


def is_amount(value: object) -> bool:
    """Whether it is a number that is finite and not negative.

    Examples:
        >>> is_amount(0.5), is_amount(-1), is_amount(math.nan), is_amount(math.inf), is_amount("1")
        (True, False, False, False, False)
    """
    if isinstance(value, Integral):  # which may be too large for a float
        return int(value) >= 0
    return isinstance(value, (float, Real)) and 0 <= float(value) < math.inf


def check_sizes(n_stages: int, n_microbatches: int) -> None:
    """Raise `ArgumentError` unless there is a stage and a microbatch, and not too many."""
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
    """Raise `ArgumentError` unless the argument called `name` is of this class."""
    if not isinstance(value, kind):
        raise ArgumentError(
            f"{name} is a {kind.__name__}; got {name}={value!r:.60} of {type(value).__name__}"
        )


def bounds_of(name: str, value: object, n: int) -> tuple[float, ...]:
    """One number for each of `n` stages or ranks, given one for all or one for each.

    Not negative; infinite means that there is no bound.

    Raises:
        ArgumentError: Anything else.
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


def match(pattern: re.Pattern[str], text: object) -> re.Match[str] | None:
    """What `pattern` finds in the whole of `text`; None too if that is no text."""
    return pattern.fullmatch(text) if isinstance(text, str) else None
