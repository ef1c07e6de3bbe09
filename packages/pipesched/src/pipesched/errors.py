"""Every error that pipesched raises on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipesched.action import Action
    from pipesched.program import Instruction


class PipeschedError(Exception):
    """Base of all errors of this package."""


class ArgumentError(PipeschedError, ValueError):
    """A size, a time or a file name that no schedule or timeline can have."""


class InfeasibleError(PipeschedError, ValueError):
    """No schedule keeps within the memory."""


class UnknownScheduleError(PipeschedError, ValueError):
    """No generator has this name."""


class ParseError(PipeschedError, ValueError):
    """A text or JSON document that is not what it should be."""


class EdgeError(PipeschedError, ValueError):
    """An edge that goes backwards in time, stays in its stage, or leaves the pipeline."""


class ScheduleError(PipeschedError, ValueError):
    """A schedule breaks a rule of `pipesched.check`.

    Attributes:
        rule: "completeness", "placement", "dependency", "stream", "deadlock" or "memory".
        rank: The rank at fault: of what is missing, where it should be.
        position: Index into that rank's actions; None where the action is missing.
        action: The action at fault.
    """

    def __init__(
        self, message: str, *, rule: str, rank: int, position: int | None, action: Action
    ) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule
        self.rank = rank
        self.position = position
        self.action = action


class ProgramError(PipeschedError, ValueError):
    """A program breaks a rule of `pipesched.check_program`.

    Attributes:
        rule: "completeness", "placement", "result", "buffer", "update", "stream" or "deadlock".
        rank: The rank at fault: of what is missing, where it should be.
        position: Index into that rank's instructions; None where the instruction is missing.
        instruction: The instruction at fault (or the missing one).
    """

    def __init__(
        self,
        message: str,
        *,
        rule: str,
        rank: int,
        position: int | None,
        instruction: Instruction,
    ) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule
        self.rank = rank
        self.position = position
        self.instruction = instruction


class MissingExtraError(PipeschedError, ImportError):
    """An optional dependency is not installed."""
