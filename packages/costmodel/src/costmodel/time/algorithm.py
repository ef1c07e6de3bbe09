"""An algorithm of a collective among devices that all see the same link, as an entry of a table."""

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
"""A collective that has a price; "point_to_point" is one message between two of a group."""

Family = Literal["ring", "direct", "tree"]
"""Which link of a group an algorithm uses: a ring that of neighbours, `GroupLinks.flat`, as one
message at most passes a connection in each direction; direct messages and trees that of devices
which all send out of their host at once, `GroupLinks.spread`."""

_KINDS = get_args(CollectiveKind)
_PHASES = (*_KINDS, "scatter")
"""Collectives that algorithms are of; a scatter is only part of a hierarchical broadcast."""

_FAMILIES = (*get_args(Family), "hierarchical")
_NAME = re.compile(r"\S(.*\S)?")
_MOST_CHECKED = 65
_TOLERANCE = 1 - 1e-9


def check_kind(kind: str) -> None:
    """Check that a collective has a price.

    Raises:
        UnknownNameError: It has none.
    """
    if kind not in _KINDS:
        raise UnknownNameError(
            f"a collective is one of {', '.join(_KINDS)}; got {shown(kind)}", str(kind)
        )


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """A way to run a collective in rounds of messages."""

    kind: str
    """The collective: a `CollectiveKind`, or "scatter", which is part of hierarchical ones."""
    name: str
    """What prices call it; another collective may have an algorithm of the same name."""
    family: Family
    """Which link of a group it uses."""
    rounds: Callable[[int], Rounds]
    """What the busiest device does, by the group's size. A group of one does nothing."""

    def check(self) -> None:
        """Check what can be known of it without a network, in groups of up to 65 devices.

        Raises:
            RegistrationError: It is no such entry, or moves fewer bytes than some device has to
                send or to receive, whatever the algorithm.
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
            found = self.rounds(n)
        except Exception as error:  # whatever a function of a user does
            raise RegistrationError(
                f"an algorithm has rounds in groups of any size; {whose} has none: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, Rounds):
            raise RegistrationError(
                f"rounds are costmodel.Rounds of messages and bytes; those of {whose} are "
                f"{shown(found)}"
            )
        numbers = (found.messages, found.exchanged, found.one_way)
        if not all(_is_amount(number) for number in numbers):
            raise RegistrationError(
                f"messages and bytes are finite numbers >= 0; those of {whose} are {found}"
            )
        if n == 1 and any(numbers):
            raise RegistrationError(f"a group of one does nothing; {whose} takes {found}")
        least = _least_bytes(self.kind, n)
        if n > 1 and (found.messages < 1 or found.exchanged + found.one_way < least * _TOLERANCE):
            raise RegistrationError(
                f"whatever the algorithm, some device of {n} sends or receives one message and "
                f"{least:.4g} of the bytes of a {self.kind}; {whose} takes {found}"
            )


def _is_amount(number: Any) -> bool:
    return isinstance(number, Real) and 0 <= float(number) < math.inf


def _least_bytes(kind: str, n: int) -> float:
    """What some device of `n` has to send, or to receive, as a multiple of the collective's bytes.

    Of a sum every device but one may have to send all that it has; a network that adds on the way
    takes no more, so that the `2 (p - 1)/p` of devices that add themselves is no bound.
    """
    return 1.0 if kind in ("broadcast", "permute", "point_to_point") else (n - 1) / n
