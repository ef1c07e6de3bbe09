"""What processes exchange one after the other: between two stages, in one order for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import crossmesh
from shardspec import Mesh

from frontends.program.instructions import Send
from frontends.program.program import Program

Message = tuple[int, int | None]
"""A transfer and a microbatch."""


@dataclass(frozen=True, slots=True)
class Lane:
    """What processes exchange one after the other."""

    processes: tuple[int, ...]
    """All that have a part in it."""

    messages: tuple[Message, ...]
    """Of one step, in order."""

    plans: Mapping[int, crossmesh.TransferPlan]
    """By transfer."""

    senders: frozenset[int]
    """The processes that have something to give."""


Connect = Callable[[int, Lane], Any]
"""From a lane of this process, and its number, to the transport of crossmesh that connects it."""


def lanes_of(
    program: Program,
    planned: Sequence[crossmesh.TransferPlan],
    processes: Callable[[Mesh], frozenset[int]],
) -> list[Lane]:
    """The lanes of a plan: one for every two stages that exchange something between processes.

    Args:
        program: Of all processes.
        planned: How each transfer goes from device to device.
        processes: Those that have devices of a mesh.
    """
    messages: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
    plan = program.plan
    for item in program.instructions:
        if isinstance(item, Send):
            transfer = plan.transfers[item.transfer]
            messages[transfer.source, transfer.destination].append((item.transfer, item.microbatch))
    lanes = []
    for between, sent in messages.items():
        ends = [processes(plan.stages[stage].mesh) for stage in between]
        together = tuple(sorted(frozenset[int]().union(*ends)))
        if len(together) > 1:
            plans = {index: planned[index] for index, _ in sent}
            lanes.append(Lane(together, tuple(sent), plans, ends[0]))
    return lanes
