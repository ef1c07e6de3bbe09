"""Edges: the results that one stage passes to another for every microbatch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pipesched.base.checks import check_sizes, is_count, match
from pipesched.base.kind import Kind
from pipesched.errors import EdgeError, ParseError

Endpoint = tuple[Kind, int]
"""FORWARD or BACKWARD, and the stage that runs it."""

ENDPOINTS = {
    Kind.FORWARD: Kind.FORWARD,
    Kind.BACKWARD: Kind.BACKWARD,
    Kind.INPUT_GRADIENT: Kind.BACKWARD,
}
"""For each kind of action at which edges can end: the kind of its endpoint."""

_TEXT = re.compile(r"([FB])(\d{1,9})->([FB])(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Edge:
    """A result of `src` that `dst` needs for the same microbatch.

    A microbatch goes through F0, F1, ..., B1, B0. An edge points forwards in this order, and from
    one stage to another: what the forward of a stage keeps for its own backward is never sent. The
    edges of the chain (F0->F1, B1->B0) are allowed, and so are longer ones (F0->F2, F0->B1,
    F1->B0). A BACKWARD endpoint receives the gradient of the stage's result, and produces the
    gradient of its input. The action at this endpoint is a whole backward or, if backwards are
    split, the input gradient.

    Raises:
        EdgeError: The edge points backwards in time, joins a stage to itself, or has an endpoint
            that is neither FORWARD nor BACKWARD.

    Examples:
        >>> str(Edge(src=(Kind.FORWARD, 0), dst=(Kind.BACKWARD, 1)))
        'F0->B1'
        >>> Edge.parse("F1->F0")
        Traceback (most recent call last):
        ...
        pipesched.errors.EdgeError: an edge points forwards in F0, F1, ..., B1, B0; got F1->F0
    """

    src: Endpoint
    """The endpoint that produces the result."""
    dst: Endpoint
    """The endpoint that needs it."""

    def __post_init__(self) -> None:
        for end in (self.src, self.dst):
            if not (
                isinstance(end, tuple) and len(end) == 2 and isinstance(end[0], Kind)
            ) or not isinstance(end[1], int):
                raise EdgeError(
                    "an edge joins two endpoints, each a Kind and a stage; "
                    f"got src={self.src!r} and dst={self.dst!r}"
                )
        (src_kind, src_stage), (dst_kind, dst_stage) = self.src, self.dst
        if not {src_kind, dst_kind} <= {Kind.FORWARD, Kind.BACKWARD}:
            raise EdgeError(f"an edge joins forwards and backwards; got {self}")
        if src_stage < 0 or dst_stage < 0:
            raise EdgeError(f"stages are counted from 0; got src={self.src} and dst={self.dst}")
        if src_stage == dst_stage:
            raise EdgeError(
                "an edge joins two stages (a stage keeps its own activations without one); "
                f"got {self}"
            )
        if src_kind is dst_kind:
            forwards = (src_stage < dst_stage) == (src_kind is Kind.FORWARD)
        else:
            forwards = src_kind is Kind.FORWARD
        if not forwards:
            raise EdgeError(f"an edge points forwards in F0, F1, ..., B1, B0; got {self}")

    def __str__(self) -> str:
        return f"{self.src[0]}{self.src[1]}->{self.dst[0]}{self.dst[1]}"

    @classmethod
    def parse(cls, text: str) -> Edge:
        """Read what `str` prints.

        Raises:
            ParseError: The text is not an edge.
            EdgeError: The edge is not allowed.
        """
        parts = match(_TEXT, text)
        if parts is None:
            raise ParseError(f"an edge reads <F|B><stage>-><F|B><stage>, as F0->F1; got {text!r}")
        return cls((Kind(parts[1]), int(parts[2])), (Kind(parts[3]), int(parts[4])))


def chain(
    n_stages: int, skips: Iterable[tuple[int, int]] = (), *, backward: bool = True
) -> tuple[Edge, ...]:
    """The edges of a plain pipeline: activations go up one stage, their gradients come down.

    Args:
        n_stages: Number of stages, at least 1.
        skips: The (from, to) stages of skip connections, such as those from the encoder stages of a
            U-Net to late stages. Their gradients come back the same way.
        backward: Whether to add the edges of gradients; an inference pipeline has none.

    Raises:
        EdgeError: A skip leaves the pipeline, does not go up, or is there already.
        ArgumentError: There is no stage.

    Examples:
        >>> [str(edge) for edge in chain(3)]
        ['F0->F1', 'F1->F2', 'B2->B1', 'B1->B0']
        >>> [str(edge) for edge in chain(3, skips=[(0, 2)])]
        ['F0->F1', 'F0->F2', 'F1->F2', 'B2->B1', 'B2->B0', 'B1->B0']
    """
    check_sizes(n_stages, 1)
    ups = [(s, s + 1) for s in range(n_stages - 1)]
    if skips:
        try:
            ups += [(src, dst) for src, dst in skips]
        except (TypeError, ValueError) as error:
            raise EdgeError(f"a skip is a pair of stages; got skips={skips!r}") from error
        if not all(is_count(stage, 0) for pair in ups for stage in pair):
            raise EdgeError(f"a skip is a pair of stages; got skips={skips!r}")
    pairs = sorted(ups)
    up = [Edge((Kind.FORWARD, src), (Kind.FORWARD, dst)) for src, dst in pairs]
    down = [Edge((Kind.BACKWARD, dst), (Kind.BACKWARD, src)) for src, dst in reversed(pairs)]
    return checked_edges((*up, *(down if backward else ())), n_stages)


def checked_edges(edges: Iterable[Edge], n_stages: int) -> tuple[Edge, ...]:
    """The edges as a tuple, after a check that each is there once and joins stages of the pipeline.

    Raises:
        EdgeError: An edge is there twice, or leaves the pipeline, or is not an `Edge`.
    """
    if not isinstance(edges, Iterable):
        raise EdgeError(f"edges are a sequence of Edge; got edges={edges!r}")
    edges = tuple(edges)
    seen: set[Edge] = set()
    for edge in edges:
        if not isinstance(edge, Edge):
            raise EdgeError(f"edges are a sequence of Edge; got {edge!r} in it")
        if max(edge.src[1], edge.dst[1]) >= n_stages:
            raise EdgeError(f"an edge joins stages 0 to {n_stages - 1}; got {edge}")
        if edge in seen:
            raise EdgeError(f"edges differ from each other; got {edge} twice")
        seen.add(edge)
    return edges
