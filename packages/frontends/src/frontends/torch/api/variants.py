"""The variants of a step: a call runs the one whose guards hold, or captures another one.

If a step is called with another shape of batch, or its Python code would do something else, it is
captured again, as `torch.compile` compiles again. It is planned with the state in the layouts of
the first plan. A step whose guards change at every call is captured at every call.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from costmodel import Cluster
from torch import nn
from torch.optim import Optimizer

from frontends.answer.plan import Plan
from frontends.base import no_gc
from frontends.base.batch_axes import BatchAxes, copied
from frontends.base.boundary import doing
from frontends.base.present import present
from frontends.errors import (
    FrontendsError,
    HeldLayoutError,
    UnsupportedStepError,
)
from frontends.run.plan_consensus import plan_together
from frontends.run.planned_step import first_of
from frontends.search.plan_options import PlanOptions
from frontends.search.plan_step import Planned
from frontends.torch.api.plan_for import default_cluster, plan_capture
from frontends.torch.api.residence import Residence
from frontends.torch.api.run_options import RunOptions
from frontends.torch.api.variant import Variant, run_alike
from frontends.torch.base.calls import Tensor
from frontends.torch.base.supposed import Answers, OtherwiseError
from frontends.torch.base.tracing import traced_alone
from frontends.torch.base.trees import flatten, remove
from frontends.torch.capture.arguments import is_count, named
from frontends.torch.capture.forms import Form
from frontends.torch.capture.refusals import refusal_at
from frontends.torch.run.alike import (
    check_alike,
    check_same_outside,
    check_same_variant,
    check_same_weights,
)
from frontends.torch.run.follow import Followed
from frontends.torch.run.processes import join, share_plan
from frontends.torch.run.runtime import Runtime
from frontends.torch.run.shared import SharedState
from frontends.torch.trace.trace import Capture, Trace

_MOST = 8
"""The largest number of variants that are kept, the same as in `torch.compile` [chosen]."""


def _hold_if_possible(
    search: Callable[..., Planned[Trace]], hold: Plan, follower: str, options: PlanOptions
) -> Planned[Trace]:
    """Return a plan for another variant: with state in held layouts if possible, else without.

    Args:
        search: Plans with some options.
        hold: The plan in whose layouts the state is.
        follower: The name of a function that follows the step, for a warning; empty for the step.
        options: How to plan.
    """
    if options.plan is None:  # else it is the plan of process 0
        try:
            return search(options, hold=hold)
        except HeldLayoutError as error:
            if follower:
                warnings.warn(
                    f"{follower} is planned on its own for a call that cannot keep state where the "
                    f"step's plan has it: {error}",
                    stacklevel=8,
                )
    return search(options)


def _without_values(state: Mapping[str, Tensor], planned: Planned[Trace]) -> dict[str, Tensor]:
    """The tensors of the state that a plan reads, on the meta device."""
    read = {stored.value for stage in planned.plan.stages for stored in stage.inputs}
    read |= planned.trace.read_early
    return {name: t.detach().to("meta") for name, t in state.items() if name in read}


def _pass_on(source: Variant, target: Variant, tensors: Iterable[Tensor]) -> None:
    """Pass state on from one variant's runtime to another's, in a run of several processes.

    If the user has moved modules, a tensor may have another name in the target.

    Args:
        source: Has the state.
        target: Gets it, as far as its runtime keeps it.
        tensors: Which of the user's tensors.
    """
    names = {id(tensor): name for name, tensor in source.capture.state.tensors.items()}
    wanted, kept = set(map(id, tensors)), target.runtime.state_names
    state = {n: t for n, t in target.capture.state.tensors.items() if n in kept and id(t) in wanted}
    alike = [name for name, tensor in state.items() if names.get(id(tensor)) == name]
    target.runtime.take_from(source.runtime, alike)
    for name in [name for name in state if name not in alike]:
        tensor = state[name]
        known = names.get(id(tensor))
        value = tensor if known is None else source.runtime.whole_of(known)
        target.runtime.load({name: value})


class Variants:
    """All variants of a step.

    Args:
        function: The user's step.
        model: The module that it trains.
        optimizer: The optimizer that it calls.
        cluster: The cluster to plan for; by default `default_cluster()`.
        options: How to plan.
        running: How to run.
        batch_axes: Which dims of the batch hold the examples.
        leader: The variants of the step that the function follows: it uses their state where they
            keep it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        model: nn.Module,
        optimizer: Optimizer,
        cluster: Cluster | None,
        options: PlanOptions,
        running: RunOptions,
        batch_axes: BatchAxes,
        leader: Variants | None = None,
    ) -> None:
        self._function, self._model, self._optimizer = function, model, optimizer
        self._cluster, self._options, self._running = cluster, options, running
        self._batch_axes = copied(batch_axes)
        self.made: list[Variant] = []
        """The first variant, which is always kept, and the latest others."""

        self._leader = leader
        self._current: Variant | None = None
        self._residence: Residence = Residence() if leader is None else leader._residence
        self._has_warned = False

    @property
    def first(self) -> Variant:
        """The variant of the first call.

        Raises:
            PlanError: There was no call yet.
        """
        return first_of(self.made)

    @property
    def current(self) -> Variant:
        """The variant of the last call."""
        return self._current or self.first

    def keeper(self, variant: Variant) -> Variant:
        """The variant whose runtime keeps the state when another one, or itself, has run."""
        if self._leader is None:
            return variant
        return self._residence.last or self._leader.first

    def call(self, args: Sequence[Any], named_: Mapping[str, Any]) -> Any:
        """Run one step; return what the user's step returns."""
        variant, result = self.run(self.at(args, named_), args, named_)
        for path, key in variant.capture.captured.left.removed:
            remove(variant.form.batch(args, named_), path, key)
        return result

    def run(
        self, variant: Variant, args: Sequence[Any], named_: Mapping[str, Any]
    ) -> tuple[Variant, Any]:
        """Run one step of a variant, without checking its guards.

        If its decisions turn out otherwise, the variant of those decisions runs instead.

        Returns:
            The variant that ran, and what the user's step returns.
        """
        batch = variant.form.batch(args, named_)
        leaves = named(flatten(batch)[0])
        generator = torch.get_rng_state() if variant.capture.captured.decisions.questions else None
        certain: tuple[bool, ...] = ()
        while True:
            try:
                self.move_to(variant)
                result = variant.run(leaves, functools.partial(self._value_of, variant))
                self._has_run(variant)
                return variant, result
            except OtherwiseError as other:
                if other.n_certain <= len(certain):
                    raise UnsupportedStepError(
                        "a step makes the same decisions whenever it runs with the same numbers; "
                        f"this one decides otherwise when it is run again, at {other.line}: "
                        "compute with tensors there, as torch.where does"
                    ) from None
                certain = other.answers[: other.n_certain]
                if generator is not None:
                    torch.set_rng_state(generator)
                variant = self._otherwise(variant, args, named_, other)
            finally:
                if self._leader is not None and self._residence.followed is not None:
                    variant.let_go()

    def _has_run(self, variant: Variant) -> None:
        """Record what a call of a variant has done to the state."""
        self._current = variant
        followed, updated = self._residence.followed, variant.capture.captured.updates
        if self._leader is None:
            self._residence.last = variant
        elif followed is not None:
            self._residence.last = keeper = self.keeper(variant)
            state = variant.capture.state.tensors
            _pass_on(variant, keeper, [state[name] for name in updated])
        if followed is not None and (self._leader is None or updated):
            followed.stepped()

    def _otherwise(
        self,
        variant: Variant,
        args: Sequence[Any],
        named_: Mapping[str, Any],
        other: OtherwiseError,
    ) -> Variant:
        """Return the variant of a call whose numbers decide otherwise."""
        certain = other.answers[: other.n_certain]
        leaves, tree = flatten(variant.form.batch(args, named_))
        for known in self.made:
            value_of = functools.partial(self._value_of, known)
            if known.capture.captured.decisions.are(certain) and not known.difference(
                variant.form, tree, named(leaves), value_of
            ):
                return known
        answers = Answers(certain, other.answers)
        batch = variant.form.batch(args, named_)
        return self._make(variant.form, batch, [str(other)], answers)

    def _value_of(self, variant: Variant, name: str) -> Tensor:
        """Return the current value of a tensor of a variant's state.

        With several processes, all have to call it. Variants may have different tensors under the
        same name.
        """
        tensor, last, followed = (
            variant.capture.state.tensors[name],
            self._residence.last,
            self._residence.followed,
        )
        if last is not None and followed is not None and not followed.is_written(name):
            is_there = last.capture.state.tensors.get(name) is tensor
            return last.runtime.whole_of(name) if is_there else tensor.detach()
        return tensor.detach()

    def at(self, args: Sequence[Any], named_: Mapping[str, Any]) -> Variant:
        """Return the variant for a call; it is captured and planned if there is none.

        Raises:
            BatchError: The arguments are no batch, or other processes have another one.
            DeviceError: Other processes call the step in another way.
        """
        form = Form.of(self._model, self._optimizer, args, named_)
        batch = form.batch(args, named_)
        words = check_alike(batch, self._model, self._optimizer, self._current is None)
        variant = self._of_batch(form, batch)
        if variant.capture.captured.draws:
            words.check_random()
        return variant

    def _of_batch(self, form: Form, batch: Any) -> Variant:
        """Return the variant for a batch; it is captured and planned if there is none."""
        parts, tree = flatten(batch)
        leaves = named(parts)
        reasons: list[str] = []
        for variant in sorted(self.made, key=lambda v: v is not self._residence.last):
            value_of = functools.partial(self._value_of, variant)
            reason = variant.difference(form, tree, leaves, value_of)
            if reason is None:
                if len(self.made) > 1:
                    check_same_variant(self.made.index(variant))
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
        with traced_alone():
            return self._make_alone(form, batch, reasons, answers)

    def _make_alone(
        self, form: Form, batch: Any, reasons: Sequence[str], answers: Answers | None
    ) -> Variant:
        """Capture and plan another variant while no other thread does."""
        if join() is not None and self._residence.followed is None:
            check_same_weights(self._model)
            self._residence.followed = Followed(self._model, self._optimizer)
        cluster = self._devices()
        self._options.tell("capturing", 0, 1)
        with self.reading():
            self._bring_counts()
            step = form.step(self._function)
            objects = step, self._model, self._optimizer, batch, answers
            capture = Capture(
                *objects,
                batch_axes=self._batch_axes,
                follows=self._leader is not None,
                statistics=self._options.has_statistics,
            )
        outside = capture.captured.guards.outside
        check_same_outside({name: places[0].get() for name, places in outside.items()})
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
        variant = Variant(form, capture, planned, self._runtime_of, self._first_of)
        if len(self.made) >= _MOST:
            self._warn(reasons)
            del self.made[1]
        self.made.append(variant)
        return variant

    @torch.no_grad()
    def _bring_counts(self) -> None:
        """With several processes, copy counts to the user's tensors, as a capture may read them."""
        if self._residence.followed is None or self._residence.last is None:
            return
        for name, tensor in self._residence.last.capture.state.tensors.items():
            if is_count(name, tensor):
                tensor.copy_(self._value_of(self._residence.last, name))

    def _devices(self) -> Cluster:
        """Return the cluster to plan for."""
        if self._cluster is None:
            self._cluster = default_cluster()
        return self._cluster

    def _plan(self, capture: Capture, cluster: Cluster) -> Planned[Trace]:
        search = functools.partial(plan_capture, capture, cluster)
        for other in self.made:
            plan = other.plan
            with suppress(FrontendsError):
                if capture.at(plan.microbatches, plan.padded_to).step.fingerprint == plan.step:
                    return search(self._options.with_plan(plan))
        options = self._options
        if self.made or self._leader is not None:
            options = options.with_plan(None)
            hold = (self._leader or self).first.plan
            name = getattr(self._function, "__name__", repr(self._function))
            follower = "" if self._leader is None else name
            search = functools.partial(_hold_if_possible, search, hold, follower)
        return plan_together(search, options, join(), share_plan)

    def _warn(self, reasons: Sequence[str]) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            "a step is captured again when something that its code read has changed; this was "
            f"{_MOST} times, and each such call takes the time for a capture. What changed last: "
            f"{reasons[0]}. Put a number that changes into the batch, or into a tensor",
            stacklevel=6,
        )

    def _runtime_of(self, variant: Variant) -> Runtime:
        for other in (*self.made, self._residence.last):
            if other is None or other is variant or other._runtime is None:
                continue
            if run_alike(variant, other):
                return other._runtime
        planned, rank = variant.planned, join()
        shared, state = None, variant.capture.state.tensors
        if rank is None:
            shared = self._residence.shared
            shared.follow(state)
        elif self._leader is not None:
            state = _without_values(state, planned)
        elif self._residence.last is None and self._residence.followed is not None:
            self._residence.followed.same(state)
        return self._made(variant, planned, state, shared)

    def _first_of(self, variant: Variant) -> Runtime:
        """The runtime of the first of a variant's two passes, which has no state of its own."""
        planned = present(variant.planned.first_pass, "the variant has two passes")
        state = variant.capture.state.tensors
        if join() is None:
            return self._made(variant, planned, state, self._residence.shared)
        return self._made(variant, planned, _without_values(state, planned), None)

    def _made(
        self,
        variant: Variant,
        planned: Planned[Trace],
        state: Mapping[str, Tensor],
        shared: SharedState | None,
    ) -> Runtime:
        return Runtime(
            planned.trace,
            planned.layered,
            planned.plan,
            self._devices(),
            state,
            rank=join(),
            deadline_s=self._running.deadline_s,
            shared=shared,
            is_kept=bool(variant.capture.captured.decisions.questions),
            tell=None if self._running.backend == "eager" else self._options.tell,
        )

    def move_to(self, variant: Variant) -> None:
        """Move the state to the layouts of a variant's plan, and load what the user has written."""
        state = variant.capture.state.tensors
        if self._residence.followed is None:
            self._residence.shared.follow(state)
            return
        if self._leader is not None:
            keeper = self.keeper(variant)
            self._leader.move_to(keeper)
            _pass_on(keeper, variant, state.values())
            return
        last = self._residence.last
        if last is not None and last is not variant:
            self._leave_behind(last, state, self._residence.followed)
        runtime = variant.runtime
        if last is not None and last is not variant:
            known = last.capture.state.tensors
            same = [n for n, tensor in state.items() if known.get(n) is tensor]
            runtime.take_from(last.runtime, same)
            runtime.load({n: t for n, t in state.items() if n not in same and not t.is_meta})
        if written := self._residence.followed.written():
            runtime.load({n: tensor for n, tensor in written.items() if state.get(n) is tensor})
        self._residence.followed.moved(state)

    @torch.no_grad()
    def _leave_behind(self, last: Variant, state: Mapping[str, Tensor], followed: Followed) -> None:
        """Write back state of the last variant that the next one has not, or under another name."""
        for name, tensor in last.capture.state.tensors.items():
            is_moved = state.get(name) is not tensor and not tensor.is_meta
            if is_moved and not followed.is_written(name):
                tensor.copy_(last.runtime.whole_of(name))

    def forget_writes(self) -> None:
        """Let the next step ignore what was written to the model."""
        if self._residence.followed is not None:
            self._residence.followed.forget()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, this package reads the model, which is allowed."""
        followed = self._residence.followed
        with nullcontext() if followed is None else followed.allowed():
            yield

    def write_back(self) -> None:
        """Copy the current state to the model and optimizer, unless they have it."""
        followed = self._residence.followed
        if not self.made or followed is None or not followed.is_behind:
            return
        now = self.current.runtime.whole_state()
        state = self.current.capture.state.tensors
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(now[name])
        followed.same(state)
