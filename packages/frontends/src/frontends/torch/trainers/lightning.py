"""A strategy of Lightning, whose steps run on all devices by a plan.

Lightning's own code runs: its loops, callbacks, loggers, schedules and checkpoints. It is told that
there is one device, whose batch is the whole batch; so it does what it does on one device, in every
process alike, and only process 0 prints and writes. `training_step`, backward, clipping and the
optimizer are captured as one step, and planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from costmodel import Cluster
from lightning import pytorch as pl
from lightning.pytorch import callbacks
from lightning.pytorch.loops.optimization.automatic import Closure
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from frontends.errors import PlanError
from frontends.search.plan_options import PlanOptions, check_where, takes_plan_options
from frontends.torch.api.captured_step import CapturedStep
from frontends.torch.api.parallel import ParallelStep
from frontends.torch.api.run_options import Backend, RunOptions
from frontends.torch.base.calls import Tensor
from frontends.torch.run.alike import meet
from frontends.torch.run.processes import join
from frontends.torch.trainers.put_off import Later, PutOff, made_of

__all__ = ["PlanStrategy"]

SentT = TypeVar("SentT")


class PlanStrategy(SingleDeviceStrategy):
    """Runs a `LightningModule` by a plan: `Trainer(accelerator="cpu", strategy=PlanStrategy(...))`.

    Every process runs the same program on the same batches, so `devices` of the trainer stays 1.

    Args:
        cluster: As in `frontends.torch.parallelize`.
        deadline_s: As there.
        backend: As there.
        options: How to plan: the fields of `frontends.PlanOptions`.

    Raises:
        PlanError: An option is something else.
        BatchError: `microbatches` is not a number of parts.
    """

    strategy_name = "plan"

    @takes_plan_options
    def __init__(
        self,
        *,
        cluster: Cluster | None = None,
        deadline_s: float = 60.0,
        backend: Backend = "eager",
        **options: Any,
    ) -> None:
        super().__init__("cpu")
        if cluster is not None:
            check_where(cluster)
        self._cluster, self._running = cluster, RunOptions(deadline_s, backend)
        self._plan_options = PlanOptions.of(options, type(self))
        self._step: ParallelStep | None = None
        self._followers: dict[str, CapturedStep] = {}
        self._later = PutOff()
        self._is_first = self._is_last = True
        self._is_stepping = False
        self.global_rank = join() or 0

    @property
    def parallel_step(self) -> ParallelStep:
        """The step, with its plan.

        Raises:
            PlanError: There was no step yet.
        """
        if self._step is None or not self._step.variants:
            raise PlanError("a plan is made at the first step: call trainer.fit before")
        return self._step

    def _planned(self) -> ParallelStep | None:
        """The step, if it has a plan and trains the present module."""
        step = self._step
        return step if step and step.model is self._module() and step.variants else None

    # One step. Lightning calls `optimizer_step`, whose closure calls `training_step`, then
    # `backward`; the first of these does all.

    @property
    def handles_gradient_accumulation(self) -> bool:
        """Whether Lightning calls `optimizer_step` for a batch that only adds to gradients.

        The last batch of an epoch is none of these.
        """
        module = self._module()
        return module is None or not module.trainer.fit_loop.epoch_loop._num_ready_batches_reached()

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Run a step, which updates the weights unless gradients are accumulated further."""
        trainer = self._module().trainer
        self._is_last = not trainer.fit_loop._should_accumulate()
        if isinstance(closure, Closure):
            self._is_first = closure._zero_grad_fn is not None
            closure._zero_grad_fn = None  # the step does that
        elif trainer.accumulate_grad_batches > 1:
            raise PlanError(
                "gradients are accumulated over batches by Lightning's own closure; optimizer_step "
                f"of {type(model).__name__} passes another: set accumulate_grad_batches=1"
            )
        self._is_stepping = True
        try:
            return closure()
        finally:
            self._is_stepping = False

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step: forward, backward, clipping, and the optimizer."""
        module = self._module()
        if module.automatic_optimization and not self._is_stepping:
            raise PlanError(
                "the closure of a step is run by its optimizer, as the plan has both; "
                f"optimizer_step of {type(module).__name__} calls it: pass it on, "
                "optimizer.step(closure=closure)"
            )
        if self._step is None or self._step.optimizer is not self.optimizers[0]:
            if not module.automatic_optimization:
                raise PlanError(
                    f"a plan needs a whole step; {type(module).__name__} calls its optimizers "
                    "itself: use frontends.torch.parallelize_step"
                )
            if isinstance(self.optimizers[0], torch.optim.LBFGS):
                raise PlanError(
                    "a step computes gradients once; LBFGS computes them as often as its numbers "
                    "ask for: use another optimizer"
                )
            how = self._cluster, self._plan_options, self._running
            self._step = ParallelStep(self._update, module, self.optimizers[0], *how)
            self._followers = {}
        output = self._run(self._step, args, kwargs, self._is_first, self._is_last)
        if any(map(_looks, [module, *module.trainer.callbacks])):
            meet("gather weights")
            self._step.write_back()
        return output

    def _update(
        self, args: Any, kwargs: Any, is_first: bool, is_last: bool
    ) -> tuple[Any, list[Later]]:
        """What Lightning does with a batch, hooks included; this is captured."""
        module, optimizer, precision = self._module(), self.optimizers[0], self.precision_plugin
        self._later.calls = []
        with precision.train_step_context():
            output = module.training_step(*args, **kwargs)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if is_first:
            self._zero_grad(module, optimizer)
        if loss is not None:
            loss = loss / module.trainer.accumulate_grad_batches
            loss = precision.pre_backward(loss, module)
            precision.backward(loss, module, optimizer)
            precision.post_backward(loss, module)
        if is_last:
            precision._after_closure(module, optimizer)
            optimizer.step()
        return pytree.tree_map_only(Tensor, Tensor.detach, output), self._later.calls

    def _zero_grad(self, module: Any, optimizer: Optimizer) -> None:
        trainer = module.trainer
        call._call_callback_hooks(trainer, "on_before_zero_grad", optimizer)
        call._call_lightning_module_hook(trainer, "on_before_zero_grad", optimizer)
        if is_overridden("optimizer_zero_grad", module):
            place = trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_idx
            call._call_lightning_module_hook(trainer, "optimizer_zero_grad", *place, optimizer)
        else:
            optimizer.zero_grad()

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Do nothing: the step has done it."""
        return closure_loss

    # Evaluation.

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate where the plan keeps the weights."""
        return self._follow("validation_step", args, kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate where the plan keeps the weights."""
        return self._follow("test_step", args, kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Predict where the plan keeps the weights."""
        return self._follow("predict_step", args, kwargs)

    def _follow(self, name: str, args: Any, kwargs: Any) -> Any:
        step = self._planned()
        if step is None:
            return getattr(super(), name)(*args, **kwargs)
        if name not in self._followers:

            def function(args: Any, kwargs: Any) -> Any:
                self._later.calls = []
                with torch.no_grad(), self.precision_plugin.val_step_context():
                    output = getattr(self._module(), name)(*args, **kwargs)
                return output, self._later.calls

            self._followers[name] = step.follow(function)
        with torch.inference_mode(mode=False), torch.no_grad():
            return self._run(self._followers[name], args, kwargs)

    def _run(self, step: CapturedStep, *arguments: Any) -> Any:
        """Run a captured step, and call what it has put off; return its output."""
        module = self._module()
        with self._later.instead_of(module):
            output, calls = step(*arguments)
        return made_of(output, calls, module)

    # Checkpoints, in Lightning's files.

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The state of the module from all devices; all processes have to call it."""
        step = self._planned()
        if step is None:
            return super().lightning_module_state_dict()
        meet("save a module")
        state: dict[str, Any] = step.state_dict()["model"]
        return state

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of the optimizer from all devices; all processes have to call it."""
        step = self._planned()
        if step is None or step.optimizer is not optimizer:
            return super().optimizer_state(optimizer)
        meet("save an optimizer")
        state: dict[str, Any] = step.state_dict()["optimizer"]
        return state

    def teardown(self) -> None:
        """Let the user find trained weights in the module."""
        if step := self._planned():
            meet("end training")
            step.write_back()
        super().teardown()

    # Processes.

    @property
    def is_global_zero(self) -> bool:
        """Whether this is process 0, which prints and writes."""
        return self.global_rank == 0

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all processes."""
        meet("wait at a barrier")

    def broadcast(self, obj: SentT, src: int = 0) -> SentT:
        """The object of one process, in all of them."""
        sent = [obj]
        if join() is not None:
            dist.broadcast_object_list(sent, src)
        return sent[0]

    def _module(self) -> Any:
        return self.lightning_module


def _looks(owner: Any) -> bool:
    """Whether a module or callback has hooks between steps, which may look at weights."""
    if isinstance(owner, pl.LightningModule):
        return any(is_overridden(hook, owner) for hook in _HOOKS)
    return not isinstance(owner, _BLIND) and any(is_overridden(hook, owner) for hook in _HOOKS)


_HOOKS = (
    *("on_train_batch_start", "on_train_batch_end", "on_train_epoch_start", "on_train_epoch_end"),
    *("on_validation_start", "on_validation_epoch_start", "on_validation_batch_start"),
    *("on_validation_batch_end", "on_validation_epoch_end", "on_validation_end"),
    *("on_train_end", "on_fit_end", "on_save_checkpoint"),
)
"""Hooks between steps, of modules or callbacks."""

_BLIND = (
    *(callbacks.Checkpoint, callbacks.EarlyStopping, callbacks.GradientAccumulationScheduler),
    *(callbacks.LearningRateMonitor, callbacks.DeviceStatsMonitor, callbacks.Timer),
    *(callbacks.ProgressBar, callbacks.ModelSummary),
)
"""Lightning's own callbacks that look at no weights."""
