"""A pipeline schedule: the order in which every rank runs its actions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from operator import index

from pipesched.base import versioned
from pipesched.base.action import Action
from pipesched.base.checks import check_kind, check_sizes, match
from pipesched.base.edge import Edge, chain, checked_edges
from pipesched.base.kind import Kind
from pipesched.base.placement import Placement
from pipesched.base.versioned import Reader, read_all, read_text, read_truth
from pipesched.errors import ArgumentError, EdgeError, ParseError

_HEADER = re.compile(
    r"(?P<name>\S+) stages=(?P<stages>\d{1,9}) microbatches=(?P<microbatches>\d{1,9})"
    r"( placement=(?P<placement>\S+))?( edges=(?P<edges>\S*))?(?P<forward_only> backward=no)?",
    re.ASCII,
)
_NAME = re.compile(r"\S+")
_RANK = re.compile(r"rank (\d{1,9}):((?: \S+)*)", re.ASCII)

_FIELDS: dict[str, Reader] = {
    "name": read_text,
    "n_stages": index,
    "n_microbatches": index,
    "ranks": partial(read_all, partial(read_all, Action.parse)),
    "placement": Placement.parse,
    "edges": partial(read_all, Edge.parse),
    "backward": read_truth,
}


@dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """For each rank, the actions in the order in which it runs them.

    The constructor checks only sizes, so that wrong schedules can be written, printed and passed to
    `pipesched.check`. Two groups of actions are either all there or all left out:

    - sends and receives, one of each for every edge and microbatch that changes ranks. If they are
      left out, the runtime adds them (as `pipesched.with_communication` does).
    - reductions, one of each stage, and updates, which need the reductions. If they are left out,
      they come at the end.

    The arguments of the constructor are the fields. These have defaults:
        placement: One route, taken from the actions: the rank of a stage is the first that has an
            action of it.
        edges: Those of `chain(n_stages, backward=backward)`.
        backward: True.

    Raises:
        ArgumentError: There is no stage or no microbatch, or more of both than
            `pipesched.base.checks.MOST`; there is no rank; the name is empty or has spaces; or the
            placement is for other stages, microbatches or ranks.
        EdgeError: An edge is there twice, or joins a stage or a backward that is not there.

    Examples:
        >>> from pipesched import make
        >>> schedule = make("1f1b", 2, 3)
        >>> print(schedule)
        1f1b stages=2 microbatches=3
        rank 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
        rank 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
        >>> schedule.placement.rank(stage=1, microbatch=0)
        1
    """

    name: str
    """The kind of schedule, such as "1f1b"."""
    n_stages: int
    """Number of stages."""
    n_microbatches: int
    """Number of microbatches."""
    ranks: tuple[tuple[Action, ...], ...]
    """The actions of rank 0, of rank 1, ..., each in order."""
    placement: Placement
    """The rank that runs each stage, for each microbatch."""
    edges: tuple[Edge, ...]
    """The results that stages pass to each other for every microbatch."""
    backward: bool
    """Whether this is training; if not, it is an inference pipeline with only forwards."""

    def __init__(
        self,
        name: str,
        n_stages: int,
        n_microbatches: int,
        ranks: tuple[tuple[Action, ...], ...],
        placement: Placement | None = None,
        edges: Iterable[Edge] | None = None,
        backward: bool = True,
    ) -> None:
        check_sizes(n_stages, n_microbatches)
        try:  # makes tuples of other sequences
            ranks = tuple(map(tuple, ranks))
        except TypeError as error:
            raise ArgumentError(
                f"ranks are sequences of actions; got ranks={ranks!r:.60}"
            ) from error
        if not ranks:
            raise ArgumentError("a schedule has at least one rank; got ranks=()")
        for rank, actions in enumerate(ranks):
            for action in actions:
                if not isinstance(action, Action):
                    raise ArgumentError(
                        f"ranks are sequences of actions; got {action!r:.60} on rank {rank}"
                    )
        if match(_NAME, name) is None:
            raise ArgumentError(f"a schedule's name is one word; got name={name!r}")
        check_kind("backward", backward, bool)
        if placement is not None:
            check_kind("placement", placement, Placement)
        fields = {
            "name": name,
            "n_stages": int(n_stages),
            "n_microbatches": int(n_microbatches),
            "ranks": ranks,
            "placement": _one_route(n_stages, ranks) if placement is None else placement,
            "edges": (
                chain(n_stages, backward=backward)
                if edges is None
                else checked_edges(edges, n_stages)
            ),
            "backward": backward,
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)
        self.placement.check_fits(n_stages, n_microbatches, len(ranks))
        self._check_edges()

    def _check_edges(self) -> None:
        if not self.backward and any(edge.dst[0] is Kind.BACKWARD for edge in self.edges):
            edges = ",".join(map(str, self.edges))
            raise EdgeError(
                f"a schedule with backward=False has edges of forwards only; got edges={edges}"
            )

    @property
    def communicates(self) -> bool:
        """Whether sends and receives are among the actions."""
        return any(action.edge is not None for actions in self.ranks for action in actions)

    @property
    def updates(self) -> bool:
        """Whether reductions and updates are among the actions."""
        return any(action.microbatch is None for actions in self.ranks for action in actions)

    def __str__(self) -> str:
        header = f"{self.name} stages={self.n_stages} microbatches={self.n_microbatches}"
        if self.placement != _one_route(self.n_stages, self.ranks):
            header += f" placement={self.placement}"
        if self.edges != chain(self.n_stages, backward=self.backward):
            header += f" edges={','.join(map(str, self.edges))}"
        if not self.backward:
            header += " backward=no"
        rows = [
            " ".join([f"rank {rank}:", *map(str, actions)])
            for rank, actions in enumerate(self.ranks)
        ]
        return "\n".join([header, *rows])

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read what `str` prints.

        Raises:
            ParseError: A line does not have this format.
            ArgumentError: The sizes or the placement are not allowed.
            EdgeError: An edge is not allowed.
        """
        if not isinstance(text, str):
            raise ParseError(f"a schedule is read from a text; got {text!r:.60}")
        header, *rows = text.strip().splitlines() or [""]
        parts = match(_HEADER, header)
        if parts is None:
            raise ParseError(
                "a schedule starts with <name> stages=<n> microbatches=<n>, then, where they "
                "differ from the defaults, placement=<placement> edges=<edge>,<edge>,... "
                f"backward=no; got {header!r}"
            )
        ranks = []
        for rank, row in enumerate(rows):
            line = _RANK.fullmatch(row)
            if line is None or int(line[1]) != rank:
                raise ParseError(
                    f"line {rank + 2} of a schedule starts with rank {rank}:; got {row!r}"
                )
            ranks.append(tuple(map(Action.parse, line[2].split())))
        placement, edges = parts["placement"], parts["edges"]
        return cls(
            parts["name"],
            int(parts["stages"]),
            int(parts["microbatches"]),
            tuple(ranks),
            None if placement is None else Placement.parse(placement),
            None if edges is None else map(Edge.parse, edges.split(",") if edges else ()),
            parts["forward_only"] is None,
        )

    def to_json(self) -> str:
        """A JSON object with a version and the fields; actions, edges and others are texts."""
        return versioned.write(self, _FIELDS)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Read what `to_json` writes.

        Raises:
            ParseError: The text is not JSON, or not that of a schedule of this version.
            ArgumentError: The sizes or the placement are not allowed.
            EdgeError: An edge is not allowed.
        """
        return versioned.read("a schedule", cls, _FIELDS, text)


def _one_route(n_stages: int, ranks: tuple[tuple[Action, ...], ...]) -> Placement:
    """A placement with each stage on the first rank that has it.

    A stage that no rank has is on rank 0; `check` then says what is missing.
    """
    rank_of = [0] * n_stages
    for rank in reversed(range(len(ranks))):
        for action in ranks[rank]:
            if action.stage < n_stages:
                rank_of[action.stage] = rank
    return Placement((tuple(rank_of),))
