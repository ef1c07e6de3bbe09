"""The entry points for PyTorch users: `parallelize`, `parallelize_step`, and `ParallelStep`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from costmodel import Cluster
from torch import nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from frontends.base.batch_axes import BatchAxes, check_leading
from frontends.errors import PlanError
from frontends.run.feed import Examples, Feed
from frontends.run.planned_step import PlannedStep
from frontends.run.verify import Verified
from frontends.search.plan_options import (
    PlanKeywords,
    PlanOptions,
    check_where,
    takes_plan_options,
)
from frontends.search.plan_step import Planned
from frontends.torch.api import checkpoint
from frontends.torch.api.variant import Variant
from frontends.torch.api.variants import Variants
from frontends.torch.api.verify import verify
from frontends.torch.base.calls import Tensor
from frontends.torch.capture.arguments import State
from frontends.torch.capture.capture import training_step
from frontends.torch.capture.forms import Form
from frontends.torch.run.runtime import Runtime
from frontends.torch.state.data import ARRAYS
from frontends.torch.state.initial import Build, init_weights
from frontends.torch.state.loading import Given, load_state_dict
from frontends.torch.state.state_dict import assemble
from frontends.torch.trace.trace import Trace


class ParallelStep(PlannedStep[Trace]):
    """A training step that is planned at its first call and then runs on many devices.

    It takes the arguments of the original step, returns the same, and has the same effects on the
    user's objects. If a call does not fit the captured program, because of another shape of batch
    or another mode of a module, another variant of the step is captured and planned; state stays
    where it is.

    In one process, the state is in the user's model and optimizer: they are always up to date, and
    the next step uses what the user writes to them. With several processes, the state is sharded on
    them: `write_back` copies it to the model and optimizer of each process.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        model: nn.Module,
        optimizer: Optimizer,
        cluster: Cluster | None,
        options: PlanOptions,
        deadline_s: float,
        batch_axes: BatchAxes = 0,
    ) -> None:
        if cluster is not None:
            check_where(cluster)
        functools.update_wrapper(self, function)
        self._function, self.model, self.optimizer = function, model, optimizer
        self._variants = Variants(
            function, model, optimizer, cluster, options, deadline_s, batch_axes
        )

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run one step; if no variant fits the call, first capture and plan one.

        Raises:
            BatchError: The arguments cannot be a batch.
            UnsupportedStepError: The step cannot be captured; nothing is changed then.
        """
        return self._variants.call(arguments, named)

    def prepare(self, *arguments: Any, **named: Any) -> Planned[Trace]:
        """Capture and plan the step for these arguments, without placing its state."""
        return self._variants.at(arguments, named).planned

    def compile(self, *arguments: Any, **named: Any) -> Runtime:
        """Plan the step if it is not planned yet, and place its state on the devices.

        Without arguments, the variant of the last call is used.
        """
        if self.variants and not arguments and not named:
            return self.runtime
        return self._variants.at(arguments, named).runtime

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The programs of the step so far; a call runs the one that fits."""
        return tuple(self._variants.made)

    @property
    def runtime(self) -> Runtime:
        """The runtime of the plan of the last call.

        Raises:
            PlanError: The step has no plan yet.
        """
        return self._variants.current.runtime

    def init(self, function: Build, *, batch: Any = None) -> None:
        """Initialise a model from the meta device; each process only the parts that it keeps.

        All values are those of `model = function()` on one device with the same
        `torch.manual_seed`, and the generator ends in the same state. State that has values, such
        as from a checkpoint, keeps them; if no random state is left, no numbers are drawn.

        Args:
            function: Builds the model as on one device; or model and optimizer, if the optimizer
                creates state when it is built.
            batch: A batch to plan for; not needed if the step has a plan.

        Raises:
            InitializationError: `function` builds another model, or cannot be recorded without
                values.
            PlanError: The step has no plan, and no batch is given.
        """
        if not self.variants and batch is not None:
            self.prepare(batch)
        with self._variants.reading():
            init_weights(self.runtime, self._state(), function)

    init_weights = init

    def state_dict(self, *, full_state_dict: bool = True) -> dict[str, Any]:
        """Return the current state, in the form of `state_dict()` of model and optimizer.

        Args:
            full_state_dict: Whether tensors are whole. If not, each process gets its own shards as
                DTensors in the layouts of the plan, which share memory with the state. State that
                every process has whole (it is read before the first microbatch, or not at all)
                stays a tensor.

        Returns:
            `model` and `optimizer`, for the `load_state_dict` of either.

        Raises:
            PlanError: Some state has no values yet; or DTensors are wanted and there is only one
                process, or DTensor has no placements for a layout.
        """
        with self._variants.reading():
            if full_state_dict:
                return assemble(self._state(), self._now())
            runtime = self.runtime
            runtime.check_there()
            runtime.dtensors.check_order()
            tensors = {
                key[1].value: runtime.dtensors.of(key, s[0]) for key, s in runtime.shards.items()
            }
            return assemble(self._state(), {**tensors, **runtime.whole})

    def load_state_dict(self, state: Given, *, strict: bool = True) -> None:
        """Set the state; each process takes or reads the parts that it keeps.

        If this fails, nothing is changed. If no optimizer state is given, the optimizer keeps its
        own, or gets its first state if it has none.

        Args:
            state: The result of `state_dict` of this step or of one with another plan: whole
                tensors, or DTensors of any layout, of which processes may have different ones;
                `optimizer` may be left out. Or the path of a safetensors file with the model's
                weights, of an index of several, or of a folder with either, as Hugging Face writes
                them.
            strict: Whether the names must be exactly those of the model, and of the optimizer if it
                is given. If not, other names are skipped, and state that is missing is kept.

        Raises:
            CheckpointError: Names are missing or unexpected, or shapes or types differ; or a file
                cannot be read.
            InitializationError: The optimizer's first state depends on weights: call `init`
                before.
            PlanError: The step has no plan yet, and files are read, or the model has no memory.
        """
        is_planned = bool(self.variants)
        if not is_planned and isinstance(state, Mapping) and not self._lacking_memory():
            self.model.load_state_dict(state["model"], strict=strict)
            if "optimizer" in state:
                self.optimizer.load_state_dict(state["optimizer"])
            return
        with self._variants.reading():
            load_state_dict(self.runtime, self._state(), state, strict)

    def save(
        self,
        folder: str | os.PathLike[str],
        number: int,
        *,
        keep: int = 3,
        extra: Mapping[str, Stateful] | None = None,
    ) -> None:
        """Add a checkpoint of the state to a folder: `frontends.torch.save` of this step."""
        checkpoint.save(folder, number, self, keep=keep, extra=extra)

    def restore(
        self,
        folder: str | os.PathLike[str],
        number: int | None = None,
        *,
        extra: Mapping[str, Stateful] | None = None,
    ) -> int:
        """Restore the state from a checkpoint: `frontends.torch.restore` of this step."""
        return checkpoint.restore(folder, self, number, extra=extra)

    def feed(self, examples: Examples, *, start: int = 0, seed: int | None = None) -> Feed:
        """Return the step's batches, assembled from examples; all processes get the same ones.

        Args:
            examples: A sequence. `examples[i]` is a tree like the batch without its leading dim, of
                tensors or of values that `torch.asarray` accepts; a tuple if the batch is several
                arguments. The next batch is read in a thread.
            start: The number of the first batch, for a run that continues after that many steps.
            seed: Seed for the order of examples, another order in each epoch; by default they are
                not shuffled. Examples that do not fill a batch at the end of an epoch are left out.

        Returns:
            Batches without end; several arguments as a tuple.

        Raises:
            PlanError: The step has no plan yet: call `prepare`.
            BatchError: The step's batch does not consist of examples, or there are too few.
        """
        check_leading(self._variants.first.capture.axes)
        tree, leaves = self._variants.first.batch
        return Feed(examples, leaves, tree, ARRAYS, None, start, seed)

    def write_back(self) -> None:
        """Copy the current state to the model and optimizer of each process.

        In one process they have it anyway.

        Raises:
            PlanError: They are on the meta device.
        """
        self._check_has_memory("state is written back to a model and an optimizer")
        self._variants.write_back()

    def verify(self, *arguments: Any, n_steps: int = 2, **named: Any) -> Verified:
        """Run some steps both in parallel and eagerly on one device, and compare.

        Both draw the same random numbers. Afterwards the state is as before.

        Args:
            arguments: The arguments of the step.
            n_steps: How many steps to run, all with these arguments.
            named: The keyword arguments of the step.

        Raises:
            PlanError: The model is on the meta device.
            VerificationError: Losses differ, or the collectives that ran are not the plan's.
        """
        self._check_has_memory("a run is compared with eager steps of a model")
        variant = self._variants.at(arguments, named)
        step = Form.of(self.model, self.optimizer, arguments, named).step(self._function)
        batch = variant.form.batch(arguments, named)

        def eager() -> Any:
            return step(self.model, self.optimizer, batch)

        def parallel() -> Any:
            self._variants.forget_writes()
            return self._variants.run(variant, arguments, named)[1]

        self._variants.move_to(variant)
        with self._variants.reading():
            return verify(variant.runtime, self._state(), eager, parallel, n_steps)

    def _lacking_memory(self) -> list[str]:
        return [name for name, tensor in self._state().tensors.items() if tensor.is_meta]

    def _check_has_memory(self, what: str) -> None:
        lacking = self._lacking_memory()
        if lacking:
            raise PlanError(
                f"{what} with memory on one device; {lacking[0]} and {len(lacking) - 1} others are "
                "on the meta device: use a model of the same kind that a device can hold"
            )

    def _state(self) -> State:
        return State(self.model, self.optimizer)

    def _now(self) -> Mapping[str, Tensor]:
        return self.runtime.whole_state() if self.variants else self._state().tensors


