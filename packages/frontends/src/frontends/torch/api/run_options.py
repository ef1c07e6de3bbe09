"""How a planned step runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from frontends.errors import PlanError

Backend = Literal["eager", "inductor"]
"""What runs the operators of a program: torch's kernels one by one, or compiled regions."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a planned step runs; no plan depends on it."""

    deadline_s: float = 60.0
    """With several processes, how long a step may make no progress, or a process be silent, before
    all end and name the process at fault."""

    backend: Backend = "eager"
    """What runs the operators."""

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise PlanError(
                f"backend is one of {', '.join(get_args(Backend))}; got {self.backend!r}"
            )
