"""One variant of a step: a captured program with its plan, and how a call of it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from frontends.answer.plan import Plan
from frontends.base.boundary import doing
from frontends.base.present import present
from frontends.errors import StepError
from frontends.search.plan_step import Planned
from frontends.torch.base.calls import Tensor
from frontends.torch.base.host import Number
from frontends.torch.base.trees import Tree
from frontends.torch.capture.forms import Form
from frontends.torch.capture.gone import GoneGradient
from frontends.torch.capture.gradients import gradient_of, name_of
from frontends.torch.capture.left import ComputedValue, Made
from frontends.torch.run.processes import join
from frontends.torch.run.runtime import Runtime
from frontends.torch.state.data import LeafForm
from frontends.torch.trace.trace import Capture, Trace

Leaves = Sequence[tuple[str, Any]]


@dataclass
class Variant:
    """One program of a step."""

    form: Form
    capture: Capture
    planned: Planned[Trace]
    _make_runtime: Callable[[Variant], Runtime]
    _make_first: Callable[[Variant], Runtime]
    _runtime: Runtime | None = None
    _first: Runtime | None = None

    def __repr__(self) -> str:
        return f"<Variant: {self.planned.plan!r}>"

    @property
    def plan(self) -> Plan:
        """Its plan."""
        return self.planned.plan

    @property
    def runtime(self) -> Runtime:
        """The runtime of its plan; it is created with the current state."""
        if self._runtime is None:
            with doing("placing the state of a step"):
                self._runtime = self._make_runtime(self)
        return self._runtime

    def let_go(self) -> None:
        """Drop references to state that another variant's runtime keeps."""
        if self._runtime is not None:
            self._runtime.let_go()

    @property
    def batch(self) -> tuple[Tree, list[LeafForm]]:
        """The structure of a batch, and name, shape and type of its leaves."""
        form = self.capture.captured.guards.batch
        return form.tree, [LeafForm.of(*pair) for pair in zip(form.names, form.forms, strict=True)]

    def difference(
        self, form: Form, tree: Tree, leaves: Leaves, value_of: Callable[[str], Tensor]
    ) -> str | None:
        """Return why a call does not fit; None if it does.

        Args:
            form: The form of the call.
            tree: The structure of the batch.
            leaves: The leaves of the batch with their names.
            value_of: Returns the value of a tensor of the state.
        """
        if form != self.form:
            return "how the step is called"
        captured = self.capture.captured
        if captured.only_once is not None:
            return captured.only_once
        return captured.guards.difference(tree, leaves, value_of)

    def run(self, leaves: Leaves, value_of: Callable[[str], Tensor]) -> Any:
        """Run one step; return what the user's step returns.

        Args:
            leaves: The leaves of the batch with their names.
            value_of: Returns the value of a tensor of the state.

        Raises:
            OtherwiseError: Python would have decided otherwise; nothing is changed then.
        """
        with _on_cpu():
            numbers = self.capture.captured.guards.numbers_now(leaves, value_of)
            inputs, runtime = self._inputs(leaves), self.runtime
            with doing("running a step"):
                results = self._run(runtime, inputs, numbers)
        captured = self.capture.captured
        users = {**dict(leaves), **(captured.state.tensors if join() is None else {})}
        for index, alias in captured.left.aliases.items():
            if alias.name in users:
                results[index] = alias.of(users[alias.name])
        return self._leave(results, inputs, numbers)

    def _run(
        self, runtime: Runtime, inputs: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> list[Any]:
        """Run the program on what a call passes in; return all results, leaf by leaf."""
        captured, trace = self.capture.captured, self.planned.trace
        decisions = captured.decisions
        asked = trace.results[len(trace.results) - len(decisions.computed) :]

        def check(results: Mapping[str, Tensor]) -> None:
            computed = [results[leaf.name].item() for leaf in asked]
            decisions.check(tuple(numbers.values()), computed)

        known = {a.name for a in trace.arguments}
        state = {n for n in trace.read_early if n in captured.state.tensors}
        arguments = {name: value for name, value in inputs.items() if name in known}
        arguments |= {name: runtime.value(name) for name in state}
        before = torch.get_rng_state()
        try:
            first_pass = None if trace.first_pass is None else self._first_pass
            every = trace.complete({**arguments, **trace.compute(numbers)}, first_pass)
            every = {name: v for name, v in every.items() if name not in state}
            results = runtime(every, check if decisions.questions else None)
        except StepError as error:  # one device would have drawn fewer random numbers before it
            torch.set_rng_state(before)
            trace.draw_before(arguments, error.number)
            raise
        return trace.values(results, numbers)

    def _first_pass(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the first of two passes on the state that the runtime keeps; return its results."""
        if self._first is None:
            self._first = self._make_first(self)
        first, trace = self._first, present(self.planned.first_pass, "it has two passes").trace
        known = {a.name for a in trace.arguments} - self.capture.captured.state.tensors.keys()
        given = {name: value for name, value in values.items() if name in known}
        try:
            if join() is not None:
                first.take_from(self.runtime, first.state_names)
            given |= {name: first.value(name) for name in trace.read_early - given.keys()}
            given = trace.complete(given)
            results = first({name: v for name, v in given.items() if name not in first.state_names})
        finally:
            if join() is not None:  # the runtime of the step keeps the state, and may replace it
                first.let_go()
        return [results[leaf.name] for leaf in trace.results]

    def _inputs(self, leaves: Leaves) -> dict[str, Tensor]:
        """Return the tensors that a call passes in, by name."""
        captured = self.capture.captured
        inputs = {name: leaf for name, leaf in leaves if isinstance(leaf, Tensor)}
        inputs |= {name: places[0].get() for name, places in captured.guards.outside.items()}
        wanted = {argument.name for argument in captured.arguments}
        for name, parameter in captured.state.model.named_parameters():
            if name_of(name) in wanted:
                inputs[name_of(name)] = present(parameter.grad, "guards look for gradients first")
        return {name: tensor.detach() for name, tensor in inputs.items()}

    @torch.no_grad()
    def _leave(
        self, results: Sequence[Any], inputs: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> Any:
        """Set gradients and repeat the step's effects; return what the user's step returns."""
        captured = self.capture.captured
        left, tree = captured.left, captured.out_tree
        n = len(captured.results)
        n_returned = n - left.n_values - len(left.gradients) - len(left.written)
        n_returned -= len(captured.decisions.computed)
        rest = iter(results[n_returned:])
        values = [next(rest) for _ in range(left.n_values)]
        parameters = dict(captured.state.model.named_parameters())
        for name in left.gradients:
            _set_gradient(parameters[name], next(rest))
        for name in left.cleared:
            if not isinstance(parameters[name].grad, GoneGradient):
                parameters[name].grad = GoneGradient(parameters[name])
        for name in left.emptied:
            parameters[name].grad = None
        for name in left.written:
            inputs[name].copy_(next(rest))

        def value_of(leaf: Any) -> Any:
            if isinstance(leaf, ComputedValue):
                return values[leaf.index]
            if isinstance(leaf, Made):
                return leaf.anew(anew)
            return leaf.of(numbers) if isinstance(leaf, Number) else leaf

        anew: dict[int, Any] = {}
        targets = [effect.place.get() for effect in left.effects]
        for effect, target in zip(left.effects, targets, strict=True):
            effect.apply(target, value_of)
        for parameter, flag in left.flags:
            parameter.requires_grad_(flag)
        for told in left.told:
            told.function(*map(value_of, told.arguments), **told.named)
        return tree.fill(iter(results[:n_returned]))


def _on_cpu() -> AbstractContextManager[Any]:
    """Inside, new tensors are on the CPU, whatever default device the user has set."""
    is_there = torch.get_default_device().type == "cpu"
    return nullcontext() if is_there else torch.device("cpu")


def run_alike(a: Variant, b: Variant) -> bool:
    """Return whether two variants can share a runtime.

    They have the same plan, program and state, and the same settings of torch, as programs may be
    compiled.
    """
    ours, theirs = a.capture.state.tensors, b.capture.state.tensors
    return (
        a.plan is b.plan
        and a.capture.captured.guards.flags == b.capture.captured.guards.flags
        and ours.keys() == theirs.keys()
        and all(ours[name] is theirs[name] for name in ours)
        and a.planned.trace.runs_like(b.planned.trace)
    )


def _set_gradient(parameter: Tensor, gradient: Tensor) -> None:
    existing = gradient_of(parameter)
    if existing is not None:
        existing.copy_(gradient)
    else:
        parameter.grad = gradient.clone()
