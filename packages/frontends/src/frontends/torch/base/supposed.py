"""Decisions of a step's Python code that depend on numbers which the step itself computes.

`if torch.isfinite(loss)` needs a number that is not available while the step is captured. An answer
is supposed then, and the program returns the number. If it turns out that the answer was another
one, the results of the run are dropped, and the call is captured again with the answers that the
run gave, as another variant. An answer with which the user's code raises an error is not supposed
if there is another one: checks of arguments, such as those of `torch.distributions`, pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import sympy  # type: ignore[import-untyped]

from frontends.errors import FrontendsError, UnsupportedStepError


class _Predicate(sympy.logic.boolalg.BooleanFunction):  # type: ignore[misc]
    """A predicate of `math`, of a number without a value."""

    predicate: ClassVar[Callable[[float], bool]]

    @classmethod
    def eval(cls, number: Any) -> Any:
        """Return the answer if the number has a value, else None."""
        return sympy.sympify(cls.predicate(float(number))) if number.is_number else None


class IsFinite(_Predicate):
    """`math.isfinite` of a number without a value."""

    predicate = math.isfinite


class IsNan(_Predicate):
    """`math.isnan` of a number without a value."""

    predicate = math.isnan


class IsInfinite(_Predicate):
    """`math.isinf` of a number without a value."""

    predicate = math.isinf


_MOST = 64
"""The largest number of decisions in one capture [chosen]; a loop `while number > 0` exceeds it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A condition that Python asked for, and the answer that it got."""

    expression: Any
    """A sympy condition."""

    answer: bool
    line: str
    """The line of the user's code."""


@dataclass
class Answers:
    """The supposed answers of a capture, which may take several attempts.

    Args:
        certain: Answers to the first questions, known from a run.
        likely: Answers of the same run to all its questions; those after the certain ones need not
            be the same questions.
    """

    certain: Sequence[bool] = ()
    likely: Sequence[bool] = ()
    asked: list[Question] = field(default_factory=list)
    """The questions of this attempt so far."""

    _path: list[bool] = field(default_factory=list)
    """Answers with which this attempt begins."""

    _is_last: list[bool] = field(default_factory=list)
    """For each of them, whether it is the last one to try: the other one was tried, or is wrong."""

    _n_left: int = _MOST
    """The number of attempts that remain."""

    def begin(self) -> None:
        """Begin another attempt."""
        self.asked = []

    def to(self, expression: Any, line: Callable[[], str], guess: bool = False) -> bool:
        """Return the answer for Python to a condition.

        Args:
            expression: The condition.
            line: Gives the line of the user's code that asks.
            guess: The answer to suppose if no other is known.

        Raises:
            UnsupportedStepError: There are too many questions.
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
        """Change the last answer whose alternative is still to try; return whether there is one."""
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
    """A program ran with supposed answers that its numbers contradict."""

    def __init__(self, answers: Sequence[bool], n_certain: int, line: str) -> None:
        super().__init__(f"a number decides otherwise at {line}")
        self.answers = tuple(answers)
        """The answers of the run to all questions of the capture."""

        self.n_certain = n_certain
        """How many of them, from the first, certainly hold for the call; the rest is likely."""

        self.line = line


@dataclass(frozen=True)
class Decisions:
    """The questions of one captured program, to be checked after each run."""

    questions: tuple[Question, ...]
    given: tuple[Any, ...]
    """Symbols of the numbers that are known before the step runs."""

    computed: tuple[Any, ...]
    """Symbols of the numbers that the program computes, in the order of its results."""

    def check(self, given: Sequence[Any], computed: Sequence[Any]) -> None:
        """Compare the answers for the numbers of a run with the supposed ones.

        Raises:
            OtherwiseError: An answer differs.
        """
        now = dict(zip(self.given, given, strict=True))
        now.update(zip(self.computed, computed, strict=True))
        answers = [_answer(question.expression, now) for question in self.questions]
        for at, (question, answer) in enumerate(zip(self.questions, answers, strict=True)):
            if answer is not question.answer:
                raise OtherwiseError(answers, at + 1, question.line)

    def are(self, answers: Sequence[bool]) -> bool:
        """Return whether the program was captured with these answers to its first questions."""
        first = [question.answer for question in self.questions[: len(answers)]]
        return first == list(answers)


def _answer(expression: Any, now: dict[Any, Any]) -> bool:
    """Return the answer to a condition; unlike sympy, it compares nan as Python does."""
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
