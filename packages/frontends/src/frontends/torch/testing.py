"""Runs a captured step on one device as its graph says; small steps to test with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from frontends.step.step import APPLY, IDENTITY
from frontends.torch.capture.arguments import State, name_leaves
from frontends.torch.capture.capture import training_step
from frontends.torch.trace.trace import Capture, Trace

Tensor = torch.Tensor
Values = dict[str, Tensor]


def run_in_microbatches(traced: Trace, arguments: Mapping[str, Tensor]) -> tuple[Any, Values]:
    """Run a step's graph: forward and backward for each microbatch, apply on the sums.

    Args:
        traced: The step; it runs on one device, without a plan.
        arguments: All arguments that are not computed early, by name.

    Returns:
        What the step returns, and the new state by name.
    """
    graph, microbatches = traced.step.graph, traced.step.microbatches
    known = {a.name for a in traced.arguments}
    numbers = {n: t.item() for n, t in arguments.items() if n.startswith("optimizer.param_groups")}
    arguments = {n: t for n, t in arguments.items() if n in known}
    complete = traced.complete({**arguments, **traced.compute(numbers)})
    batch = [a.name for a in traced.arguments if a.is_batch]
    for name, rows in traced.rows.items():
        complete[name] = complete[name][torch.tensor(rows)]
    state = {name: value for name, value in complete.items() if name not in batch}
    state.update(traced.constants)

    def run(values: Values, is_apply: bool) -> None:
        for operator in graph.operators:
            if (operator.phase == APPLY) != is_apply:
                continue
            tensors = [values[name] for name in operator.inputs]
            if operator.kind != IDENTITY:
                tensors = traced.calls[operator.name](tensors)
            values.update(zip(operator.outputs, tensors, strict=True))

    totals: Values = {}
    values: Values = {}
    with torch.no_grad():
        for m in range(microbatches):
            values = dict(state)
            for name in batch:
                values[name] = complete[name].chunk(microbatches)[m]
            run(values, False)
            for name in traced.step.summed:
                totals[name] = totals[name] + values[name] if name in totals else values[name]
        values.update(totals)
        if microbatches > 1:
            for name in batch:
                del values[name]
        run(values, True)
    updates = {o.alias: values[o.value] for o in graph.outputs if o.alias is not None}
    return traced.unflatten(values, numbers), updates


def trained_error(capture: Capture, trace: Trace, given: Example) -> float:
    """Return the largest relative error of losses and parameters from those of eager training.

    Args:
        capture: The capture of the example's step.
        trace: What was made of it; it runs on one device, without a plan.
        given: The example, which is left as it was; each of its batches is one step.
    """
    model, optimizer = copy.deepcopy((given.model, given.optimizer))
    state: Values = {}
    worst = 0.0
    for batch in given.batches:
        torch.manual_seed(1)
        expected = given.step(model, optimizer, batch)
        torch.manual_seed(1)
        found, updates = run_in_microbatches(trace, arguments_of(capture.state, batch) | state)
        state.update(updates)
        worst = max(worst, error(found, expected))
    parameters = {f"params[{name!r}]": p.detach() for name, p in model.named_parameters()}
    return max([worst, *(error(state[name], p) for name, p in parameters.items())])


def arguments_of(state: State, batch: Any) -> Values:
    """Return all arguments of a step that are not computed early, by name."""
    leaves = {name: leaf for name, leaf in name_leaves(batch) if isinstance(leaf, Tensor)}
    numbers = {n: torch.tensor(v, dtype=torch.float64) for n, v in state.numbers.items()}
    return {name: t.detach() for name, t in state.tensors.items()} | numbers | leaves


def error(found: Any, expected: Any) -> float:
    """Return the largest relative error in the norm among tensors and numbers of two trees."""
    worst = 0.0
    leaves = (pytree.tree_leaves(found), pytree.tree_leaves(expected))
    for a, b in zip(*leaves, strict=True):
        if isinstance(b, Tensor | float | int):
            x, y = torch.as_tensor(a).double(), torch.as_tensor(b).double()
            if x.shape != y.shape:
                return float("inf")
            scale = float(y.norm()) or 1.0
            worst = max(worst, float((x - y).norm()) / scale)
    return worst


class Example:
    """A model, its optimizer, a step and batches.

    Args:
        model: The module.
        optimizer: A function from parameters to their optimizer.
        step: A function of model, optimizer and batch.
        batches: Batches to train on.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        step: Callable[..., Any],
        batches: Sequence[Any],
    ) -> None:
        self.model, self.step, self.batches = model, step, batches
        self.optimizer = optimizer(model.parameters())


def mlp(
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, 1e-2),
    dropout: float = 0.1,
) -> Example:
    """Return an example with two linear layers, a norm, and dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 4)
    )
    batches = [{"x": torch.randn(8, 8), "y": torch.randint(0, 4, (8,))} for _ in range(3)]
    step = training_step(lambda model, b: functional.cross_entropy(model(b["x"]), b["y"]))
    return Example(model, optimizer, step, batches)
