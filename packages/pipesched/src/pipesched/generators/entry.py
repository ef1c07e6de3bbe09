"""What is known of a schedule by its name: an entry of the table of schedules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature

from pipesched.base.checks import check_sizes, match
from pipesched.base.kind import Kind
from pipesched.errors import ArgumentError, PipeschedError, RegistrationError
from pipesched.generators.form import KnownForm
from pipesched.judge.check import check
from pipesched.schedule.schedule import Schedule

_NAME = re.compile(r"[^\s+]+")
_RESERVED = ("search",)
"""What `python -m pipesched` takes for something else than a schedule by name."""


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """A schedule that is known by its name.

    All else that anybody asks about it, such as how many stages each rank has, what a stage holds,
    or whether backwards have two parts, is read off the schedule that its generator makes.
    """

    name: str
    """One word, which the schedules that it makes carry."""
    generator: Callable[..., Schedule]
    """Makes the schedule of so many stages and microbatches. It lists forwards and backwards only,
    and raises `ArgumentError` for sizes for which there is none; its keywords are options."""
    case: tuple[int, int] = (4, 8)
    """Stages and microbatches for which there is one, which stands for all."""
    closed_form: KnownForm | None = None
    """Its bubble and peak memory; None if no formula is known."""

    @property
    def example(self) -> Schedule:
        """The schedule of its case."""
        return self.generator(*self.case)

    @property
    def options(self) -> tuple[str, ...]:
        """Names of its generator's options."""
        parameters = signature(self.generator).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    @property
    def stages_a_rank(self) -> int:
        """How many stages each rank runs, copies not counted."""
        return self.case[0] // len(self.example.ranks)

    @property
    def copies_of_stages(self) -> int:
        """How many ranks run each stage, each for a part of the microbatches."""
        return len(self.example.placement.routes)

    @property
    def kinds(self) -> frozenset[Kind]:
        """What its ranks do."""
        return frozenset(action.kind for actions in self.example.ranks for action in actions)

    def check(self) -> None:
        """Raise `RegistrationError` unless it is the entry of a schedule."""
        if match(_NAME, self.name) is None or self.name in _RESERVED:
            raise RegistrationError(
                f"a schedule's name is one word without a +, and not search; got name={self.name!r}"
            )
        if not callable(self.generator):
            raise RegistrationError(
                "a generator is a function from numbers of stages and microbatches to a Schedule; "
                f"that of {self.name} is {self.generator!r}"
            )
        if self.closed_form is not None and not isinstance(self.closed_form, KnownForm):
            raise RegistrationError(
                f"a closed form is a KnownForm, or None; that of {self.name} is "
                f"{self.closed_form!r}"
            )
        try:
            n_stages, n_microbatches = self.case
            check_sizes(n_stages, n_microbatches)
        except (ArgumentError, TypeError, ValueError) as error:
            raise RegistrationError(
                "a case is the stages and microbatches of a schedule that there is; that of "
                f"{self.name} is {self.case!r}"
            ) from error
        self._check_example(n_stages, n_microbatches)

    def _check_example(self, n_stages: int, n_microbatches: int) -> None:
        of = f"{self.name} of {n_stages} stages and {n_microbatches} microbatches"
        try:
            made = self.example
        except Exception as error:  # whatever a user's function does
            raise RegistrationError(
                f"a generator makes the schedule of its case; that of {of} ends with "
                f"{type(error).__name__}: {error}: give a case= for which there is one"
            ) from error
        if not isinstance(made, Schedule):
            raise RegistrationError(
                f"a generator makes a Schedule; that of {of} makes {made!r:.60}"
            )
        found = (made.name, made.n_stages, made.n_microbatches)
        if found != (self.name, n_stages, n_microbatches):
            raise RegistrationError(
                "a schedule has the name and the sizes that it is made for; that of "
                f"{of} is called {made.name}, of {made.n_stages} stages and "
                f"{made.n_microbatches} microbatches"
            )
        if made.communicates or made.updates:
            raise RegistrationError(
                "a generator lists forwards and backwards, and leaves sends, receives, reductions "
                f"and updates to who runs them; {of} has some"
            )
        routes, ranks = made.placement.routes, range(len(made.ranks))
        on_each = {route.count(rank) for route in routes for rank in ranks}
        if len(on_each) > 1:
            raise RegistrationError(
                f"all ranks of a schedule run equally many stages; those of {of} run "
                f"{min(on_each)} to {max(on_each)}"
            )
        try:
            check(made)
        except PipeschedError as error:
            raise RegistrationError(f"a schedule passes pipesched.check; {of}: {error}") from error
