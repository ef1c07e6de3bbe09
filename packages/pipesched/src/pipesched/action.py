"""What a rank computes: one kind of work, for one stage and one microbatch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from pipesched.errors import ArgumentError, ParseError


class Kind(StrEnum):
    """The kinds of work; the value is the letter they print as."""

    FORWARD = "F"
    BACKWARD = "B"


_TEXT = re.compile(r"([FB])(\d+)\.(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Action:
    """One run of one stage on one microbatch.

    Raises:
        ArgumentError: A negative stage or microbatch.

    Examples:
        >>> str(Action(Kind.FORWARD, stage=2, microbatch=0))
        'F2.0'
        >>> Action.parse("B1.3")
        Action(kind=<Kind.BACKWARD: 'B'>, stage=1, microbatch=3)
    """

    kind: Kind
    """Forward or backward."""
    stage: int
    """The part of the model that runs, from 0."""
    microbatch: int
    """The part of the batch that it runs on, from 0."""

    def __post_init__(self) -> None:
        if self.stage < 0 or self.microbatch < 0:
            raise ArgumentError(
                "stages and microbatches are counted from 0; "
                f"got stage={self.stage} and microbatch={self.microbatch}"
            )

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read what `str` prints.

        Raises:
            ParseError: Anything else.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ParseError(f"an action reads <F|B><stage>.<microbatch>, as F2.0; got {text!r}")
        return cls(Kind(match[1]), int(match[2]), int(match[3]))
