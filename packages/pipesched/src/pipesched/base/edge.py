"""Which results one stage passes to another, for every microbatch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pipesched.base.checks import check_sizes, is_count, match
from pipesched.base.kind import Kind
from pipesched.errors import EdgeError, ParseError

Endpoint = tuple[Kind, int]
"""FORWARD or BACKWARD, and the stage that does it."""

ENDPOINTS = {
    Kind.FORWARD: Kind.FORWARD,
    Kind.BACKWARD: Kind.BACKWARD,
    Kind.INPUT_GRADIENT: Kind.BACKWARD,
}
"""By the kind of an action that takes and leaves what edges carry: the endpoint it stands for."""

_TEXT = re.compile(r"([FB])(\d{1,9})->([FB])(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Edge:
    """A result of `src` that `dst` needs, of the same microbatch.

    A microbatch goes through F0, F1, ..., B1, B0. An edge points forwards in that order, and from
    one stage to another: what a stage's forward leaves for its own backward never travels.
    Both the chain's edges (F0->F1, B1->B0) and longer ones (F0->F2, F0->B1, F1->B0) do.
    BACKWARD stands for the gradient of what a stage reads, and of what it makes: the action that
    takes and leaves it is a whole backward or, if that is split, the input gradient.

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
    """Where the result is made."""
    dst: Endpoint
    """Where it is needed."""

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
            EdgeError: It is one that cannot be.
        """
        found = match(_TEXT, text)
        if found is None:
            raise ParseError(f"an edge reads <F|B><stage>-><F|B><stage>, as F0->F1; got {text!r}")
        return cls((Kind(found[1]), int(found[2])), (Kind(found[3]), int(found[4])))


def chain(
    n_stages: int, skips: Iterable[tuple[int, int]] = (), *, backward: bool = True
) -> tuple[Edge, ...]:
    """The edges of a plain pipeline: activations go up one stage, their gradients come down.

    Args:
        n_stages: At least 1.
        skips: (from, to) stages of further activations, as of a U-Net's encoder stage that feeds a
            late stage; their gradients come back the same way.
        backward: Whether the gradients are there; an inference pipeline has none.

    Raises:
        EdgeError: A skip that leaves the pipeline, does not go up, or is there already.
        ArgumentError: No stage.

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
    """The edges as a tuple, if each is there once and joins stages of the pipeline.

    Raises:
        EdgeError: Otherwise.
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
            raise EdgeError(f"an edge is given once, whatever it carries; got {edge} twice")
        seen.add(edge)
    return edges
