"""Placements: the rank that runs each stage, for each microbatch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from pipesched.base.checks import MOST, is_count, match
from pipesched.errors import ArgumentError, ParseError

_ROUTE, _RUN = r"\d{1,9}(?:,\d{1,9})*", r"\d{1,9}x\d{1,9}"
_TEXT = re.compile(rf"({_ROUTE}(?:\|{_ROUTE})*)(?::({_RUN}(?:,{_RUN})*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks of the stages, along each route that microbatches take through the pipeline.

    Most pipelines have one route, which all microbatches take. If there are several routes, each
    stage is on several ranks, with a copy of its parameters on each, and a microbatch uses only the
    copies on its route.

    Raises:
        ArgumentError: There is no route or no stage, routes have different lengths, a number is
            negative, a microbatch has a route that is not there, or `route_of` is not empty though
            there is only one route.

    Examples:
        >>> Placement.looped(2, n_chunks=2)
        Placement(routes=((0, 1, 0, 1),), route_of=())
        >>> Placement.v(2).stages_of(0)
        (0, 3)
        >>> both_ways = Placement.bidirectional(2, n_microbatches=4)
        >>> both_ways
        Placement(routes=((0, 1), (1, 0)), route_of=(0, 0, 1, 1))
        >>> both_ways.rank(stage=0, microbatch=0), both_ways.rank(stage=0, microbatch=3)
        (0, 1)
    """

    routes: tuple[tuple[int, ...], ...]
    """For each route, the rank of stage 0, of stage 1, ..."""
    route_of: tuple[int, ...] = ()
    """The route of microbatch 0, of microbatch 1, ...; empty if there is one route."""

    def __post_init__(self) -> None:
        try:  # makes tuples of other sequences
            object.__setattr__(self, "routes", tuple(tuple(route) for route in self.routes))
            object.__setattr__(self, "route_of", tuple(self.route_of))
        except TypeError as error:
            raise ArgumentError(
                "routes are sequences of ranks, and route_of is a sequence of routes; "
                f"got routes={self.routes!r} and route_of={self.route_of!r}"
            ) from error
        ranks = [rank for route in self.routes for rank in route]
        if (
            len({len(route) for route in self.routes}) != 1
            or not ranks
            or not all(is_count(rank, 0) and rank < MOST for rank in ranks)
        ):
            raise ArgumentError(
                "a placement has at least one route, each with one rank (from 0) for every stage; "
                f"got routes={self.routes}"
            )
        n_routes = len(self.routes)
        if (n_routes == 1) is not (self.route_of == ()) or not all(
            is_count(route, 0) and route < n_routes for route in self.route_of
        ):
            raise ArgumentError(
                "route_of is empty if there is one route, and has a route for every microbatch if "
                f"there are several; got {n_routes} routes and route_of={self.route_of}"
            )

    @classmethod
    def linear(cls, n_ranks: int) -> Placement:
        """One stage on each rank, in order."""
        return cls.looped(n_ranks, 1)

    @classmethod
    def looped(cls, n_ranks: int, n_chunks: int) -> Placement:
        """`n_chunks` stages on each rank: stage s is on rank s mod n_ranks."""
        _check_counts(n_ranks, n_chunks)
        return cls((tuple(range(n_ranks)) * n_chunks,))

    @classmethod
    def v(cls, n_ranks: int, n_chunks: int = 2) -> Placement:
        """`n_chunks` stages on each rank: stages go up the ranks, then down, and so on.

        At each turn, two successive stages are on the same rank.
        """
        _check_counts(n_ranks, n_chunks)
        up = tuple(range(n_ranks))
        return cls((sum(((up, up[::-1])[c % 2] for c in range(n_chunks)), ()),))

    @classmethod
    def bidirectional(cls, n_ranks: int, n_microbatches: int) -> Placement:
        """Two routes with one stage on each rank: one goes up the ranks, the other goes down.

        The first half of the microbatches go up; if their number is odd, the middle one, too.
        """
        _check_counts(n_ranks, n_microbatches)
        up = tuple(range(n_ranks))
        n_up = (n_microbatches + 1) // 2
        return cls((up, up[::-1]), (0,) * n_up + (1,) * (n_microbatches - n_up))

    @property
    def n_stages(self) -> int:
        """The number of stages, on each route."""
        return len(self.routes[0])

    @property
    def n_ranks(self) -> int:
        """One more than the highest rank."""
        return 1 + max(map(max, self.routes))

    def rank(self, stage: int, microbatch: int) -> int:
        """The rank that runs `stage` on `microbatch`.

        Raises:
            ArgumentError: There is no such stage or microbatch.
        """
        try:
            if stage >= 0 and microbatch >= 0:
                return self.routes[self.route_of[microbatch] if self.route_of else 0][stage]
        except (IndexError, TypeError):
            pass  # the error is raised below
        raise ArgumentError(
            f"a placement of {self.n_stages} stages has no such stage or microbatch; "
            f"got stage={stage!r} and microbatch={microbatch!r}"
        )

    def ranks_of(self, stage: int) -> tuple[int, ...]:
        """The ranks that have the parameters of `stage`, ascending: one for each copy.

        Raises:
            ArgumentError: There is no such stage.
        """
        if not is_count(stage, 0) or stage >= self.n_stages:
            raise ArgumentError(
                f"a placement has the stages 0 to {self.n_stages - 1}; got stage={stage!r}"
            )
        return tuple(sorted({route[stage] for route in self.routes}))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages whose parameters `rank` has, ascending: its chunks."""
        return tuple(s for s in range(self.n_stages) if any(r[s] == rank for r in self.routes))

    def chunk(self, rank: int, stage: int) -> int:
        """The index of `stage` among the stages of `rank`.

        Raises:
            ArgumentError: `rank` does not have this stage.
        """
        stages = self.stages_of(rank)
        if stage not in stages:
            raise ArgumentError(f"rank {rank} has the stages {stages}; got stage={stage}")
        return stages.index(stage)

    def check_fits(self, n_stages: int, n_microbatches: int, n_ranks: int) -> None:
        """Raise `ArgumentError` unless this places these stages and microbatches on these ranks."""
        if (
            self.n_stages != n_stages
            or len(self.route_of) not in (0, n_microbatches)
            or self.n_ranks > n_ranks
        ):
            raise ArgumentError(
                "a placement has the stages, microbatches and ranks of its schedule; "
                f"got {self} for {n_stages} stages, {n_microbatches} microbatches and "
                f"{n_ranks} ranks"
            )

    def __str__(self) -> str:
        routes = "|".join(",".join(map(str, route)) for route in self.routes)
        if not self.route_of:
            return routes
        runs = ",".join(f"{route}x{len(list(run))}" for route, run in groupby(self.route_of))
        return f"{routes}:{runs}"

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Read what `str` prints.

        Raises:
            ParseError: The text is not a placement.
            ArgumentError: The placement is not allowed.
        """
        parts = match(_TEXT, text)
        if parts is None:
            raise ParseError(
                "a placement reads <rank>,<rank>,...; with several routes it reads "
                "<route>|<route>:<route>x<n>,..., where each route is for n microbatches, as "
                f"0,1|1,0:0x2,1x2; got {text!r}"
            )
        routes = tuple(tuple(map(int, route.split(","))) for route in parts[1].split("|"))
        runs = [run.split("x") for run in parts[2].split(",")] if parts[2] else []
        if sum(int(n) for _, n in runs) > MOST:
            raise ParseError(f"a placement has at most {MOST:,} microbatches; got {text!r:.60}")
        return cls(routes, tuple(int(route) for route, n in runs for _ in range(int(n))))


def _check_counts(n_ranks: int, n_others: int) -> None:
    if not is_count(n_ranks) or not is_count(n_others):
        raise ArgumentError(
            "a placement has at least one rank, and one chunk or microbatch; "
            f"got {n_ranks!r} ranks and {n_others!r} chunks or microbatches"
        )
    if n_ranks * n_others > MOST:
        raise ArgumentError(
            f"ranks times chunks or microbatches are at most {MOST:,}; "
            f"got {n_ranks} ranks and {n_others} chunks or microbatches"
        )
