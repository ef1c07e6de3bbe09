"""What a rank does: one kind of work, for one stage and one microbatch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipesched.base.checks import is_count, match
from pipesched.base.edge import Edge
from pipesched.base.kind import Kind
from pipesched.errors import ArgumentError, ParseError

_TEXT = re.compile(
    r"([FBIWR])(\d{1,9})\.(\d{1,9})|([GU])(\d{1,9})"
    r"|(SEND|RECV)_([FB]\d{1,9}->[FB]\d{1,9})\.(\d{1,9})",
    re.ASCII,
)
_ONCE_A_STEP = (Kind.REDUCE, Kind.UPDATE)


@dataclass(frozen=True, slots=True, repr=False)
class Action:
    """One item of a rank's list.

    Raises:
        ArgumentError: A negative stage or microbatch; a microbatch missing, or given to a
            reduction or an update, which are done once a step; an edge missing from a send or
            receive, given to anything else, or one that does not end at the stage.

    Examples:
        >>> str(Action(Kind.FORWARD, stage=2, microbatch=0))
        'F2.0'
        >>> Action.parse("B1.3").kind
        <Kind.BACKWARD: 'B'>
        >>> str(Action.send(Edge.parse("F0->F1"), microbatch=3))
        'SEND_F0->F1.3'
        >>> Action(Kind.UPDATE, stage=2)
        Action.parse('U2')
    """

    kind: Kind
    """What is done."""
    stage: int
    """The part of the model that it is done for, from 0; of an edge, the end where this stands."""
    microbatch: int | None = None
    """The part of the batch, from 0; None if of all: a reduction or an update."""
    edge: Edge | None = None
    """What a send or receive moves a result over; None otherwise."""

    def __post_init__(self) -> None:
        kind, stage, microbatch, edge = self.kind, self.stage, self.microbatch, self.edge
        if not (is_count(stage, 0) and (microbatch is None or is_count(microbatch, 0))):
            raise ArgumentError(
                "stages and microbatches are counted from 0; "
                f"got stage={stage!r} and microbatch={microbatch!r}"
            )
        if not isinstance(kind, Kind):
            raise ArgumentError(f"an action's kind is a Kind; got kind={kind!r}")
        if (microbatch is None) is not (kind in _ONCE_A_STEP):
            raise ArgumentError(
                "a reduction and an update are of all microbatches (None), all else is of one; "
                f"got kind={kind} and microbatch={microbatch}"
            )
        if kind is Kind.SEND or kind is Kind.RECEIVE:
            if (
                not isinstance(edge, Edge)
                or stage != (edge.src if kind is Kind.SEND else edge.dst)[1]
            ):
                raise ArgumentError(
                    "a send stands at its edge's src, a receive at its dst; "
                    f"got {kind} of edge {edge} at stage {stage}"
                )
        elif edge is not None:
            raise ArgumentError(f"only sends and receives have an edge; got {kind} with {edge}")

    @classmethod
    def send(cls, edge: Edge, microbatch: int) -> Action:
        """The start of a transfer over `edge`, on the rank of its `src`."""
        return cls(Kind.SEND, edge.src[1], microbatch, edge)

    @classmethod
    def receive(cls, edge: Edge, microbatch: int) -> Action:
        """The arrival of a transfer over `edge`, on the rank of its `dst`."""
        return cls(Kind.RECEIVE, edge.dst[1], microbatch, edge)

    @property
    def one_microbatch(self) -> int:
        """The microbatch of what is done for one.

        Raises:
            ArgumentError: A reduction or an update.
        """
        if self.microbatch is None:
            raise ArgumentError(
                f"all but a reduction and an update is of one microbatch; got {self}"
            )
        return self.microbatch

    @property
    def moved_over(self) -> Edge:
        """The edge of a send or receive.

        Raises:
            ArgumentError: Anything else.
        """
        if self.edge is None:
            raise ArgumentError(f"only sends and receives have an edge; got {self}")
        return self.edge

    def __str__(self) -> str:
        if self.edge is not None:
            return f"{self.kind}_{self.edge}.{self.microbatch}"
        if self.microbatch is None:
            return f"{self.kind}{self.stage}"
        return f"{self.kind}{self.stage}.{self.microbatch}"

    def __repr__(self) -> str:
        return f"Action.parse({str(self)!r})"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read what `str` prints.

        Raises:
            ParseError: Anything else.
            EdgeError: An edge that cannot be.
        """
        found = match(_TEXT, text)
        if found is None:
            raise ParseError(
                "an action reads <F|B|I|W|R><stage>.<microbatch>, as F2.0, or <G|U><stage>, or "
                f"<SEND|RECV>_<edge>.<microbatch>, as SEND_F0->F1.3; got {text!r}"
            )
        if found[1]:
            return cls(Kind(found[1]), int(found[2]), int(found[3]))
        if found[4]:
            return cls(Kind(found[4]), int(found[5]))
        make = cls.send if found[6] == Kind.SEND else cls.receive
        return make(Edge.parse(found[7]), int(found[8]))
