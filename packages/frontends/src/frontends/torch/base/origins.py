"""Where operators of a step come from: the line of the user's code, and that of a library.

While a step is captured, the call stack is inspected for each operator, and code object and
instruction are kept; they become text only in an error message. The origin of an operator in
backward is the forward call whose gradient it computes: autograd numbers its nodes in the order of
the calls.
"""

from __future__ import annotations

import bisect
import dis
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Literal

import torch

from frontends.base.sources import OURS, Whose, shown, whose

Instruction = tuple[CodeType, int]
"""A code object, and the position of an instruction in it."""

_TORCH = str(Path(torch.__file__).parent) + "/"


@cache
def _whose(filename: str) -> Whose | Literal["torch's"]:
    """Return who wrote a file; of torch, only layers and optimizers are informative for a user."""
    if filename.startswith(_TORCH):
        is_known = filename.removeprefix(_TORCH).startswith(("nn/", "optim/"))
        return "torch's" if is_known else "nobody's"
    return whose(filename)


@dataclass(frozen=True, slots=True)
class Origin:
    """The code that called an operator."""

    own: Instruction | None
    """The innermost instruction of the user's code."""

    inner: Instruction | None
    """The innermost instruction of a library called from there; of torch if there is no other."""

    is_of_gradient: bool = False
    """Whether the operator computes a gradient; the code then called the forward operator."""

    number: int = field(default=0, compare=False)
    """Rises in the order in which operators were called."""

    def __str__(self) -> str:
        return ("in the gradient of " if self.is_of_gradient else "at ") + self.lines

    @property
    def lines(self) -> str:
        """The user's line and the library's, each as `file:line: code`."""
        return ", in ".join(_text(each) for each in (self.own, self.inner) if each is not None)


def user_line(error: BaseException) -> str:
    """Return the line of the user's code where an error comes from, as `file:line: code`."""
    return _lines(_raising(error)[::-1])


def calling_line() -> str:
    """Return the line of the user's code that is being run, as `file:line: code`."""
    return _lines([*_outwards(sys._getframe(1))])


def is_inside_torch(*, or_here: bool = True) -> bool:
    """Return whether torch called the method that calls this: printing a tensor calls methods.

    Args:
        or_here: Whether calls by this package count, too.
    """
    file = sys._getframe(2).f_code.co_filename
    return file.startswith((_TORCH, OURS) if or_here else _TORCH)


def is_raised_by_user(error: BaseException) -> bool:
    """Return whether an error comes from a `raise` or `assert` in the user's own code."""
    raising = _raising(error)
    if not raising:
        return False
    code, at = raising[-1]
    is_own = _whose(code.co_filename) == "the user's"
    return is_own and at >= 0 and dis.opname[code.co_code[at]] == "RAISE_VARARGS"


def defined(function: Callable[..., object]) -> str:
    """Return the name of a function and where it is defined, for a message."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return repr(function)
    return f"{code.co_name}, at {shown(code.co_filename, code.co_firstlineno, code.co_name)},"


class Origins:
    """Finds the origin of each operator while a step is captured.

    Args:
        outermost: The frame that calls the step; frames outside of it are ignored.
    """

    def __init__(self, outermost: FrameType) -> None:
        self._outermost = outermost
        self._n = 0
        self._autograd: list[int] = []
        """Sequence numbers of autograd's nodes, ascending."""

        self._origins: list[Origin | None] = []
        """For each of them, the origin of the operator that created the node."""

    def find(self) -> Origin | None:
        """Return the origin of the operator that is being called."""
        self._n += 1
        frame, node = sys._getframe(1), torch._C._current_autograd_node()
        if node is None:
            origin = self._seen(_origin(_outwards(frame, self._is_outermost)))
        else:
            origin = self._seen(_origin(_outwards(frame, _runs_backward)))
            origin = origin or self._of_gradient(node._sequence_nr())
            origin = origin or _origin(_outwards(frame, self._is_outermost))
        return None if origin is None else replace(origin, number=self._n)

    def _is_outermost(self, frame: FrameType) -> bool:
        return frame is self._outermost

    def _seen(self, origin: Origin | None) -> Origin | None:
        """Record an origin under the sequence number that autograd gave to its call."""
        number = _calls_seen() - 1
        if origin is not None and (not self._autograd or number > self._autograd[-1]):
            self._autograd.append(number)
            self._origins.append(origin)
        return origin

    def _of_gradient(self, number: int) -> Origin | None:
        if number >= _calls_seen():  # such as the node that accumulates into p.grad
            return None
        place = bisect.bisect_right(self._autograd, number) - 1
        origin = self._origins[place] if place >= 0 else None
        return None if origin is None else replace(origin, is_of_gradient=True)


def _calls_seen() -> int:
    """Return how many nodes autograd has numbered."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _origin(instructions: Iterable[Instruction]) -> Origin | None:
    """Return the origin for a stack of instructions, innermost first."""
    of_library: Instruction | None = None
    of_torch: Instruction | None = None
    for instruction in instructions:
        match _whose(instruction[0].co_filename):
            case "the user's":
                return Origin(instruction, of_library)
            case "a library's":
                of_library = of_library or instruction
            case "torch's":
                of_torch = of_torch or instruction
            case "nobody's":
                pass
    inner = of_library or of_torch
    return None if inner is None else Origin(None, inner)


def _lines(instructions: Sequence[Instruction]) -> str:
    return (_origin(instructions) or Origin(None, instructions[0])).lines


def _raising(error: BaseException) -> list[Instruction]:
    """Return the instructions of an error's traceback, outermost first."""
    instructions = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        instructions.append((trace.tb_frame.f_code, trace.tb_lasti))
        trace = trace.tb_next
    return instructions


def _outwards(
    frame: FrameType | None, is_last: Callable[[FrameType], bool] = lambda frame: False
) -> Iterator[Instruction]:
    while frame is not None and not is_last(frame):
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def _runs_backward(frame: FrameType) -> bool:
    """Return whether a frame calls autograd's engine; frames inside are hooks or recomputation."""
    return frame.f_code is _BACKWARD


_BACKWARD = torch.autograd.graph._engine_run_backward.__code__


def _text(instruction: Instruction) -> str:
    code, at = instruction
    line = next(islice(code.co_positions(), max(at, 0) // 2, None))[0] or code.co_firstlineno
    return shown(code.co_filename, line, code.co_name)
