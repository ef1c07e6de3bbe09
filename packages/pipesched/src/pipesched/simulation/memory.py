"""What every rank holds in its memory while a step runs, exactly.

Per microbatch (bytes are those of `pipesched.Costs`):

- activations, from the start of a forward to the end of its backward or input gradient. A forward
  that is recomputed keeps a checkpoint instead, until the recomputation starts. Without backwards,
  until the forward stops.
- what the weight gradient needs, from the end of the input gradient to that of the weight gradient.
- messages: a result that another rank needs, from when it is made until it has left, and there
  from when it has arrived until the action that uses it stops. Between stages of one rank, from
  when it is made until the action that uses it stops.

Parameters (of each stage, and of each copy of it) are there all the time.
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
    """What one rank holds, from some time until its next change."""

    time_s: float
    """Seconds from the start of the step."""
    activation_bytes: float
    """Of microbatches between forward and backward."""
    weight_gradient_bytes: float
    """Of microbatches between input gradient and weight gradient."""
    message_bytes: float
    """Activations and gradients made or received, and not yet sent or used."""
    parameter_bytes: float
    """Of all stages of the rank."""

    @property
    def total_bytes(self) -> float:
        """Everything."""
        return sum(self[1:])


_ACTIVATIONS, _WEIGHT_GRADIENTS, _MESSAGES = range(3)

# What happens to one action's memory at one time happens in this order; and at one time, all of an
# earlier action of the rank comes before what a later one does. So nothing is counted that is not
# there, and what stops gives back before what starts takes, also where actions take no time.
_ARRIVED, _STARTED, _STOPPED, _MADE, _LEFT = range(5)

# time, index of the rank's action, order, what, bytes
_Change = tuple[float, int, int, int, float]


def memory_of(
    schedule: Schedule, costs: Costs, events: Iterable[Event], transfers: Iterable[Transfer]
) -> tuple[tuple[Held, ...], ...]:
    """Per rank, what it holds at time 0 and after each change, in order.

    Raises:
        ArgumentError: Costs of another number of stages, or without an edge of the schedule.
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
        held: list[float] = [0, 0, 0]  # by what
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
    places = {
        (ENDPOINTS[event.action.kind], event.action.stage, event.action.microbatch): (index, event)
        for index, event in enumerate(events)
        if event.action.kind in ENDPOINTS
    }
    moved = {(transfer.edge, transfer.microbatch): transfer for transfer in transfers}
    for edge in schedule.edges:
        n_bytes = costs.edge_bytes(edge)
        for microbatch in range(schedule.n_microbatches):
            made_at, made = places[*edge.src, microbatch]
            used_at, used = places[*edge.dst, microbatch]
            transfer = moved.get((edge, microbatch))
            src, dst = changes[made.rank], changes[used.rank]
            src.append((made.stop_s, made_at, _MADE, _MESSAGES, n_bytes))
            if transfer is not None:
                src.append((transfer.left_s, made_at, _LEFT, _MESSAGES, -n_bytes))
                dst.append((transfer.stop_s, used_at, _ARRIVED, _MESSAGES, n_bytes))
            dst.append((used.stop_s, used_at, _STOPPED, _MESSAGES, -n_bytes))
