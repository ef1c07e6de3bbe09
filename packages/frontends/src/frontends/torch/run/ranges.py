"""Names for a profiler of torch: what a step does, stage by stage and microbatch by microbatch."""

from __future__ import annotations

from collections.abc import Sequence

import shardspec

from frontends.program.instructions import Instruction, Receive, Run, Send
from frontends.program.program import LoweredPlan


def name_of(item: Instruction, program: LoweredPlan) -> str | None:
    """Return a name for the range of an instruction; None for one that only moves references."""
    transfers = program.plan.transfers
    match item:
        case Run(_, index, microbatch):
            name = str(program.chunks[index])
        case Send(_, index, microbatch):
            name = f"send {transfers[index].value} to stage {transfers[index].destination}"
        case Receive(_, index, microbatch):
            name = f"receive {transfers[index].value} from stage {transfers[index].source}"
        case _:
            return None
    return name if microbatch is None else f"{name}, microbatch {microbatch}"


def name_of_collectives(steps: Sequence[shardspec.Step]) -> str:
    """Return a name for collectives that run as one."""
    axes = ", ".join(map(str, steps[0].mesh_axes))
    values = "value" if len(steps) == 1 else "values"
    return f"{steps[0].kind} of {len(steps)} {values} over mesh axes {axes}"
