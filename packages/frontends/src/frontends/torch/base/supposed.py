"""Decisions of a step's Python code by numbers that the step itself computes.

`if torch.isfinite(loss)` asks for a number that is not there while the step is captured. An answer
is supposed then, and the program gives the number back: where it turns out that Python would have
been told otherwise, nothing is kept of the run, and the call is captured again with the answers
that it gave, as another variant. An answer with which the user's code raises an error is not
supposed, if there is another one: checks of arguments, as those of `torch.distributions`, pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy  # type: ignore[import-untyped]

from frontends.errors import FrontendsError, UnsupportedStepError


class IsFinite(sympy.logic.boolalg.BooleanFunction):  # type: ignore[misc]
    """`math.isfinite` of a number without a value."""

    @classmethod
    def eval(cls, number: Any) -> Any:
        """The answer, as soon as the number is there."""
        return sympy.sympify(math.isfinite(float(number))) if number.is_number else None


class IsNan(sympy.logic.boolalg.BooleanFunction):  # type: ignore[misc]
    """`math.isnan` of a number without a value."""

    @classmethod
    def eval(cls, number: Any) -> Any:
        """The answer, as soon as the number is there."""
        return sympy.sympify(math.isnan(float(number))) if number.is_number else None


class IsInfinite(sympy.logic.boolalg.BooleanFunction):  # type: ignore[misc]
    """`math.isinf` of a number without a value."""

    @classmethod
    def eval(cls, number: Any) -> Any:
        """The answer, as soon as the number is there."""
        return sympy.sympify(math.isinf(float(number))) if number.is_number else None


_MOST = 64
"""Decisions that one capture may have [chosen]: a loop that ends by its numbers asks for more."""


@dataclass(frozen=True, slots=True)
class Question:
    """What Python asked, and what it was told."""

    expression: Any
    """A condition of sympy's."""

    answer: bool
    line: str
    """Of the user's code."""


@dataclass
class Answers:
    """What is supposed while a step is captured, which may take several attempts.

    Args:
        certain: Answers that are known from a run, to the first questions.
        likely: Answers that the same run gave to the questions that follow, if they are the same.
    """

    certain: Sequence[bool] = ()
    likely: Sequence[bool] = ()
    asked: list[Question] = field(default_factory=list)
    """In this attempt."""

    _path: list[bool] = field(default_factory=list)
    """Answers that this attempt begins with."""

    _is_last: list[bool] = field(default_factory=list)
    """Of them, whether the other one was tried before."""

    _n_left: int = _MOST
    """Attempts that there may still be."""

    def begin(self) -> None:
        """Begin another attempt."""
        self.asked = []

    def to(self, expression: Any, line: Callable[[], str], guess: bool = False) -> bool:
        """What to tell Python.

        Args:
            expression: The condition that it asks for.
            line: Where.
            guess: What to suppose if nothing is known.

        Raises:
            UnsupportedStepError: It asks too often.
        """
        at = len(self.asked)
        if at >= _MOST:
            self._n_left = 0
            raise UnsupportedStepError(
                "a step that is planned asks for few numbers that it computes itself; this one "
                f"decides by more than {_MOST} of them, at {line()}: compute with tensors there, "
                "as torch.where does"
            )
        if at < len(self.certain):
            answer = self.certain[at]
        elif at < len(self._path):
            answer = self._path[at]
        elif at < len(self.likely):
            answer = self.likely[at]
        else:
            answer = guess
        if at >= len(self._path):
            self._path.append(answer)
            self._is_last.append(at < len(self.certain))
        self.asked.append(Question(expression, answer, line()))
        return answer

    def try_another(self) -> bool:
        """Suppose otherwise what was asked last, if it was not tried yet; whether there is such."""
        self._n_left -= 1
        n = len(self.asked)
        del self._path[n:], self._is_last[n:]
        while self._is_last and self._is_last[-1]:
            self._path.pop()
            self._is_last.pop()
        if not self._path or self._n_left < 0:
            return False
        self._path[-1] = not self._path[-1]
        self._is_last[-1] = True
        return True


class OtherwiseError(FrontendsError):
    """A program ran under answers that its numbers do not give."""

    def __init__(self, answers: Sequence[bool], n_certain: int, line: str) -> None:
        super().__init__(f"a number decides otherwise at {line}")
        self.answers = tuple(answers)
        """To all questions that it was captured with."""

        self.n_certain = n_certain
        """How many of them, from the first, are those of the call; the rest is likely."""

        self.line = line


@dataclass(frozen=True)
class Decisions:
    """The questions of one captured program, to be looked at when it has run."""

    questions: tuple[Question, ...]
    given: tuple[Any, ...]
    """Symbols of the numbers that are known before the step runs."""

    computed: tuple[Any, ...]
    """Symbols of those that the program makes, in the order of its results."""

    def check(self, given: Sequence[Any], computed: Sequence[Any]) -> None:
        """Compare what Python would be told now.

        Raises:
            OtherwiseError: It is not what was supposed.
        """
        now = dict(zip(self.given, given, strict=True))
        now.update(zip(self.computed, computed, strict=True))
        answers = [_answer(question.expression, now) for question in self.questions]
        for at, (question, answer) in enumerate(zip(self.questions, answers, strict=True)):
            if answer is not question.answer:
                raise OtherwiseError(answers, at + 1, question.line)

    def are(self, answers: Sequence[bool]) -> bool:
        """Whether a program was captured with these answers to its first questions."""
        mine = [question.answer for question in self.questions[: len(answers)]]
        return mine == list(answers)


def _answer(expression: Any, now: dict[Any, Any]) -> bool:
    """With nan as Python compares it, which sympy does not."""
    if isinstance(expression, sympy.Not):
        return not _answer(expression.args[0], now)
    sides = [_number(side, now) for side in expression.args]
    kinds: dict[type, Callable[[Any, Any], bool]] = {
        sympy.Eq: lambda a, b: a == b,
        sympy.Ne: lambda a, b: a != b,
        sympy.StrictLessThan: lambda a, b: a < b,
        sympy.LessThan: lambda a, b: a <= b,
        sympy.StrictGreaterThan: lambda a, b: a > b,
        sympy.GreaterThan: lambda a, b: a >= b,
    }
    for kind, compare in kinds.items():
        if isinstance(expression, kind):
            return compare(*sides)
    return bool(expression.subs(now))


def _number(side: Any, now: dict[Any, Any]) -> float:
    if side in now:
        return now[side]  # type: ignore[no-any-return]
    return float(side.subs(now))