@takes_plan_options
def parallelize(
    model: nn.Module,
    optimizer: Optimizer,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    example_batch: Any = None,
    *,
    cluster: Cluster | None = None,
    batch_axes: BatchAxes = 0,
    deadline_s: float = 60.0,
    **options: Unpack[PlanKeywords],
) -> ParallelStep:
    """Train a model on all devices, by a plan that is searched now or at the first call.

    Model and loss stay as they were written for one device.

    Args:
        model: The module.
        optimizer: An optimizer of its parameters.
        loss_fn: A function from model and batch to a loss.
        example_batch: A batch to plan for, which has the shapes and types of all batches; without
            it, the step is planned for the first batch.
        cluster: The cluster to plan for; by default the processes that the launcher started, or 8
            virtual devices.
        batch_axes: Which dim of each tensor of the batch holds the examples: a number for all, or
            such numbers in containers as in the batch, in which items that are left out have 0;
            None for what all examples share.
        deadline_s: With several processes, how long a step may make no progress, or a process be
            silent, before all end and name the process at fault.
        options: How to plan: the fields of `frontends.PlanOptions`.

    Returns:
        A step: called with a batch, it updates the state and returns the loss.

    Raises:
        TypeError: There is no such option.
        PlanError: `model`, `optimizer` or an option is something else.
        BatchError: `microbatches` is not a number of parts.
    """
    checked = PlanOptions.of(options, parallelize)
    step = training_step(loss_fn)

    def train(batch: Any) -> Any:
        return step(model, optimizer, batch)

    parallel_step = ParallelStep(train, model, optimizer, cluster, checked, deadline_s, batch_axes)
    if example_batch is not None:
        parallel_step.prepare(example_batch)
    return parallel_step


@takes_plan_options
def parallelize_step(
    step: Callable[..., Any],
    model: nn.Module,
    optimizer: Optimizer,
    *,
    cluster: Cluster | None = None,
    batch_axes: BatchAxes = 0,
    deadline_s: float = 60.0,
    **options: Unpack[PlanKeywords],
) -> ParallelStep:
    """Run a whole step on all devices; the step calls `loss.backward()` and `optimizer.step()`.

    Args:
        step: A function of a batch in any number of arguments, positional or keyword; model and
            optimizer may be among the positional ones.
        model: The module that the step trains.
        optimizer: The optimizer that it calls.
        cluster: As in `parallelize`.
        batch_axes: As in `parallelize`. If the batch is several arguments, a sequence with an item
            for each; those by name are one mapping, the last.
        deadline_s: As in `parallelize`.
        options: As in `parallelize`.

    Returns:
        A step with the same arguments and results.

    Raises:
        TypeError: There is no such option.
        PlanError: `model`, `optimizer` or an option is something else.
        BatchError: `microbatches` is not a number of parts.
    """
    checked = PlanOptions.of(options, parallelize_step)
    return ParallelStep(step, model, optimizer, cluster, checked, deadline_s, batch_axes)
