"""Verifies a run: compares results with those of eager steps, and collectives with the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from frontends.errors import VerificationError
from frontends.plan.schedule import microbatches_at
from frontends.run.verify import (
    Verified,
    check_comparable,
    check_results,
    planned_collectives,
    state_difference,
    tolerance_of,
)
from frontends.step.step import APPLY, PHASE_NAMES
from frontends.torch.base.calls import Tensor
from frontends.torch.base.compat.operators import uncompiled
from frontends.torch.capture.arguments import State
from frontends.torch.capture.flex import flex_attention_as_operators
from frontends.torch.run.runtime import Runtime


def verify(
    runtime: Runtime,
    keeper: Runtime,
    state: State,
    eager: Callable[[], Any],
    parallel: Callable[[], Any],
    n_steps: int,
) -> Verified:
    """Run steps in parallel and eagerly from the runtime's state, compare, and restore the state.

    Args:
        runtime: Runs the steps in parallel.
        keeper: Has the state between calls; another runtime, if a function follows a step.
        state: The state of the user's model and optimizer, on which eager steps run.
        eager: Runs one step eagerly.
        parallel: Runs one step by the runtime.
        n_steps: How many steps to run of each.

    Raises:
        VerificationError: Numbers that the step returns differ by more than rounding in the types
            that it computes in, or the collectives are not those of the plan.
    """
    check_comparable(runtime.program.step)
    begin = keeper.whole_state()
    with torch.random.fork_rng():
        expected, after = _run_eagerly(state, begin, eager, n_steps)
    gradients = [(p, p.grad) for p in state.model.parameters()]
    with torch.random.fork_rng(), runtime.recording() as executed:
        returned = [_numbers(parallel()) for _ in range(n_steps)]
    ours = keeper.whole_state()
    keeper.load(begin)
    for parameter, gradient in gradients:
        parameter.grad = gradient
    n_collectives = check_executed(runtime, executed, n_steps)
    tolerance = tolerance_of(value.dtype for value in runtime.program.step.graph.values)
    results = check_results(returned, expected, tolerance)
    state_off = state_difference(_differences(ours, after))
    return Verified(n_steps, "eager ones", results, tolerance, state_off, n_collectives)


def check_executed(
    runtime: Runtime, executed: dict[tuple[int, int], Counter[Any]], n_steps: int
) -> int:
    """Check that the collectives that ran are those of the plan.

    Args:
        runtime: The runtime that ran.
        executed: By stage and phase, the collectives that it recorded.
        n_steps: The number of steps.

    Returns:
        How many collectives ran.

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
    """Return numbers and state of eager steps; model and optimizer are restored afterwards."""
    saved = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
    gradients = [(p, p.grad) for p in state.model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    _copy(state, begin)
    try:
        # Compiled or not, CPUs have FlexAttention without gradients only.
        with uncompiled(), flex_attention_as_operators():
            numbers = [_numbers(eager()) for _ in range(n_steps)]
        # a step may have replaced tensors of the state
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
    """Return the numbers among what a step returned."""
    leaves = pytree.tree_leaves(returned)
    floats = [leaf for leaf in leaves if isinstance(leaf, float)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.numel() == 1]
    return [*floats, *(float(tensor) for tensor in tensors)]


def _differences(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> Iterator[tuple[str, float, float]]:
    for name, tensor in theirs.items():
        wanted = tensor.double()
        off = ours[name].double() - wanted
        kind = name.rpartition("[")[0]
        yield kind, float(off.square().sum()), float(wanted.square().sum())
