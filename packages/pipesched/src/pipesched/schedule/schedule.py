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
    """Per rank, the actions in the order in which it runs them.

    Only the sizes are checked here, so that wrong schedules can be written down, printed and given
    to `pipesched.check`. The actions are of one of these forms, or of both:

    - with sends and receives, one of each for every edge and microbatch that changes ranks; or
      without any, which leaves them to who runs it (`pipesched.with_communication` adds them).
    - with a reduction and an update of each stage; or without any, which leaves them to the end.

    Args of the constructor are the fields; those that may be left out:
        placement: One route, read off the actions: a stage's rank is the first that has one.
        edges: Those of `chain(n_stages, backward=backward)`.
        backward: True.

    Raises:
        ArgumentError: No stage, no microbatch, or more of both than `pipesched.base.checks.MOST`;
            no rank, a name that is empty or has spaces, or a placement of other stages,
            microbatches or ranks.
        EdgeError: An edge twice, to a stage that is not there, or of a backward that is not there.

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
    """What made it, as "1f1b"."""
    n_stages: int
    """Parts of the model."""
    n_microbatches: int
    """Parts of the batch."""
    ranks: tuple[tuple[Action, ...], ...]
    """The actions of rank 0, of rank 1, ..., each in order."""
    placement: Placement
    """Which rank runs which stage, for which microbatch."""
    edges: tuple[Edge, ...]
    """What the stages pass to each other, for every microbatch."""
    backward: bool
    """Whether it trains; if not, it is an inference pipeline, of forwards only."""

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
        try:  # tuples, whatever sequences were given
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
        """Whether the sends and receives are among the actions."""
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
            ParseError: A line that is something else.
            ArgumentError: Sizes or a placement that no schedule has.
            EdgeError: An edge that cannot be.
        """
        if not isinstance(text, str):
            raise ParseError(f"a schedule is read from a text; got {text!r:.60}")
        header, *rows = text.strip().splitlines() or [""]
        found = match(_HEADER, header)
        if found is None:
            raise ParseError(
                "a schedule starts with <name> stages=<n> microbatches=<n>, then, if they are "
                "not the usual ones, placement=<placement> edges=<edge>,<edge>,... backward=no; "
                f"got {header!r}"
            )
        ranks = []
        for rank, row in enumerate(rows):
            line = _RANK.fullmatch(row)
            if line is None or int(line[1]) != rank:
                raise ParseError(
                    f"line {rank + 2} of a schedule starts with rank {rank}:; got {row!r}"
                )
            ranks.append(tuple(map(Action.parse, line[2].split())))
        placement, edges = found["placement"], found["edges"]
        return cls(
            found["name"],
            int(found["stages"]),
            int(found["microbatches"]),
            tuple(ranks),
            None if placement is None else Placement.parse(placement),
            None if edges is None else map(Edge.parse, edges.split(",") if edges else ()),
            found["forward_only"] is None,
        )

    def to_json(self) -> str:
        """A JSON object with the fields' names, and a version; all but numbers as text."""
        return versioned.write(self, _FIELDS)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Read what `to_json` writes.

        Raises:
            ParseError: The text is not JSON, or not of a schedule, or of another version.
            ArgumentError: Sizes or a placement that no schedule has.
            EdgeError: An edge that cannot be.
        """
        return versioned.read("a schedule", cls, _FIELDS, text)


def _one_route(n_stages: int, ranks: tuple[tuple[Action, ...], ...]) -> Placement:
    """Each stage on the first rank that has it; one that is nowhere, for `check`, on rank 0."""
    rank_of = [0] * n_stages
    for rank in reversed(range(len(ranks))):
        for action in ranks[rank]:
            if action.stage < n_stages:
                rank_of[action.stage] = rank
    return Placement((tuple(rank_of),))
