"""Lanes: the messages from one stage to another, in an order that all processes know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import crossmesh
from shardspec import Mesh

from frontends.program.instructions import Send
from frontends.program.program import LoweredPlan

Message = tuple[int, int | None]
"""A transfer and a microbatch."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Messages that processes exchange one after the other."""

    processes: tuple[int, ...]
    """The processes that send or receive, sorted."""

    messages: tuple[Message, ...]
    """The messages of one step, in order."""

    plans: Mapping[int, crossmesh.TransferPlan]
    """By transfer, its plan."""

    senders: frozenset[int]
    """The processes that have the values that are sent."""


Connect = Callable[[int, Lane], Any]
"""Returns the crossmesh transport that connects a lane of this process, given its number and it."""


def lanes_of(
    program: LoweredPlan,
    planned: Sequence[crossmesh.TransferPlan],
    processes: Callable[[Mesh], frozenset[int]],
) -> list[Lane]:
    """The lanes of a plan: one for every source and destination stage in different processes.

    Args:
        program: The lowered plan.
        planned: By transfer, how it goes from device to device.
        processes: Returns the processes that have devices of a mesh.
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
