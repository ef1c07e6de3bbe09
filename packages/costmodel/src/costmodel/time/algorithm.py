"""`AlgorithmEntry`: an algorithm of a collective among devices that all have the same link."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

from costmodel.errors import RegistrationError, UnknownNameError, shown
from costmodel.time.ring import Rounds

CollectiveKind = Literal[
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "permute",
    "point_to_point",
    "reduce_scatter",
]
"""A collective that has a price; "point_to_point" is one message between two members of a group."""

Family = Literal["ring", "direct", "tree"]
"""Decides which link of a group an algorithm uses. A ring uses that of neighbours,
`GroupLinks.flat`, because at most one message passes a connection in each direction. Direct
messages and trees use `GroupLinks.spread`, as if all devices sent out of their host at once."""

_KINDS = get_args(CollectiveKind)
_PHASES = (*_KINDS, "scatter")
"""Collectives that have algorithms; a scatter is only a phase of a hierarchical broadcast."""

_FAMILIES = (*get_args(Family), "hierarchical")
_NAME = re.compile(r"\S(.*\S)?")
_MOST_CHECKED = 65
_TOO_MUCH = 2**63
_TOLERANCE = 1 - 1e-9


def check_kind(kind: str) -> None:
    """Checks that `kind` is a collective that has a price.

    Raises:
        UnknownNameError: It is not.
    """
    if kind not in _KINDS:
        raise UnknownNameError(
            f"a collective is one of {', '.join(_KINDS)}; got {shown(kind)}", str(kind)
        )


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """A way to run a collective in rounds of messages."""

    kind: str
    """The collective: a `CollectiveKind`, or "scatter", a phase of hierarchical broadcasts."""
    name: str
    """Name of the algorithm in prices; another collective may have an algorithm of this name."""
    family: Family
    """Decides which link of a group the algorithm uses."""
    rounds: Callable[[int], Rounds]
    """What the busiest device does, by the size of the group. A group of one does nothing."""

    def check(self) -> None:
        """Checks everything that does not depend on a network, in groups of up to 65 devices.

        Raises:
            RegistrationError: The entry is not valid, or the algorithm moves fewer bytes than some
                device has to send or to receive with any algorithm.
        """
        if self.kind not in _PHASES:
            raise RegistrationError(
                f"an algorithm is that of one of {', '.join(_PHASES)}; got kind={self.kind!r}"
            )
        if self.family not in get_args(Family):
            raise RegistrationError(
                f"the family of an algorithm is one of {', '.join(get_args(Family))}; "
                f"got family={self.family!r}"
            )
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise RegistrationError(f"an algorithm has a name; got name={self.name!r}")
        if self.name in _FAMILIES and self.name != self.family:
            raise RegistrationError(
                "an algorithm is called like no family but its own, as collective_time takes the "
                f"names of both; got name={self.name!r} and family={self.family!r}"
            )
        for n in range(1, _MOST_CHECKED + 1):
            self._check_rounds(n)

    def _check_rounds(self, n: int) -> None:
        whose = f"{self.name} of {self.kind} in a group of {n}"
        try:
            rounds = self.rounds(n)
        except Exception as error:  # a user's function may raise anything
            raise RegistrationError(
                f"an algorithm has rounds in groups of any size; {whose} has none: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(rounds, Rounds):
            raise RegistrationError(
                f"rounds are costmodel.Rounds of messages and bytes; those of {whose} are "
                f"{shown(rounds)}"
            )
        numbers = (rounds.messages, rounds.exchanged, rounds.one_way)
        if not all(_is_amount(number) for number in numbers):
            raise RegistrationError(
                f"messages and bytes are finite numbers from 0 to 2^63; "
                f"those of {whose} are {rounds}"
            )
        if n == 1 and any(numbers):
            raise RegistrationError(f"a group of one does nothing; {whose} takes {rounds}")
        least = _least_bytes(self.kind, n)
        if n > 1 and (
            rounds.messages < 1 or rounds.exchanged + rounds.one_way < least * _TOLERANCE
        ):
            raise RegistrationError(
                f"whatever the algorithm, some device of {n} sends or receives one message and "
                f"{least:.4g} of the bytes of a {self.kind}; {whose} takes {rounds}"
            )


def _is_amount(number: Any) -> bool:
    real: Any = number if isinstance(number, Real) else math.nan
    return bool(0 <= real < _TOO_MUCH)


def _least_bytes(kind: str, n: int) -> float:
    """Lower bound on what the busiest of `n` devices sends or receives, in the collective's bytes.

    In a reduction all devices but one may have to send everything that they hold. A network that
    adds on the way needs no more than that, so the `2 (p - 1)/p` of an all-reduce whose devices add
    is not a lower bound.
    """
    return 1.0 if kind in ("broadcast", "permute", "point_to_point") else (n - 1) / n
