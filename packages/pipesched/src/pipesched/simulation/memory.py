"""The exact memory of every rank during a step.

For each microbatch a rank holds (bytes are those of `pipesched.Costs`):

- activations, from the start of a forward to the end of its backward or input gradient. A forward
  that is recomputed keeps a checkpoint instead, until the recomputation starts. Without backwards,
  activations are held until the forward stops.
- what the weight gradient needs, from the end of the input gradient to the end of the weight
  gradient.
- messages: the sender holds a result from when it is produced until it has left; the receiver holds
  it from when it has arrived until the action that uses it stops. A result between stages of one
  rank is held from when it is produced until the action that uses it stops.

Parameters (of each stage, and of each copy of it) are held all the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pipesched.base.edge import ENDPOINTS
from pipesched.base.event import Event, Transfer
from pipesched.base.kind import Kind
from pipesched.schedule.costs import Costs
from pipesched.schedule.schedule import Schedule


class Held(NamedTuple):
    """The memory of one rank, from one time until the next change."""

    time_s: float
    """Seconds from the start of the step."""
    activation_bytes: float
    """Bytes of microbatches between forward and backward."""
    weight_gradient_bytes: float
    """Bytes of microbatches between input gradient and weight gradient."""
    message_bytes: float
    """Activations and gradients that were produced or received, and not yet sent or used."""
    parameter_bytes: float
    """Bytes of the parameters of all stages of the rank."""

    @property
    def total_bytes(self) -> float:
        """The sum of all of these."""
        return sum(self[1:])


_ACTIVATIONS, _WEIGHT_GRADIENTS, _MESSAGES = range(3)

# Changes at the same time are ordered: all changes of an earlier action of the rank come before
# those of a later one, and the changes of one action come in the order below. So nothing is
# subtracted before it was added, and an action that stops frees memory before the next one takes
# some, even if actions take no time.
_ARRIVED, _STARTED, _STOPPED, _PRODUCED, _LEFT = range(5)

# Time, index of the event, order within the action, what is held, bytes added.
_Change = tuple[float, int, int, int, float]


def memory_of(
    schedule: Schedule, costs: Costs, events: Iterable[Event], transfers: Iterable[Transfer]
) -> tuple[tuple[Held, ...], ...]:
    """For each rank, its memory at time 0 and after each change, in order.

    Raises:
        ArgumentError: The costs are for another number of stages, or lack an edge of the schedule.
    """
    events = tuple(events)
    changes: list[list[_Change]] = [[] for _ in schedule.ranks]
    _add_stages(changes, schedule, costs, events)
    if any(costs.edge_bytes(edge) for edge in schedule.edges):
        _add_messages(changes, schedule, costs, events, transfers)
    parameters = costs.sizes("parameter_bytes", schedule.n_stages)
    curves = []
    for rank, of_rank in enumerate(changes):
        fixed = sum(parameters[stage] for stage in schedule.placement.stages_of(rank))
        held: list[float] = [0, 0, 0]  # activations, weight gradients, messages
        curve = [Held(0.0, 0, 0, 0, fixed)]
        for time_s, _, _, what, n_bytes in sorted(change for change in of_rank if change[-1]):
            held[what] += n_bytes
            curve.append(Held(time_s, held[0], held[1], held[2], fixed))
        curves.append(tuple(curve))
    return tuple(curves)


def _add_stages(
    changes: list[list[_Change]], schedule: Schedule, costs: Costs, events: tuple[Event, ...]
) -> None:
    n_stages = schedule.n_stages
    activations = costs.sizes("activation_bytes", n_stages)
    weights = costs.sizes("weight_gradient_bytes", n_stages)
    checkpoints = costs.sizes("checkpoint_bytes", n_stages)
    recomputed = {
        (event.action.stage, event.action.microbatch)
        for event in events
        if event.action.kind is Kind.RECOMPUTE
    }
    for index, event in enumerate(events):
        action, of_rank = event.action, changes[event.rank]
        stage = action.stage
        started, stopped = (event.start_s, index, _STARTED), (event.stop_s, index, _STOPPED)
        match action.kind:
            case Kind.FORWARD:
                kept = activations[stage]
                if (stage, action.microbatch) in recomputed:
                    kept = checkpoints[stage]
                of_rank.append((*started, _ACTIVATIONS, kept))
                if not schedule.backward:
                    of_rank.append((*stopped, _ACTIVATIONS, -kept))
            case Kind.RECOMPUTE:
                more = activations[stage] - checkpoints[stage]
                of_rank.append((*started, _ACTIVATIONS, more))
            case Kind.BACKWARD:
                of_rank.append((*stopped, _ACTIVATIONS, -activations[stage]))
            case Kind.INPUT_GRADIENT:
                of_rank.append((*stopped, _ACTIVATIONS, -activations[stage]))
                of_rank.append((*stopped, _WEIGHT_GRADIENTS, weights[stage]))
            case Kind.WEIGHT_GRADIENT:
                of_rank.append((*stopped, _WEIGHT_GRADIENTS, -weights[stage]))


def _add_messages(
    changes: list[list[_Change]],
    schedule: Schedule,
    costs: Costs,
    events: tuple[Event, ...],
    transfers: Iterable[Transfer],
) -> None:
    ends = {
        (ENDPOINTS[event.action.kind], event.action.stage, event.action.microbatch): (index, event)
        for index, event in enumerate(events)
        if event.action.kind in ENDPOINTS
    }
    moved = {(transfer.edge, transfer.microbatch): transfer for transfer in transfers}
    for edge in schedule.edges:
        n_bytes = costs.edge_bytes(edge)
        for microbatch in range(schedule.n_microbatches):
            produced_at, produced = ends[*edge.src, microbatch]
            used_at, used = ends[*edge.dst, microbatch]
            transfer = moved.get((edge, microbatch))
            src, dst = changes[produced.rank], changes[used.rank]
            src.append((produced.stop_s, produced_at, _PRODUCED, _MESSAGES, n_bytes))
            if transfer is not None:
                src.append((transfer.left_s, produced_at, _LEFT, _MESSAGES, -n_bytes))
                dst.append((transfer.stop_s, used_at, _ARRIVED, _MESSAGES, n_bytes))
            dst.append((used.stop_s, used_at, _STOPPED, _MESSAGES, -n_bytes))
