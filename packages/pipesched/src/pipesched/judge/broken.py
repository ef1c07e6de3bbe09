"""The errors of the checkers: which rule is broken, where, and by which action or instruction."""

from __future__ import annotations

from pipesched.base.action import Action
from pipesched.errors import PipeschedError
from pipesched.schedule.program import Instruction


class ScheduleError(PipeschedError, ValueError):
    """A schedule breaks a rule of `pipesched.check`.

    Attributes:
        rule: "completeness", "placement", "dependency", "stream", "deadlock" or "memory".
        rank: The rank at fault; for a missing action, the rank where it should be.
        position: Index of the action on this rank; None if the action is missing.
        action: The action at fault, or the missing one.
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
        rank: The rank at fault; for a missing instruction, the rank where it should be.
        position: Index of the instruction on this rank; None if the instruction is missing.
        instruction: The instruction at fault, or the missing one.
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
