"""The entry points for PyTorch users: `parallelize`, `parallelize_step`, and `ParallelStep`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import torch
from costmodel import Cluster
from torch import nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from frontends.base.batch_axes import BatchAxes, check_leading, copied
from frontends.run.feed import Examples, Feed
from frontends.search.plan_options import (
    PlanKeywords,
    PlanOptions,
    check_where,
    takes_plan_options,
)
from frontends.torch.api import checkpoint
from frontends.torch.api.captured_step import CapturedStep
from frontends.torch.api.precision import Precision, in_precision
from frontends.torch.api.run_options import Backend, RunOptions
from frontends.torch.api.variants import Variants
from frontends.torch.base.calls import Tensor
from frontends.torch.capture.capture import training_step
from frontends.torch.state.data import ARRAYS
from frontends.torch.state.initial import Build, init_weights
from frontends.torch.state.loading import Given, load_state_dict
from frontends.torch.state.state_dict import assemble

_MOST_EVALUATIONS = 8
"""The largest number of functions whose programs `evaluate` keeps [chosen]."""


class ParallelStep(CapturedStep):
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
        running: RunOptions,
        batch_axes: BatchAxes = 0,
    ) -> None:
        if cluster is not None:
            check_where(cluster)
        optimizer = bare(optimizer)
        objects = function, model, optimizer
        variants = Variants(*objects, cluster, options, running, batch_axes)
        super().__init__(*objects, variants)
        self._cluster, self._options, self._running = cluster, options, running
        self._batch_axes = copied(batch_axes)
        self._evaluations: dict[Callable[..., Any], CapturedStep] = {}

    def follow(self, function: Callable[..., Any], *, batch_axes: BatchAxes = 0) -> CapturedStep:
        """Run another function on this step's state, where the plan keeps it.

        Such a function evaluates the model, or computes statistics of its weights. It is captured
        and planned at its first call, with the stages of this step's plan and the state in its
        layouts (Alpa's FollowParallel), so that no state moves between training and evaluation.

        Args:
            function: The function, written for one device, of a batch in any number of arguments;
                model and optimizer may be among them, or known from elsewhere. It leaves gradients
                and updates of parameters to the step, but may write to buffers.
            batch_axes: Which dim of each tensor of the batch holds the examples, as in
                `parallelize`.

        Returns:
            A step that is called like the function. Its first call raises `PlanError` if this step
            has no plan yet.
        """
        objects = function, self.model, self.optimizer
        how = self._options.of_followers()
        variants = Variants(
            *objects, self._cluster, how, self._running, batch_axes, leader=self._variants
        )
        return CapturedStep(*objects, variants)

    def evaluate(self, function: Callable[[nn.Module, Any], Any], batch: Any) -> Any:
        """Evaluate the model where the plan keeps it, without gradients and in evaluation mode.

        This follows the step as `follow` does. The program is kept for later calls with the same
        function, so define the function once. Afterwards, modules are in their modes from before.

        Args:
            function: A function of model and batch, such as the loss.
            batch: A batch like those of the step, with examples in the same dims; `follow` takes
                others.

        Returns:
            What the function returns.

        Raises:
            PlanError: The step has no plan yet.
        """
        follows = self._evaluations.pop(function, None)
        if follows is None:
            follows = self.follow(torch.no_grad()(function), batch_axes=self._batch_axes)
        self._evaluations[function] = follows  # the latest last
        while len(self._evaluations) > _MOST_EVALUATIONS:
            del self._evaluations[next(iter(self._evaluations))]
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            return follows(self.model, batch)
        finally:
            for module, training in modes:
                module.training = training

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
    precision: Precision | None = None,
    deadline_s: float = 60.0,
    backend: Backend = "eager",
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
        precision: In which types to compute, as a `torch.distributed.fsdp.MixedPrecisionPolicy` or
            such policies by names of modules; state keeps its types.
        deadline_s: With several processes, how long a step may make no progress, or a process be
            silent, before all end and name the process at fault.
        backend: What runs the operators: "eager" runs the kernels of torch one by one; "inductor"
            compiles them as `torch.compile` does, after the first steps.
        options: How to plan: the fields of `frontends.PlanOptions`.

    Returns:
        A step: called with a batch, it updates the state and returns the loss.

    Raises:
        TypeError: There is no such option.
        PlanError: `model`, `optimizer` or an option is something else.
        BatchError: `microbatches` is not a number of parts.
    """
    checked, running = PlanOptions.of(options, parallelize), RunOptions(deadline_s, backend)
    if precision is not None:
        loss_fn = in_precision(loss_fn, model, precision)
    step, optimizer = training_step(loss_fn), bare(optimizer)

    def train(batch: Any) -> Any:
        return step(model, optimizer, batch)

    parallel_step = ParallelStep(train, model, optimizer, cluster, checked, running, batch_axes)
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
    backend: Backend = "eager",
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
        backend: As in `parallelize`.
        options: As in `parallelize`.

    Returns:
        A step with the same arguments and results.

    Raises:
        TypeError: There is no such option.
        PlanError: `model`, `optimizer` or an option is something else.
        BatchError: `microbatches` is not a number of parts.
    """
    checked, running = PlanOptions.of(options, parallelize_step), RunOptions(deadline_s, backend)
    return ParallelStep(step, model, optimizer, cluster, checked, running, batch_axes)


def bare(optimizer: Any) -> Any:
    """The optimizer itself, if a library such as Accelerate has wrapped it."""
    inner = getattr(optimizer, "optimizer", None)
    return bare(inner) if isinstance(inner, Optimizer) else optimizer
