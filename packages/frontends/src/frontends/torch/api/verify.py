"""Compare what runs with what was promised: results with eager ones, collectives with the plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from frontends.errors import VerificationError
from frontends.plan.schedule import microbatches_at
from frontends.run.verify import check_losses, planned_collectives, tolerance_of
from frontends.step.step import APPLY, PHASE_NAMES
from frontends.torch.base.calls import Tensor
from frontends.torch.capture.arguments import State
from frontends.torch.run.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Verified:
    """What was compared, and held."""

    n_steps: int
    results: float
    """The largest relative difference of a number that the step returns."""

    tolerance: float
    """What that difference may be, in the types that the step computes in."""

    state: float
    """The largest relative difference of a kind of state afterwards, such as all parameters, in the
    norm. Of single tensors some have gradients that are zero but for rounding."""

    n_collectives: int
    """How many ran, all as planned."""

    def __str__(self) -> str:
        return (
            f"ok: {self.n_steps} steps return what eager ones do ({self.results:.1e}), and leave "
            f"the same state ({self.state:.1e})\n"
            f"ok: collectives are those of the plan ({self.n_collectives:,})"
        )


def verify(
    runtime: Runtime,
    state: State,
    eager: Callable[[], Any],
    parallel: Callable[[], Any],
    n_steps: int,
) -> Verified:
    """Run steps both ways from the state that the runtime has, and restore it.

    Args:
        runtime: What runs in parallel.
        state: Of the user's model and optimizer, on which eager steps run.
        eager: One step on one device.
        parallel: One step by the runtime.
        n_steps: How many of each.

    Raises:
        VerificationError: Numbers that the step returns differ by more than rounding in the types
            that it computes in, or collectives do.
    """
    begin = runtime.whole_state()
    with torch.random.fork_rng():
        expected, after = _run_eagerly(state, begin, eager, n_steps)
    gradients = [(p, p.grad) for p in state.model.parameters()]
    with torch.random.fork_rng(), runtime.recording() as executed:
        found = [_numbers(parallel()) for _ in range(n_steps)]
    ours = runtime.whole_state()
    runtime.load(begin)
    for parameter, gradient in gradients:
        parameter.grad = gradient
    n_collectives = check_executed(runtime, executed, n_steps)
    pairs = [
        ([numbers[i] for numbers in found], [numbers[i] for numbers in expected])
        for i in range(len(expected[0]))
    ]
    tolerance = tolerance_of(value.dtype for value in runtime.program.step.graph.values)
    results = max((check_losses(*pair, tolerance) for pair in pairs), default=0.0)
    return Verified(
        n_steps,
        results,
        tolerance,
        _largest_difference(ours, after),
        n_collectives,
    )


def check_executed(
    runtime: Runtime, executed: dict[tuple[int, int], Counter[Any]], n_steps: int
) -> int:
    """Check that the collectives that ran are those of the plan.

    Args:
        runtime: What ran.
        executed: By stage and phase, what it recorded.
        n_steps: In how many steps.

    Returns:
        How many ran.

    Raises:
        VerificationError: Kind, groups, bytes or count differ somewhere.
    """
    plan, schedule = runtime.plan, runtime.program.schedule
    for stage in range(len(plan.stages)):
        if not runtime.engine.is_local(stage):
            continue
        for phase, name in enumerate(PHASE_NAMES):
            repeats = n_steps * (1 if phase == APPLY else microbatches_at(schedule, stage))
            once = planned_collectives(plan, stage, (phase,))
            planned = Counter({key: repeats * n for key, n in once.items()})
            ran = executed.get((stage, phase), Counter())
            if ran != planned:
                raise VerificationError(
                    "devices must communicate what the plan says; "
                    f"{name} of stage {stage} has besides the plan {dict(ran - planned)} and "
                    f"lacks {dict(planned - ran)}"
                )
    return sum(sum(counted.values()) for counted in executed.values())


def _run_eagerly(
    state: State, begin: dict[str, Tensor], eager: Callable[[], Any], n_steps: int
) -> tuple[list[list[float]], dict[str, Tensor]]:
    """Numbers and state of eager steps; model and optimizer are afterwards what they were."""
    saved = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
    gradients = [(p, p.grad) for p in state.model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    _copy(state, begin)
    try:
        numbers = [_numbers(eager()) for _ in range(n_steps)]
        # a step may have put other tensors into the place of those of before
        now = State(state.model, state.optimizer)
        return numbers, {name: t.detach().clone() for name, t in now.tensors.items()}
    finally:
        _copy(State(state.model, state.optimizer), saved)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@torch.no_grad()
def _copy(state: State, values: dict[str, Tensor]) -> None:
    for name, tensor in state.tensors.items():
        tensor.copy_(values[name])


def _numbers(returned: Any) -> list[float]:
    """The numbers among what a step returned."""
    leaves = pytree.tree_leaves(returned)
    found = [leaf for leaf in leaves if isinstance(leaf, float)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.numel() == 1]
    return [*found, *(float(tensor) for tensor in tensors)]


def _largest_difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    squares: dict[str, tuple[float, float]] = {}
    for name, tensor in theirs.items():
        kind = name.rpartition("[")[0]
        off, whole = squares.get(kind, (0.0, 0.0))
        wanted = tensor.double()
        off += float((ours[name].double() - wanted).square().sum())
        squares[kind] = off, whole + float(wanted.square().sum())
    return max((math.sqrt(off / (whole or 1.0)) for off, whole in squares.values()), default=0.0)
