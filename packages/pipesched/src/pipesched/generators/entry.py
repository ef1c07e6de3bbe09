"""An entry of the table of schedules: what is known about a schedule by its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from pipesched.base.checks import check_sizes, match
from pipesched.base.kind import Kind
from pipesched.errors import (
    ArgumentError,
    PipeschedError,
    RegistrationError,
    UnknownScheduleError,
)
from pipesched.generators.form import KnownForm
from pipesched.judge.check import check
from pipesched.schedule.schedule import Schedule

_NAME = re.compile(r"[^\s+]+")
_RESERVED = ("search",)
"""Words with another meaning on the command line of `python -m pipesched`."""

_CHUNKS = "n_chunks"
"""The option of generators for any number of stages on each rank."""


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """A schedule that is known by its name.

    Every other property, such as how many stages each rank has, what a stage holds, or whether
    backwards are split, is read from a schedule that the generator makes.
    """

    name: str
    """One word; it is also the name of the schedules that the generator makes."""
    generator: Callable[..., Schedule]
    """Makes a schedule from the numbers of stages and microbatches. The schedule has only forwards
    and backwards. It raises `ArgumentError` for sizes for which there is no schedule; its keywords
    are options."""
    case: tuple[int, int] = (4, 8)
    """Stages and microbatches of a schedule that exists and is an example for all others."""
    closed_form: KnownForm | None = None
    """Its bubble and peak memory; None if no formula is known."""

    @property
    def example(self) -> Schedule:
        """The schedule for `case`."""
        return self.generator(*self.case)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the generator's options."""
        parameters = signature(self.generator).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    @property
    def has_chunks(self) -> bool:
        """Whether it exists for any number of stages on each rank; see `with_chunks`."""
        return _CHUNKS in self.options

    @property
    def stages_a_rank(self) -> int:
        """How many stages each rank runs, without counting copies."""
        return self.case[0] // len(self.example.ranks)

    @property
    def copies_of_stages(self) -> int:
        """How many ranks run each stage, each for a part of the microbatches."""
        return len(self.example.placement.routes)

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of actions that its ranks run."""
        return frozenset(action.kind for actions in self.example.ranks for action in actions)

    def with_chunks(self, n_chunks: int) -> ScheduleEntry:
        """The entry of the same schedule with this many stages on each rank, named `NAME:CHUNKS`.

        Raises:
            UnknownScheduleError: The generator has no option `n_chunks`.
        """
        if not self.has_chunks:
            raise UnknownScheduleError(
                "NAME:CHUNKS is a schedule that exists for any number of stages a rank; those of "
                f"{self.name} have {self.stages_a_rank}: leave out :{n_chunks}"
            )
        name = f"{self.name}:{n_chunks}"

        def generator(n_stages: int, n_microbatches: int, **options: Any) -> Schedule:
            made = self.generator(n_stages, n_microbatches, n_chunks=n_chunks, **options)
            return replace(made, name=name)

        of_ours = signature(self.generator)
        others = [p for p in of_ours.parameters.values() if p.name != _CHUNKS]
        generator.__signature__ = of_ours.replace(parameters=others)  # type: ignore[attr-defined]
        return ScheduleEntry(name, generator, (2 * n_chunks, self.case[1]), self.closed_form)

    def check(self) -> None:
        """Raise `RegistrationError` unless this is a valid entry."""
        if match(_NAME, self.name) is None or self.name in _RESERVED:
            raise RegistrationError(
                f"a schedule's name is one word without a +, and not search; got name={self.name!r}"
            )
        if not callable(self.generator):
            raise RegistrationError(
                "a generator is a function from numbers of stages and microbatches to a Schedule; "
                f"the generator of {self.name} is {self.generator!r}"
            )
        if self.closed_form is not None and not isinstance(self.closed_form, KnownForm):
            raise RegistrationError(
                f"a closed form is a KnownForm, or None; the closed form of {self.name} is "
                f"{self.closed_form!r}"
            )
        try:
            n_stages, n_microbatches = self.case
            check_sizes(n_stages, n_microbatches)
        except (ArgumentError, TypeError, ValueError) as error:
            raise RegistrationError(
                "a case is the numbers of stages and microbatches of a schedule that exists; the "
                f"case of {self.name} is {self.case!r}"
            ) from error
        self._check_example(n_stages, n_microbatches)

    def _check_example(self, n_stages: int, n_microbatches: int) -> None:
        described = f"{self.name} of {n_stages} stages and {n_microbatches} microbatches"
        try:
            example = self.example
        except Exception as error:  # a user's function may raise anything
            raise RegistrationError(
                f"a generator makes the schedule of its case; that of {described} ends with "
                f"{type(error).__name__}: {error}: give a case= for which there is a schedule"
            ) from error
        if not isinstance(example, Schedule):
            raise RegistrationError(
                f"a generator makes a Schedule; that of {described} makes {example!r:.60}"
            )
        header = (example.name, example.n_stages, example.n_microbatches)
        if header != (self.name, n_stages, n_microbatches):
            raise RegistrationError(
                "a schedule has the name and the sizes that it is made for; that of "
                f"{described} is called {example.name}, and has {example.n_stages} stages and "
                f"{example.n_microbatches} microbatches"
            )
        if example.communicates or example.updates:
            raise RegistrationError(
                "a generator lists forwards and backwards, and leaves sends, receives, reductions "
                f"and updates to the runtime; {described} has some"
            )
        routes, ranks = example.placement.routes, range(len(example.ranks))
        on_each = {route.count(rank) for route in routes for rank in ranks}
        if len(on_each) > 1:
            raise RegistrationError(
                f"all ranks of a schedule run equally many stages; those of {described} run "
                f"{min(on_each)} to {max(on_each)}"
            )
        try:
            check(example)
        except PipeschedError as error:
            raise RegistrationError(
                f"a schedule passes pipesched.check; {described}: {error}"
            ) from error
