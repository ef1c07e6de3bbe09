"""What a plan makes its processes do: one value, built once, from which all above it reads.

Running, both lowerings, accounts of memory and checks are each of one `Program`: none asks the plan
for its schedule again, or cuts the step into chunks of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesched import Schedule

from frontends.plan.plan_fields import PlanFields
from frontends.plan.schedule import schedule_of
from frontends.program.chunks import Chunk, build_chunks
from frontends.program.instructions import Instruction, build_instructions, in_one_order
from frontends.step.step import Step


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A plan of a step, as instructions."""

    step: Step
    plan: PlanFields
    schedule: Schedule
    """The plan's, checked."""

    chunks: tuple[Chunk, ...]
    """What stages run, in the order stage, phase, level."""

    ranks: tuple[tuple[Instruction, ...], ...]
    """For each rank of the schedule, all that it does in one step, in order."""

    instructions: tuple[Instruction, ...]
    """The same in one order, which all processes follow."""

    def __repr__(self) -> str:
        return (
            f"<Program: {len(self.instructions)} instructions of {len(self.chunks)} chunks in "
            f"{len(self.plan.stages)} stages by {self.schedule.name}>"
        )


def build_program(step: Step, plan: PlanFields) -> Program:
    """What a plan makes of a step.

    Args:
        step: That it was made for, with a copy of each operator for each copy of its stage.
        plan: What is to run.

    Raises:
        PlanError: The plan is for another step, or its schedule cannot run.
        DeadlockError: Its transfers wait for each other.
    """
    schedule = schedule_of(plan)
    chunks = build_chunks(step, plan, schedule)
    ranks = build_instructions(step, plan, schedule, chunks)
    return Program(step, plan, schedule, chunks, ranks, in_one_order(ranks, plan))
