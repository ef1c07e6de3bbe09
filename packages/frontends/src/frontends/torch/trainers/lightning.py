"""A strategy of Lightning, whose steps run on all devices by a plan.

Lightning's own code runs: its loops, callbacks, loggers, schedules and checkpoints. It is told that
there is one device, whose batch is the whole batch; so it does what it does on one device, in every
process alike, and only process 0 prints and writes. `training_step`, backward, clipping and the
optimizer are captured as one step, and planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from costmodel import Cluster
from lightning.pytorch.loops.optimization.automatic import Closure
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from frontends.errors import PlanError
from frontends.search.plan_options import PlanOptions, check_where, takes_plan_options
from frontends.torch.api.captured_step import CapturedStep
from frontends.torch.api.parallel import ParallelStep
from frontends.torch.base.calls import Tensor
from frontends.torch.run.alike import check_alike
from frontends.torch.run.processes import gather, join

__all__ = ["PlanStrategy"]

SentT = TypeVar("SentT")

Logged = tuple[str, Any, dict[str, Any]]
"""The arguments of `LightningModule.log`."""


class PlanStrategy(SingleDeviceStrategy):
    """Runs a `LightningModule` by a plan: `Trainer(accelerator="cpu", strategy=PlanStrategy(...))`.

    Every process runs the same program on the same batches, so `devices` of the trainer stays 1.

    Args:
        cluster: As in `frontends.torch.parallelize`.
        deadline_s: As there.
        options: How to plan: the fields of `frontends.PlanOptions`.

    Raises:
        PlanError: An option is something else.
        BatchError: `microbatches` is not a number of parts.
    """

    strategy_name = "plan"

    @takes_plan_options
    def __init__(
        self, *, cluster: Cluster | None = None, deadline_s: float = 60.0, **options: Any
    ) -> None:
        super().__init__("cpu")
        if cluster is not None:
            check_where(cluster)
        self._cluster, self._deadline_s = cluster, deadline_s
        self._plan_options = PlanOptions.of(options, type(self))
        self._step: ParallelStep | None = None
        self._followers: dict[str, CapturedStep] = {}
        self._log = _Log()
        self._is_last = True
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

    # One step. Lightning calls `optimizer_step`, whose closure calls `training_step`, then
    # `backward`; the first of these does all.

    @property
    def handles_gradient_accumulation(self) -> bool:
        """Lightning calls `optimizer_step` for each batch, also if it only adds to gradients."""
        return True

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Run a step, which updates the weights unless gradients are accumulated further."""
        self._is_last = not self._module().trainer.fit_loop._should_accumulate()
        if isinstance(closure, Closure):
            closure._zero_grad_fn = None  # the step does that, at the right time
        elif self._module().trainer.accumulate_grad_batches > 1:
            raise PlanError(
                "gradients are accumulated over batches by Lightning's own closure; optimizer_step "
                f"of {type(model).__name__} passes another: set accumulate_grad_batches=1"
            )
        return closure()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step: forward, backward, clipping, and the optimizer."""
        module = self._module()
        check_alike((args, kwargs))
        if self._step is None or self._step.optimizer is not self.optimizers[0]:
            if not module.automatic_optimization:
                raise PlanError(
                    f"a plan needs a whole step; {type(module).__name__} calls its optimizers "
                    "itself: use frontends.torch.parallelize_step"
                )
            how = self._cluster, self._plan_options, self._deadline_s
            self._step = ParallelStep(self._update, module, self.optimizers[0], *how)
            self._followers = {}
        return self._run(self._step, args, kwargs, self._is_last)

    def _update(self, args: Any, kwargs: Any, is_last: bool) -> tuple[Any, list[Logged]]:
        """What Lightning does with a batch; this is captured."""
        module, optimizer = self._module(), self.optimizers[0]
        trainer, precision = module.trainer, self.precision_plugin
        self._log.logged = []
        with precision.train_step_context():
            output = module.training_step(*args, **kwargs)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if loss is not None:
            loss = precision.pre_backward(loss / trainer.accumulate_grad_batches, module)
            precision.backward(loss, module, optimizer)
        if is_last:
            module.on_before_optimizer_step(optimizer)
            module.configure_gradient_clipping(
                optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
            )
            optimizer.step()
            optimizer.zero_grad()
        return pytree.tree_map_only(Tensor, Tensor.detach, output), self._log.logged

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
        step = self._step
        if step is None or step.model is not self._module() or not step.variants:
            return getattr(super(), name)(*args, **kwargs)
        check_alike((args, kwargs))
        if name not in self._followers:

            def function(args: Any, kwargs: Any) -> Any:
                self._log.logged = []
                with torch.no_grad(), self.precision_plugin.val_step_context():
                    output = getattr(self._module(), name)(*args, **kwargs)
                return output, self._log.logged

            self._followers[name] = step.follow(function)
        with torch.inference_mode(mode=False), torch.no_grad():
            return self._run(self._followers[name], args, kwargs)

    def _run(self, step: CapturedStep, *arguments: Any) -> Any:
        """Run a captured step, and log what it wanted to; return its output."""
        module = self._module()
        with self._log.instead_of(module):
            output, logged = step(*arguments)
        for name, value, options in logged:
            module.log(name, value, **options)
        return output

    # Checkpoints, in Lightning's files.

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The state of the module from all devices; all processes have to call it."""
        if self._step is None or not self._step.variants:
            return super().lightning_module_state_dict()
        state: dict[str, Any] = self._step.state_dict()["model"]
        return state

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of the optimizer from all devices; all processes have to call it."""
        if self._step is None or not self._step.variants:
            return super().optimizer_state(optimizer)
        state: dict[str, Any] = self._step.state_dict()["optimizer"]
        return state

    def teardown(self) -> None:
        """Let the user find trained weights in the module."""
        if self._step is not None and self._step.variants:
            self._step.write_back()
        super().teardown()

    # Processes.

    @property
    def is_global_zero(self) -> bool:
        """Whether this is process 0, which prints and writes."""
        return self.global_rank == 0

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all processes."""
        if join() is not None:
            gather("")

    def broadcast(self, obj: SentT, src: int = 0) -> SentT:
        """The object of one process, in all of them."""
        sent = [obj]
        if join() is not None:
            dist.broadcast_object_list(sent, src)
        return sent[0]

    def _module(self) -> Any:
        return self.lightning_module


class _Log:
    """Keeps what a captured step logs, until Lightning can hear it."""

    def __init__(self) -> None:
        self.logged: list[Logged] = []

    def __call__(self, name: str, value: Any, *more: Any, **options: Any) -> None:
        """Take the place of `LightningModule.log`."""
        options |= dict(zip(_LOG_OPTIONS, more, strict=False))
        self.logged.append((name, value.detach() if isinstance(value, Tensor) else value, options))

    @contextmanager
    def instead_of(self, module: Any) -> Iterator[None]:
        """Keep what the module logs inside."""
        module.__dict__["log"] = self  # the same object in each step, as the module is guarded
        try:
            yield
        finally:
            del module.__dict__["log"]


_LOG_OPTIONS = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph")
"""The positional arguments of `LightningModule.log` after name and value."""
