"""A plan, lowered to stage programs and instructions.

Both frameworks' lowerings, the runtimes, the memory accounting and the checks read one
`LoweredPlan`. None of them builds the schedule or the chunks of a plan again.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesched import Schedule

from frontends.plan.plan_fields import PlanFields
from frontends.plan.schedule import schedule_of
from frontends.program.chunks import Chunk, build_chunks
from frontends.program.instructions import Instruction, build_instructions, in_one_order
from frontends.step.step import TrainingStep


@dataclass(frozen=True, slots=True, eq=False)
class LoweredPlan:
    """The chunks and instructions of a step's plan."""

    step: TrainingStep
    plan: PlanFields
    schedule: Schedule
    """The schedule of the plan, checked."""

    chunks: tuple[Chunk, ...]
    """The chunks of all stages, in the order stage, phase, level."""

    ranks: tuple[tuple[Instruction, ...], ...]
    """By rank of the schedule, its instructions for one step, in order."""

    instructions: tuple[Instruction, ...]
    """The instructions of all ranks in one order, which all processes follow."""

    def __repr__(self) -> str:
        return (
            f"<LoweredPlan: {len(self.instructions)} instructions of {len(self.chunks)} chunks in "
            f"{len(self.plan.stages)} stages by {self.schedule.name}>"
        )


def build_program(step: TrainingStep, plan: PlanFields) -> LoweredPlan:
    """Lower a plan.

    Args:
        step: The step that the plan is for, with the replicas of its schedule (`copied_as`).
        plan: The plan.

    Raises:
        PlanError: The plan is for another step, or its schedule cannot run.
        DeadlockError: The transfers of the plan wait for each other.
    """
    schedule = schedule_of(plan)
    chunks = build_chunks(step, plan, schedule)
    ranks = build_instructions(step, plan, schedule, chunks)
    return LoweredPlan(step, plan, schedule, chunks, ranks, in_one_order(ranks, plan))
