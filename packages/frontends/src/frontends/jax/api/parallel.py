"""What a JAX user calls: `parallelize`, and the parallel step that it makes."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack, overload

import jax
from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.base.batch_axes import BatchAxes, check_leading, copied
from frontends.base.boundary import doing
from frontends.errors import BatchError, HeldLayoutError, PlanError
from frontends.jax.api import checkpoint
from frontends.jax.api.first_pass import FirstPass
from frontends.jax.api.plan_for import default_cluster, plan_at
from frontends.jax.api.variants import Key, Variant, changes_from, what_keeps_changing
from frontends.jax.api.verify import verify
from frontends.jax.base import _compat
from frontends.jax.base.adapters import Kept, adapter_of
from frontends.jax.base.arguments import Argument, argnums_of
from frontends.jax.base.followed_state import FollowedState
from frontends.jax.base.passed import Passed
from frontends.jax.base.signature import CallArguments, Signature
from frontends.jax.run.processes import process, share_plan
from frontends.jax.run.runtime import Runtime
from frontends.jax.state.alike import check_alike
from frontends.jax.state.data import ARRAYS, rows_of_process
from frontends.jax.state.initial import Home, find_homes, leaves_of_state, make_state, place_shapes
from frontends.jax.state.whole import place, whole
from frontends.jax.trace.trace import Trace
from frontends.run.feed import Examples, Feed
from frontends.run.plan_consensus import plan_together
from frontends.run.planned_step import PlannedStep, first_of
from frontends.run.verify import Verified
from frontends.search.held import HELD
from frontends.search.plan_options import (
    PlanKeywords,
    PlanOptions,
    check_where,
    takes_plan_options,
)
from frontends.search.plan_step import Planned


class ParallelStep(PlannedStep[Trace]):
    """A training step that is planned at its first call and then runs on many devices.

    It takes and returns what the original step does. State that it returns lies sharded on the
    devices, and the next call uses it there.

    Where `jax.jit` would trace again (another shape, dtype or structure of an argument, another
    static value, another context of JAX's configuration), the step is planned again: this plan is
    another variant. State stays where the first plan keeps it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        cluster: Cluster | None,
        options: PlanOptions,
        *,
        batch_argnums: int | Sequence[int] = -1,
        batch_axes: BatchAxes = 0,
        static_argnums: Sequence[int] = (),
        static_argnames: Sequence[str] = (),
        donate: bool = False,
        deadline_s: float = 60.0,
        most_variants: int = 8,
        leader: ParallelStep | None = None,
    ) -> None:
        if cluster is not None:
            check_where(cluster)
        functools.update_wrapper(self, function)
        adapter = adapter_of(function)
        numbers, names = _compat.statics_of(function)
        if adapter is not None:
            function = adapter.function
        elif numbers or names:  # the inner function is planned, with the same static arguments
            function = inspect.unwrap(function, stop=lambda f: not any(_compat.statics_of(f)))
        self._function = function
        self._cluster, self._options = cluster, options
        self._batch_argnums, self._batch_axes = argnums_of(batch_argnums), copied(batch_axes)
        self._signature = Signature(
            self._function, (*static_argnums, *numbers), (*static_argnames, *names), adapter
        )
        self._donate, self._deadline_s = donate, deadline_s
        self._most_variants, self._leader = most_variants, leader
        self._variants: dict[Key, Variant] = {}
        self._has_run = False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run one step; the first call of each variant also plans and compiles it.

        Raises:
            ArgumentError: JAX cannot compute with an argument, or the arguments do not fit the
                signature.
            BatchError: Processes of a run give different arguments; nothing is changed then.
            FrontendsError: Of other kinds, as `plan_for` and `compile` raise them.
        """
        with jax.disable_jit(False):  # without jit, there would be no programs to compile
            call = self._signature.call(arguments, named)
            check_alike(call, not self._has_run)
            variant = self._variant(call)
            runtime, trace = self._runtime(variant), variant.planned.trace
            with doing("running a step"):
                arguments = tuple(call.arrays.values())
                result = trace.unflatten(runtime(trace.flatten(arguments, variant.first_pass)))
                self._has_run = True
                if variant.passed is not None:
                    result = variant.passed.returned(result, arguments)
                if self._donate:
                    for array in trace.taken_apart(arguments):
                        array.delete()
                if call.adapter is None:
                    return result
                return call.adapter.returned(result, call.originals, variant.kept)

    def prepare(self, *arguments: Any, **named: Any) -> Planned[Trace]:
        """Trace and plan the step for the shapes of these arguments, without compiling it."""
        with jax.disable_jit(False):
            return self._variant(self._signature.call(arguments, named), of_shapes=True).planned

    def compile(self, *arguments: Any, **named: Any) -> Runtime:
        """Plan the step for these arguments unless it is planned already, and compile its programs.

        Without arguments, compile the first variant.
        """
        with jax.disable_jit(False):
            if self._variants and not arguments and not named:
                return self.runtime
            call = self._signature.call(arguments, named)
            return self._runtime(self._variant(call, of_shapes=True))

    def _variant(self, call: CallArguments, *, of_shapes: bool = False) -> Variant:
        """The variant for the key of a call; it is planned if there is none yet."""
        key = Key.of(call, of_shapes=of_shapes)
        variant = self._variants.get(key)
        if variant is None:
            variant = self._variants[key] = self._planned_variant(key, call)
            if len(self._variants) == self._most_variants + 1:
                warnings.warn(
                    f"{self._name} has been planned and compiled {len(self._variants)} times, "
                    f"as something keeps changing: {what_keeps_changing(self.variants)}. Pad "
                    "batches to a few lengths, and give numbers that change as arrays and not as "
                    "static arguments",
                    stacklevel=3,
                )
        return variant

    def _planned_variant(self, key: Key, call: CallArguments) -> Variant:
        arguments, argnums = tuple(call.arrays.values()), self._batch_argnums
        kept: Kept = {}
        function = call.function(self._function, kept)
        followed = None if self._leader is None else self._leader._followed()
        passed = None if followed is None else Passed(function)
        search = functools.partial(
            plan_at,
            passed or function,
            arguments,
            self._devices(),
            batch_argnums=argnums if argnums == (-1,) else call.places_of(argnums),
            batch_axes=self._batch_axes,
            followed=followed,
        )
        first = self.variants[0] if self._variants else None
        if first is None and self._leader is None:
            planned = plan_together(search, self._options, process(), share_plan)
            return Variant(key, planned, False, (), kept)
        leaders = () if self._leader is None else self._leader.variants
        holds = [each.plan for each in (*leaders, *self.variants) if not each.is_held]
        again = functools.partial(_plan_again, search, holds, self._name)
        options = replace(self._options, plan=None)
        planned = plan_together(again, options, process(), share_plan)
        is_held = planned.plan.strategy == HELD or planned.plan in holds
        changes = () if first is None else changes_from(key, planned, first.key)
        return Variant(key, planned, is_held, changes, kept, passed)

    def _followed(self) -> FollowedState:
        """The state of this step, by which functions that follow it are planned."""
        if not self._variants:
            raise PlanError(
                f"a function follows the plan of a step, and {self._name} has none yet: call it, "
                "or prepare(*arguments), first"
            )
        planned = self.planned
        graph = planned.layered.step.graph
        homes = functools.cache(lambda: find_homes(planned.trace, planned.plan, graph))
        trace, tree = planned.trace, self.variants[0].key.tree
        firsts = [trace.arguments[place.start].name for place in trace.places]
        parameters = {i for i, n in enumerate(firsts) if graph.value(n).role == "parameter"}
        return FollowedState(tree, trace.leaves, parameters, homes)

    def _devices(self) -> Cluster:
        """The cluster to plan for."""
        if self._cluster is None:
            self._cluster = default_cluster()
        return self._cluster

    def _runtime(self, variant: Variant) -> Runtime:
        if variant.runtime is None:
            planned = variant.planned
            with doing("compiling"):
                if planned.first_pass is not None:
                    runtime = self._compiled(planned.first_pass, donate=False)
                    trace = planned.first_pass.trace
                    variant.first_pass = FirstPass(planned.trace, trace, runtime)
                variant.runtime = self._compiled(planned, donate=self._donate)
        return variant.runtime

    def _compiled(self, planned: Planned[Trace], *, donate: bool) -> Runtime:
        return Runtime(
            planned.trace,
            planned.layered,
            planned.plan,
            self._devices(),
            self._options.progress,
            donate=donate,
            deadline_s=self._deadline_s,
        )

    def follow(
        self,
        function: Callable[..., Any],
        *,
        batch_argnums: int | Sequence[int] = -1,
        batch_axes: BatchAxes = 0,
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        most_variants: int = 8,
    ) -> ParallelStep:
        """Run another function on this step's state, where the plan keeps it.

        This is Alpa's FollowParallel. Such a function evaluates a model, or generates with it. It
        is planned at its first call, with the stages of this step's plan and the state in its
        layouts, so that no state moves between training and evaluation. Arguments that are state of
        this step, or parts of it, are found by their structure, shapes and types, and where they
        lie; they may have other names.

        Args:
            function: The function, written for one device.
            batch_argnums: Which of its arguments hold the batch.
            batch_axes: Which dims of the batch hold the examples, as in `plan_for`.
            static_argnums: Which arguments are not arrays, as in `parallelize`.
            static_argnames: The same by name.
            most_variants: If the function gets more variants, a warning says what keeps changing.

        Returns:
            A step that takes and returns what the function does. State that the function returns
            unchanged is the caller's. Its first call raises `PlanError` if this step has no plan
            yet.

        Raises:
            BatchError: `batch_argnums` is invalid.
        """
        return ParallelStep(
            function,
            self._cluster,
            self._options.of_followers(),
            batch_argnums=batch_argnums,
            batch_axes=batch_axes,
            static_argnums=(static_argnums,) if isinstance(static_argnums, int) else static_argnums,
            static_argnames=(static_argnames,)
            if isinstance(static_argnames, str)
            else static_argnames,
            deadline_s=self._deadline_s,
            most_variants=most_variants,
            leader=self,
        )

    def init(self, function: Callable[..., Any], *arguments: Any, batch: Any = None) -> Any:
        """Make the first state of the step, each leaf on the devices where the plan keeps it.

        The numbers are those that `jax.jit(function)` makes on one device, to the last bit; only a
        sum over a sharded dim may be rounded differently.

        Args:
            function: Makes the step's first argument that is not batch, or a tuple of its first
                ones, such as weights and the optimizer's state, from random keys.
            arguments: What `function` is called with; small arrays and keys.
            batch: The batch, or its shapes, to plan for; a tuple if it is several arguments. Not
                needed if the step has a plan.

        Raises:
            PlanError: The step was planned for other state. Or it has no plan yet, and `batch` is
                missing or the step has arguments that are neither state nor batch: call `prepare`
                first.
            DeviceError: JAX has fewer devices than the plan uses.
        """
        _, homes = self._homes(function, arguments, batch)
        return make_state(function, arguments, homes)

    def abstract_state(
        self, function: Callable[..., Any], *arguments: Any, batch: Any = None
    ) -> Any:
        """What `init` would make, as `jax.ShapeDtypeStruct` with shardings, for `restore`."""
        return place_shapes(*self._homes(function, arguments, batch))

    def state_dict(self, state: Any) -> Any:
        """State as whole arrays; all processes must call it.

        Args:
            state: Any tree of arrays that `init` made or a step returned.

        Returns:
            The same tree of numpy arrays, in every process; typed keys are on one device.
        """
        return whole(state)

    def load_state_dict(self, state: Any) -> Any:
        """Whole state, each leaf on the devices where the plan keeps it, to go on from it.

        Args:
            state: The step's first argument that is not batch, or a tuple of its first ones. It is
                what `state_dict` returned, of this step or of one with another plan, or arrays from
                elsewhere; the same in every process.

        Raises:
            PlanError: The state has another structure, or other shapes or dtypes; or the step has
                no plan.
            DeviceError: JAX has fewer devices than the plan uses.
        """
        leaves, tree = jax.tree.flatten(state)
        placed = [
            place(leaf, home, argument.weak_type)
            for leaf, (argument, home) in zip(leaves, self._places(state), strict=True)
        ]
        return jax.tree.unflatten(tree, placed)

    def save(
        self, folder: str | os.PathLike[str], number: int, state: Any, *, keep: int = 3
    ) -> None:
        """Add a checkpoint of state to a folder; see `frontends.jax.save`."""
        checkpoint.save(folder, number, state, keep=keep)

    def restore(self, folder: str | os.PathLike[str], like: Any, number: int | None = None) -> Any:
        """Read a checkpoint, each array straight to the devices where the plan keeps it.

        Args:
            folder: The folder that was passed to `save`.
            like: The same state as shapes, as `jax.eval_shape(init, key)` gives them, or as arrays.
            number: The number of the step; by default, the last one.

        Raises:
            CheckpointError: There is no such checkpoint, or it holds other state than `like`, or
                orbax is not installed.
            PlanError: `like` is not the state of the step; or the step has no plan.
            DeviceError: JAX has fewer devices than the plan uses.
        """
        homes = [home for _, home in self._places(like)]
        return checkpoint.restore(folder, place_shapes(like, homes), number)

    def verify(self, *arguments: Any, n_steps: int = 2, **named: Any) -> Verified:
        """Run some steps by the plan and by plain `jax.jit` on one device, and compare.

        The arguments are not changed, even if the step may write over its state.

        Args:
            arguments: What the step is called with; each step goes on with the state of the last.
            n_steps: The number of steps, all with this batch.
            named: Arguments by name.

        Raises:
            VerificationError: Numbers that the step returns differ, or programs do not communicate
                what the plan says.
            FrontendsError: Of other kinds, as a call raises them.
        """
        with jax.disable_jit(False):
            call = self._signature.call(arguments, named)
            check_alike(call, not self._has_run)
            variant = self._variant(call)
            arrays = tuple(call.arrays.values())
            single = variant.passed or call.function(self._function, {})
            trace = variant.planned.trace
            runtime = self._runtime(variant)
            return verify(runtime, trace, single, arrays, n_steps, variant.first_pass)

    def feed(self, examples: Examples, *, start: int = 0, seed: int | None = None) -> Feed:
        """The step's batches, made from examples; each process reads only those that it needs.

        All processes go through the same batches in the same order. A batch has its full shape in
        each process, but in a run of several processes only the rows that the process's devices
        read are filled: pass it to the step and to nothing else.

        Args:
            examples: Has a length, and `examples[i]` is a tree like the batch without its leading
                dim; a tuple if the batch is several arguments. The next batch is read in a thread.
            start: The number of the first batch, for a run that goes on after this many steps.
            seed: Seed of the order of examples, which is another one in each epoch; by default they
                keep their order. Examples at the end of an epoch that do not fill a batch are left
                out.

        Returns:
            An endless sequence of batches; each is a tuple if the batch is several arguments.

        Raises:
            PlanError: The step has no plan yet: call `init`, `abstract_state` or `prepare`.
            BatchError: The step's batch does not consist of examples, or there are too few.
        """
        planned = self.planned
        arguments = planned.trace.leaves
        check_leading({a.name: a.batch_axis for a in arguments if a.batch_axis is not None})
        parts, leaves, at = [], dict[int, Argument](), 0
        for child in self.variants[0].key.tree.children():
            numbers = range(at, at + child.num_leaves)
            at = numbers.stop
            if any(arguments[i].is_batch or arguments[i].is_fed for i in numbers):
                parts.append(child)
                leaves.update((i, arguments[i]) for i in numbers)
        tree = parts[0] if len(parts) == 1 else jax.tree_util.treedef_tuple(parts)
        rows = None
        if jax.process_count() > 1:
            needed = rows_of_process(self.runtime, planned.trace)
            rows = [needed[planned.trace.places[i].start] for i in leaves]
        return Feed(examples, list(leaves.values()), tree, ARRAYS, rows, start, seed)

    def _homes(
        self, function: Callable[..., Any], arguments: Sequence[Any], batch: Any
    ) -> tuple[Any, list[Home]]:
        """Shapes of the state that a function makes, and the shardings of its leaves."""
        shapes = jax.eval_shape(function, *arguments)
        if not self._variants:
            positional, named = self._arguments_with(shapes, batch)
            self.prepare(*positional, **named)
        return shapes, [home for _, home in self._places(shapes)]

    def _places(self, state: Any) -> list[tuple[Argument, Home]]:
        """For each leaf of a tree of state, which argument it is, and its sharding."""
        planned = self.planned
        homes = find_homes(planned.trace, planned.plan, planned.layered.step.graph)
        leaves = leaves_of_state(state, self.variants[0].key.tree, planned.trace.leaves)
        return [(planned.trace.leaves[i], homes[i]) for i in leaves]

    def _arguments_with(self, state: Any, batch: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a step that takes nothing but state and batch, positional and named."""
        if batch is None:
            raise PlanError(
                "a step is planned for a batch: give it, or its shapes, as batch=, or call "
                "prepare(*arguments) first"
            )
        required = self._signature.required
        argnums = self._batch_argnums
        numbers = [number % len(required) for number in argnums]
        batches = (batch,) if len(numbers) == 1 else tuple(batch)
        n_state = len(required) - len(numbers)
        states = (state,) if n_state == 1 else state
        if not isinstance(states, tuple) or (len(states), len(batches)) != (n_state, len(numbers)):
            raise PlanError(
                "without a plan, the step's arguments must be the state that is made and the "
                f"batch; its signature has {n_state} arguments of state and {len(numbers)} of "
                f"batch, and the state is {jax.tree.structure(state)}: first call "
                "prepare(*arguments)"
            )
        values = list(states)
        for number, value in sorted(zip(numbers, batches, strict=True), key=lambda item: item[0]):
            values.insert(number, value)
        is_named = [p.kind is inspect.Parameter.KEYWORD_ONLY for p in required]
        return [v for v, named in zip(values, is_named, strict=True) if not named], {
            p.name: v for p, v, named in zip(required, values, is_named, strict=True) if named
        }

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants of the step, in the order in which they were planned."""
        return tuple(self._variants.values())

    @property
    def runtime(self) -> Runtime:
        """The compiled plan of the first variant; raises `PlanError` if the step has no plan."""
        with jax.disable_jit(False):
            return self._runtime(first_of(self.variants))


def _plan_again(
    search: Callable[..., Planned[Trace]], holds: Sequence[Plan], name: str, options: PlanOptions
) -> Planned[Trace]:
    """The plan of a further variant: in held layouts, or if it has other state, on its own."""
    if options.plan is not None:  # process 0 has made it
        return search(options)
    reasons = []
    for hold in holds:
        try:
            return search(options, hold=hold)
        except HeldLayoutError as error:
            reasons.append(error)
    if reasons:
        warnings.warn(
            f"{name} is planned on its own for a call that cannot keep state where the first plan "
            f"has it: {reasons[0]}",
            stacklevel=6,
        )
    try:
        return search(options)
    except BatchError:
        if options.microbatches is None:
            raise
        return search(options.with_plan(None))  # a short batch


@overload
def parallelize(
    function: Callable[..., Any],
    *,
    cluster: Cluster | None = None,
    batch_argnums: int | Sequence[int] = -1,
    batch_axes: BatchAxes = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate: bool = False,
    deadline_s: float = 60.0,
    most_variants: int = 8,
    **options: Unpack[PlanKeywords],
) -> ParallelStep: ...
@overload
def parallelize(
    function: None = None,
    *,
    cluster: Cluster | None = None,
    batch_argnums: int | Sequence[int] = -1,
    batch_axes: BatchAxes = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate: bool = False,
    deadline_s: float = 60.0,
    most_variants: int = 8,
    **options: Unpack[PlanKeywords],
) -> Callable[[Callable[..., Any]], ParallelStep]: ...
@takes_plan_options
def parallelize(
    function: Callable[..., Any] | None = None,
    *,
    cluster: Cluster | None = None,
    batch_argnums: int | Sequence[int] = -1,
    batch_axes: BatchAxes = 0,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate: bool = False,
    deadline_s: float = 60.0,
    most_variants: int = 8,
    **options: Unpack[PlanKeywords],
) -> ParallelStep | Callable[[Callable[..., Any]], ParallelStep]:
    """Make a training step run on all devices, by a plan that is searched at its first call.

    Use it as a function, `parallelize(step)`, or as a decorator with or without options. The step
    stays as it was written for one device. Its arguments may be given by name, as under `jax.jit`.

    Args:
        function: The step. Without it, a decorator is returned.
        cluster: What to plan for; by default, JAX's devices as one host.
        batch_argnums: Which arguments hold the batch, as in `plan_for`.
        batch_axes: Which dims of the batch hold the examples, as in `plan_for`.
        static_argnums: Which arguments are not arrays but plain values that choose what the step
            does. Each of their values is a variant. The static arguments of a function in `jax.jit`
            are known and need not be repeated.
        static_argnames: The same by name.
        donate: Whether a step may write over the state in its arguments. The caller's arrays are
            deleted then, as with `donate_argnums` of `jax.jit`.
        deadline_s: In a run of several processes, how long a step may stand still before the
            processes end and say which one is at fault.
        most_variants: If the step gets more variants, a warning says once what keeps changing;
            planning goes on.
        options: How to plan: the fields of `frontends.PlanOptions`.

    Raises:
        TypeError: There is no such option.
        PlanError: An option has a wrong type or value.
        BatchError: `microbatches` or `batch_argnums` is invalid.

    Examples:
        >>> @parallelize(microbatches=4)
        ... def train_step(params, batch): ...
        >>> train_step
        <ParallelStep of train_step: not planned yet>
    """
    make = functools.partial(
        ParallelStep,
        cluster=cluster,
        options=PlanOptions.of(options, parallelize),
        batch_argnums=batch_argnums,
        batch_axes=batch_axes,
        static_argnums=(static_argnums,) if isinstance(static_argnums, int) else static_argnums,
        static_argnames=(static_argnames,) if isinstance(static_argnames, str) else static_argnames,
        donate=donate,
        deadline_s=deadline_s,
        most_variants=most_variants,
    )
    return make if function is None else make(function)
