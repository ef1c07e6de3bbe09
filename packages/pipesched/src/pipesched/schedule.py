"""A pipeline schedule: the order in which every rank runs its actions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from operator import index

from pipesched.action import Action
from pipesched.errors import ArgumentError, ParseError

_HEADER = re.compile(r"(\S+) stages=(\d+) microbatches=(\d+)", re.ASCII)
_RANK = re.compile(r"rank (\d+):((?: \S+)*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Per rank, the actions in the order in which it runs them.

    Only the sizes are checked here, so that wrong schedules can be written down, printed and given
    to `pipesched.check`. A rank may run several stages; the generators give it one.

    Raises:
        ArgumentError: No stage, no microbatch, no rank, or a name that is empty or has spaces.

    Examples:
        >>> from pipesched import one_f_one_b
        >>> print(one_f_one_b(2, 3))
        1f1b stages=2 microbatches=3
        rank 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
        rank 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2
    """

    name: str
    """What made it, as "1f1b"."""
    n_stages: int
    """Parts of the model."""
    n_microbatches: int
    """Parts of the batch."""
    ranks: tuple[tuple[Action, ...], ...]
    """The actions of rank 0, of rank 1, ..., each in order."""

    def __post_init__(self) -> None:
        check_sizes(self.n_stages, self.n_microbatches)
        if not self.ranks:
            raise ArgumentError("a schedule has at least one rank; got ranks=()")
        if not re.fullmatch(r"\S+", self.name):
            raise ArgumentError(f"a schedule's name is one word; got name={self.name!r}")

    @property
    def placement(self) -> tuple[int, ...]:
        """The rank of each stage.

        Asks for a schedule that `pipesched.check` accepts.
        """
        rank_of = {action.stage: rank for rank, row in enumerate(self.ranks) for action in row}
        return tuple(rank_of[stage] for stage in range(self.n_stages))

    def __str__(self) -> str:
        header = f"{self.name} stages={self.n_stages} microbatches={self.n_microbatches}"
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
            ArgumentError: Sizes that no schedule has.
        """
        header, *rows = text.strip().splitlines() or [""]
        match = _HEADER.fullmatch(header)
        if match is None:
            raise ParseError(
                f"a schedule starts with <name> stages=<n> microbatches=<n>; got {header!r}"
            )
        ranks = []
        for rank, row in enumerate(rows):
            line = _RANK.fullmatch(row)
            if line is None or int(line[1]) != rank:
                raise ParseError(
                    f"line {rank + 2} of a schedule starts with rank {rank}:; got {row!r}"
                )
            ranks.append(tuple(map(Action.parse, line[2].split())))
        return cls(match[1], int(match[2]), int(match[3]), tuple(ranks))

    def to_json(self) -> str:
        """A JSON object with the fields' names, actions as text."""
        return json.dumps(
            {
                "name": self.name,
                "n_stages": self.n_stages,
                "n_microbatches": self.n_microbatches,
                "ranks": [[str(action) for action in actions] for actions in self.ranks],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Read what `to_json` writes.

        Raises:
            ParseError: The text is not JSON, or not of a schedule.
            ArgumentError: Sizes that no schedule has.
        """
        try:
            data = json.loads(text)
            ranks = tuple(tuple(map(Action.parse, actions)) for actions in data["ranks"])
            sizes = index(data["n_stages"]), index(data["n_microbatches"])
            return cls(data["name"], *sizes, ranks)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ParseError(
                "a schedule is a JSON object with name, n_stages, n_microbatches and ranks; "
                f"got {text[:60]!r} ({type(error).__name__}: {error})"
            ) from error


def check_sizes(n_stages: int, n_microbatches: int) -> None:
    """Raise `ArgumentError` unless there is a stage and a microbatch."""
    if n_stages < 1 or n_microbatches < 1:
        raise ArgumentError(
            "a pipeline has at least one stage and one microbatch; "
            f"got n_stages={n_stages} and n_microbatches={n_microbatches}"
        )
