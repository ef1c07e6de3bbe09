"""The actions of a rank: each is one kind of work, for one stage and one microbatch."""

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
        ArgumentError: The stage or the microbatch is negative; the microbatch is missing, or a
            reduction or an update, which are done once a step, has one; a send or receive has no
            edge, or one that does not end at the stage; or any other action has an edge.

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
    """The kind of work."""
    stage: int
    """The stage that it is done for, from 0; for a send the source, for a receive the destination
    of its edge."""
    microbatch: int | None = None
    """The microbatch that it is done for, from 0; None for a reduction or an update, which are done
    once for all."""
    edge: Edge | None = None
    """The edge over which a send or receive moves a result; None for other kinds."""

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
                "a reduction and an update are for all microbatches (None), and any other action "
                f"is for one; got kind={kind} and microbatch={microbatch}"
            )
        if kind is Kind.SEND or kind is Kind.RECEIVE:
            if (
                not isinstance(edge, Edge)
                or stage != (edge.src if kind is Kind.SEND else edge.dst)[1]
            ):
                raise ArgumentError(
                    "the stage of a send is its edge's src, and that of a receive its edge's dst; "
                    f"got {kind} of edge {edge} with stage {stage}"
                )
        elif edge is not None:
            raise ArgumentError(f"only sends and receives have an edge; got {kind} with {edge}")

    @classmethod
    def send(cls, edge: Edge, microbatch: int) -> Action:
        """The send that starts a transfer over `edge`, on the rank of its `src`."""
        return cls(Kind.SEND, edge.src[1], microbatch, edge)

    @classmethod
    def receive(cls, edge: Edge, microbatch: int) -> Action:
        """The receive that ends a transfer over `edge`, on the rank of its `dst`."""
        return cls(Kind.RECEIVE, edge.dst[1], microbatch, edge)

    @property
    def one_microbatch(self) -> int:
        """The microbatch, for an action that has one.

        Raises:
            ArgumentError: This is a reduction or an update.
        """
        if self.microbatch is None:
            raise ArgumentError(f"a reduction and an update have no microbatch; got {self}")
        return self.microbatch

    @property
    def moved_over(self) -> Edge:
        """The edge of a send or receive.

        Raises:
            ArgumentError: This is neither a send nor a receive.
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
            ParseError: The text is not an action.
            EdgeError: The text has an edge that is not allowed.
        """
        parts = match(_TEXT, text)
        if parts is None:
            raise ParseError(
                "an action reads <F|B|I|W|R><stage>.<microbatch>, as F2.0, or <G|U><stage>, or "
                f"<SEND|RECV>_<edge>.<microbatch>, as SEND_F0->F1.3; got {text!r}"
            )
        if parts[1]:
            return cls(Kind(parts[1]), int(parts[2]), int(parts[3]))
        if parts[4]:
            return cls(Kind(parts[4]), int(parts[5]))
        make = cls.send if parts[6] == Kind.SEND else cls.receive
        return make(Edge.parse(parts[7]), int(parts[8]))
