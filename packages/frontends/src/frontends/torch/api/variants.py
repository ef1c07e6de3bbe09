"""The programs that one step becomes: a call takes the one whose guards hold, or captures another.

Where a step is called with another shape of batch, or its Python code would do something else, it
is captured again and planned with the state where the first plan keeps it, as `torch.compile`
compiles again. A step that changes what it looks at at every call is captured at every call.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from costmodel import Cluster
from torch import nn
from torch.optim import Optimizer

from frontends.answer.plan import Plan
from frontends.base import no_gc
from frontends.base.boundary import doing
from frontends.base.present import present
from frontends.errors import (
    FrontendsError,
    HeldLayoutError,
    StepError,
    UnsupportedStepError,
)
from frontends.run.plan_consensus import plan_together
from frontends.run.planned_step import first_of
from frontends.search.plan_options import PlanOptions
from frontends.search.plan_step import Planned
from frontends.torch.api.plan_for import default_cluster, plan_capture
from frontends.torch.base.calls import Tensor
from frontends.torch.base.host import Number
from frontends.torch.base.supposed import Answers, OtherwiseError
from frontends.torch.base.trees import Tree, flatten, remove
from frontends.torch.capture.arguments import is_count, named
from frontends.torch.capture.forms import Form
from frontends.torch.capture.gone import GoneGradient
from frontends.torch.capture.gradients import gradient_of, name_of
from frontends.torch.capture.left import Made, Value
from frontends.torch.capture.refusals import refusal_at
from frontends.torch.run.follow import Followed
from frontends.torch.run.processes import join, share_plan
from frontends.torch.run.runtime import Runtime
from frontends.torch.run.shared import SharedState
from frontends.torch.state.data import LeafForm
from frontends.torch.trace.trace import Capture, Trace

_MOST = 8
"""Programs that are kept, as many as `torch.compile` keeps [chosen]."""

Leaves = Sequence[tuple[str, Any]]


@dataclass
class Variant:
    """One program of a step."""

    form: Form
    capture: Capture
    planned: Planned[Trace]
    _make_runtime: Callable[[Variant], Runtime]
    _runtime: Runtime | None = None

    def __repr__(self) -> str:
        return f"<Variant: {self.planned.plan!r}>"

    @property
    def plan(self) -> Plan:
        """How it runs."""
        return self.planned.plan

    @property
    def runtime(self) -> Runtime:
        """What runs it, with the state as it is now."""
        if self._runtime is None:
            with doing("placing the state of a step"):
                self._runtime = self._make_runtime(self)
        return self._runtime

    @property
    def batch(self) -> tuple[Tree, list[LeafForm]]:
        """The structure of a batch, and the shape and type of each leaf that is a tensor."""
        form = self.capture.captured.guards.batch
        return form.tree, [LeafForm.of(*pair) for pair in zip(form.names, form.forms, strict=True)]

    def difference(
        self, form: Form, tree: Tree, leaves: Leaves, value_of: Callable[[str], Tensor]
    ) -> str | None:
        """Why a call does not fit; None if it does.

        Args:
            form: Of the call.
            tree: Of the batch.
            leaves: Of the batch.
            value_of: The value of a tensor of the state.
        """
        if form != self.form:
            return "how the step is called"
        captured = self.capture.captured
        if captured.only_once is not None:
            return captured.only_once
        return captured.guards.difference(tree, leaves, value_of)

    def run(self, leaves: Leaves, value_of: Callable[[str], Tensor]) -> Any:
        """Run it; what the step returns.

        Args:
            leaves: Of the batch.
            value_of: The value of a tensor of the state.

        Raises:
            OtherwiseError: Python would have decided otherwise; nothing is changed then.
        """
        numbers = self.capture.captured.guards.numbers_now(leaves, value_of)
        given, runtime = self._given(leaves), self.runtime
        with doing("running a step"):
            made = self._run(runtime, given, numbers)
        captured = self.capture.captured
        users = {**dict(leaves), **(captured.state.tensors if join() is None else {})}
        for index, alias in captured.left.aliases.items():
            if alias.name in users:
                made[index] = alias.of(users[alias.name])
        return self._leave(made, given, numbers)

    def _run(
        self, runtime: Runtime, given: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> list[Any]:
        """What the program makes of what a call hands over."""
        captured, trace = self.capture.captured, self.planned.trace
        decisions = captured.decisions
        asked = trace.results[len(trace.results) - len(decisions.computed) :]

        def check(results: Mapping[str, Tensor]) -> None:
            computed = [results[leaf.name].item() for leaf in asked]
            decisions.check(tuple(numbers.values()), computed)

        known = {a.name for a in trace.arguments}
        state = {n for early in trace.early for n in early.reads if n in captured.state.tensors}
        found = {name: value for name, value in given.items() if name in known}
        found |= {name: runtime.value(name) for name in state}
        before = torch.get_rng_state()
        try:
            every = trace.complete({**found, **trace.compute(numbers)})
            every = {name: v for name, v in every.items() if name not in state}
            results = runtime(every, check if decisions.questions else None)
        except StepError as error:  # which one device meets when it has drawn less
            torch.set_rng_state(before)
            trace.draw_before(found, error.number)
            raise
        return trace.values(results, numbers)

    def _given(self, leaves: Leaves) -> dict[str, Tensor]:
        """The tensors that a call hands over, by name."""
        captured = self.capture.captured
        given = {name: leaf for name, leaf in leaves if isinstance(leaf, Tensor)}
        given |= {name: places[0].get() for name, places in captured.guards.outside.items()}
        wanted = {argument.name for argument in captured.arguments}
        for name, parameter in captured.state.model.named_parameters():
            if name_of(name) in wanted:
                given[name_of(name)] = present(parameter.grad, "guards look for gradients first")
        return {name: tensor.detach() for name, tensor in given.items()}

    @torch.no_grad()
    def _leave(
        self, made: Sequence[Any], given: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> Any:
        """Do what the step does beside its state; what it returns."""
        captured = self.capture.captured
        left, tree = captured.left, captured.out_tree
        n = len(captured.results)
        n_returned = n - left.n_values - len(left.gradients) - len(left.written)
        n_returned -= len(captured.decisions.computed)
        rest = iter(made[n_returned:])
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
            given[name].copy_(next(rest))

        def value_of(leaf: Any) -> Any:
            if isinstance(leaf, Value):
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
        return tree.fill(iter(made[:n_returned]))


def _hold_if_possible(
    search: Callable[..., Planned[Trace]], hold: Plan, options: PlanOptions
) -> Planned[Trace]:
    """A plan of another variant: in held layouts, or where state cannot stay there, on its own."""
    if options.plan is None:  # else it is what process 0 has found
        with suppress(HeldLayoutError):
            return search(options, hold=hold)
    return search(options)


def _run_alike(a: Variant, b: Variant) -> bool:
    """Whether what runs one runs the other: same plan, same program, same state."""
    ours, theirs = a.capture.state.tensors, b.capture.state.tensors
    return (
        a.plan is b.plan
        and ours.keys() == theirs.keys()
        and all(ours[name] is theirs[name] for name in ours)
        and a.planned.trace.runs_like(b.planned.trace)
    )


def _set_gradient(parameter: Tensor, gradient: Tensor) -> None:
    there = gradient_of(parameter)
    if there is not None:
        there.copy_(gradient)
    else:
        parameter.grad = gradient.clone()


class Variants:
    """All programs of a step.

    Args:
        function: The user's step.
        model: That it trains.
        optimizer: That it calls.
        cluster: What to plan for; by default what there is.
        options: How to plan.
        deadline_s: Where there are several processes, how long a step may stand still.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        model: nn.Module,
        optimizer: Optimizer,
        cluster: Cluster | None,
        options: PlanOptions,
        deadline_s: float,
    ) -> None:
        self._function, self._model, self._optimizer = function, model, optimizer
        self._cluster, self._options, self._deadline_s = cluster, options, deadline_s
        self.made: list[Variant] = []
        """The first one stays; of others the latest."""

        self._shared = SharedState()
        self._followed: Followed | None = None
        self._last: Variant | None = None
        self._has_warned = False

    @property
    def first(self) -> Variant:
        """That of the first call; `PlanError` before it."""
        return first_of(self.made)

    @property
    def current(self) -> Variant:
        """That of the last call."""
        return self._last or self.first

    def call(self, args: Sequence[Any], named_: Mapping[str, Any]) -> Any:
        """One step; what it returns."""
        variant, result = self.run(self.at(args, named_), args, named_)
        for path, key in variant.capture.captured.left.removed:
            remove(variant.form.batch(args, named_), path, key)
        return result

    def run(
        self, variant: Variant, args: Sequence[Any], named_: Mapping[str, Any]
    ) -> tuple[Variant, Any]:
        """One step of a variant, whatever its guards say; of another one if it decides otherwise.

        Returns:
            The variant that ran, and what the step returns.
        """
        batch = variant.form.batch(args, named_)
        leaves = named(flatten(batch)[0])
        generator = torch.get_rng_state() if variant.capture.captured.decisions.questions else None
        certain: tuple[bool, ...] = ()
        while True:
            self.move_to(variant)
            try:
                result = variant.run(leaves, functools.partial(self._value_of, variant))
                break
            except OtherwiseError as other:
                if other.n_certain <= len(certain):
                    raise UnsupportedStepError(
                        "a step decides by its numbers as often as it is run with them; this one "
                        f"does otherwise when it is run again, at {other.line}: compute with "
                        "tensors there, as torch.where does"
                    ) from None
                certain = other.answers[: other.n_certain]
                if generator is not None:
                    torch.set_rng_state(generator)
                variant = self._otherwise(variant, args, named_, other)
        if self._followed is not None:
            self._followed.stepped()
        self._last = variant
        return variant, result

    def _otherwise(
        self,
        variant: Variant,
        args: Sequence[Any],
        named_: Mapping[str, Any],
        other: OtherwiseError,
    ) -> Variant:
        """The variant of a call whose numbers decide in another way."""
        certain = other.answers[: other.n_certain]
        found, tree = flatten(variant.form.batch(args, named_))
        for known in self.made:
            value_of = functools.partial(self._value_of, known)
            if known.capture.captured.decisions.are(certain) and not known.difference(
                variant.form, tree, named(found), value_of
            ):
                return known
        answers = Answers(certain, other.answers)
        batch = variant.form.batch(args, named_)
        return self._make(variant.form, batch, [str(other)], answers)

    def _value_of(self, variant: Variant, name: str) -> Tensor:
        """What a tensor of a variant's state holds now; where there are several, all processes ask.

        A variant that ran before the last one may have had other tensors under the same names.
        """
        tensor, last, followed = variant.capture.state.tensors[name], self._last, self._followed
        if last is not None and followed is not None and not followed.is_written(name):
            is_there = last.capture.state.tensors.get(name) is tensor
            return last.runtime.whole_of(name) if is_there else tensor.detach()
        return tensor.detach()

    def at(self, args: Sequence[Any], named_: Mapping[str, Any]) -> Variant:
        """The variant that a call takes; captured and planned if there is none."""
        form = Form.of(self._model, self._optimizer, args, named_)
        batch = form.batch(args, named_)
        found, tree = flatten(batch)
        leaves = named(found)
        reasons: list[str] = []
        for variant in sorted(self.made, key=lambda v: v is not self._last):
            value_of = functools.partial(self._value_of, variant)
            reason = variant.difference(form, tree, leaves, value_of)
            if reason is None:
                return variant
            reasons.append(reason)
        return self._make(form, batch, reasons)

    @no_gc.paused()
    def _make(
        self,
        form: Form,
        batch: Any,
        reasons: Sequence[str],
        answers: Answers | None = None,
    ) -> Variant:
        """Capture and plan another variant."""
        if join() is not None and self._followed is None:
            self._followed = Followed(self._model, self._optimizer)
        cluster = self._devices()
        self._options.tell("capturing", 0, 1)
        with self.reading():
            self._bring_counts()
            step = form.step(self._function)
            capture = Capture(step, self._model, self._optimizer, batch, answers)
        questions = capture.captured.decisions.questions
        if join() is not None and questions:
            raise refusal_at(
                "a step in several processes runs the same operators whatever its numbers are; "
                "this one decides by a number that it computes",
                questions[0].line,
                "compute with tensors there, as torch.where does",
            )
        self._options.tell("capturing", 1, 1)
        with doing("planning"):
            planned = self._plan(capture, cluster)
        variant = Variant(form, capture, planned, self._runtime_of)
        if len(self.made) >= _MOST:
            self._warn(reasons)
            del self.made[1]
        self.made.append(variant)
        return variant

    @torch.no_grad()
    def _bring_counts(self) -> None:
        """Let a capture see what is counted in several processes, where it decides."""
        if self._followed is None or self._last is None:
            return
        for name, tensor in self._last.capture.state.tensors.items():
            if is_count(name, tensor):
                tensor.copy_(self._value_of(self._last, name))

    def _devices(self) -> Cluster:
        """What is planned for."""
        if self._cluster is None:
            self._cluster = default_cluster()
        return self._cluster

    def _plan(self, capture: Capture, cluster: Cluster) -> Planned[Trace]:
        search = functools.partial(plan_capture, capture, cluster)
        for other in self.made:
            plan = other.plan
            with suppress(FrontendsError):
                if capture.at(plan.microbatches).step.fingerprint == plan.step:
                    return search(self._options.with_plan(plan))
        options = self._options
        if self.made:
            options = options.with_plan(None)
            search = functools.partial(_hold_if_possible, search, self.first.plan)
        return plan_together(search, options, join(), share_plan)

    def _warn(self, reasons: Sequence[str]) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"a step is captured again where what it looked at has changed; it was {_MOST} times "
            f"already, and each call goes on to pay for it. What changed last: {reasons[0]}. Put "
            "a number that changes into the batch, or into a tensor",
            stacklevel=6,
        )

    def _runtime_of(self, variant: Variant) -> Runtime:
        for other in (*self.made, self._last):
            if other is None or other is variant or other._runtime is None:
                continue
            if _run_alike(variant, other):
                return other._runtime
        planned, rank = variant.planned, join()
        shared, state = None, variant.capture.state.tensors
        if rank is None:
            shared = self._shared
            shared.follow(state)
        elif self._last is None and self._followed is not None:
            self._followed.same(state)
        return Runtime(
            planned.trace,
            planned.layered,
            planned.plan,
            self._devices(),
            state,
            rank=rank,
            deadline_s=self._deadline_s,
            shared=shared,
            is_kept=bool(variant.capture.captured.decisions.questions),
        )

    def move_to(self, variant: Variant) -> None:
        """Let the state be where a variant's plan keeps it, and as the user has written it."""
        state = variant.capture.state.tensors
        if self._followed is None:
            self._shared.follow(state)
            return
        last = self._last
        if last is not None and last is not variant:
            self._leave_behind(last, state, self._followed)
        runtime = variant.runtime
        if last is not None and last is not variant:
            known = last.capture.state.tensors
            same = [n for n, tensor in state.items() if known.get(n) is tensor]
            runtime.take_from(last.runtime, same)
            runtime.load({n: t for n, t in state.items() if n not in same and not t.is_meta})
        if written := self._followed.written():
            runtime.load({n: tensor for n, tensor in written.items() if state.get(n) is tensor})
        self._followed.moved(state)

    @torch.no_grad()
    def _leave_behind(self, last: Variant, state: Mapping[str, Tensor], followed: Followed) -> None:
        """Write back what is no part of the next state, or goes by another name there."""
        for name, tensor in last.capture.state.tensors.items():
            is_moved = state.get(name) is not tensor and not tensor.is_meta
            if is_moved and not followed.is_written(name):
                tensor.copy_(last.runtime.whole_of(name))

    def forget_writes(self) -> None:
        """What was written to the model is not meant for the next step."""
        if self._followed is not None:
            self._followed.forget()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Reads of the model inside are ours."""
        with nullcontext() if self._followed is None else self._followed.allowed():
            yield

    def write_back(self) -> None:
        """Let the model and optimizer have the state as it is now."""
        if not self.made or self._followed is None:
            return
        now = self.current.runtime.whole_state()
        state = self.current.capture.state.tensors
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(now[name])
        self._followed.same(state)
