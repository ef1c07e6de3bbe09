"""`transformers.Trainer`, whose steps run on all devices by a plan.

The trainer's own code runs: its data, losses, callbacks, schedules, evaluation, logs and
checkpoints. It is told that there is one device, whose batch is the whole batch; so it does what it
does on one device, in every process alike, and only process 0 prints and writes. What it does
between two updates of the weights (forward, backward, clipping, the optimizer), for all batches
over which gradients are accumulated, is captured as one step, and planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import nn

from frontends.errors import CheckpointError, PlanError
from frontends.search.plan_options import PlanOptions, check_where
from frontends.torch.api.captured_step import CapturedStep
from frontends.torch.api.parallel import ParallelStep, bare
from frontends.torch.api.run_options import RunOptions
from frontends.torch.base.calls import Tensor
from frontends.torch.run.alike import meet
from frontends.torch.run.processes import join
from frontends.torch.trainers.accelerate import see_one_device

__all__ = ["Trainer"]

_OWN = ("cluster", *(field.name for kind in (RunOptions, PlanOptions) for field in fields(kind)))
"""Arguments of a trainer that say how to plan."""


class Trainer(transformers.Trainer):
    """`transformers.Trainer`, whose steps run on all devices by a plan.

    For another trainer, put this one before it: `class Mine(Trainer, TheirTrainer)`. What that one
    overrides (`compute_loss`, `training_step`, `prediction_step`, datasets, optimizers) is captured
    as it is.

    Args:
        arguments: Those of `transformers.Trainer`, or of the trainer after this one.
        named: Likewise, and those of `frontends.torch.parallelize`: `cluster`,
            `deadline_s`, `backend` and the fields of `frontends.PlanOptions`.

    Raises:
        PlanError: The trainer's arguments ask for another way to parallelize, for compiled models
            or for fp16; or the model is on the meta device.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        how = {name: named.pop(name) for name in _OWN if name in named}
        # Names with two underscores, as trainers of other libraries have many of their own.
        self.__cluster = how.pop("cluster", None)
        running = {
            field.name: how.pop(field.name) for field in fields(RunOptions) if field.name in how
        }
        self.__running = RunOptions(**running)
        if self.__cluster is not None:
            check_where(self.__cluster)
        self.__options = PlanOptions.of(how, type(self))
        self.__step: ParallelStep | None = None
        self.__predictions: dict[Any, CapturedStep] = {}
        self.__accumulated: list[Any] = []
        self.__norm: Tensor | None = None
        super().__init__(*arguments, **named)

    @property
    def parallel_step(self) -> ParallelStep:
        """The step, with its plan.

        Raises:
            PlanError: There was no step yet.
        """
        if self.__step is None or not self.__step.variants:
            raise PlanError("a trainer plans at its first step: call train() first")
        return self.__step

    def __planned(self) -> ParallelStep | None:
        """The step, if it has a plan and trains the trainer's present model."""
        step = self.__step
        if step is None or step.model is not self.model_wrapped or not step.variants:
            return None
        return step

    # What the trainer believes about devices.

    def create_accelerator_and_postprocess(self) -> None:
        """Make the trainer believe that there is one device."""
        _check(self.args, self.model)
        self.__see_one_device()
        super().create_accelerator_and_postprocess()

    def __see_one_device(self) -> None:
        """Let gathers, shards of data and scales of losses be those of one device."""
        self.args.distributed_state = state = see_one_device()
        self.args._setup_devices, self.args._n_gpu = state.device, min(1, self.args.n_gpu)

    def _inner_training_loop(self, *arguments: Any, **named: Any) -> Any:
        self.__see_one_device()  # other trainers share what they know about devices
        handler: Any = self.callback_handler
        handler.on_pre_optimizer_step = lambda args, state, control: (
            control
        )  # see `_update_weights`
        handler.call_event = self.__call_event
        try:
            result = super()._inner_training_loop(*arguments, **named)
        finally:
            del handler.on_pre_optimizer_step, handler.call_event
        if step := self.__planned():
            meet("end training")
            step.write_back()  # the user finds trained weights in the model
        return result

    def __call_event(self, event: str, *arguments: Any, **named: Any) -> Any:
        """Call callbacks, with trained weights in the model if one of the user's has this event."""
        if (step := self.__planned()) and any(
            self.__has_overridden(callback, event)
            for callback in self.callback_handler.callbacks
            if not type(callback).__module__.startswith("transformers.")
        ):
            meet("gather weights")
            step.write_back()
        handler: Any = type(self.callback_handler)
        return handler.call_event(self.callback_handler, event, *arguments, **named)

    @staticmethod
    def __has_overridden(callback: transformers.TrainerCallback, event: str) -> bool:
        plain = getattr(transformers.TrainerCallback, event)
        return getattr(type(callback), event) is not plain

    def _get_dataloader(self, *arguments: Any, **named: Any) -> Any:
        """Make a loader whose workers draw the same numbers in all processes."""
        state, rank = self.args.distributed_state, self.args.process_index
        state.process_index = 0
        try:
            return super()._get_dataloader(*arguments, **named)
        finally:
            state.process_index = rank

    # One step.

    def get_batch_samples(self, *arguments: Any, **named: Any) -> Any:
        """Begin an update of the weights."""
        self.__accumulated = []
        return super().get_batch_samples(*arguments, **named)

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Run a whole step, if gradients of all its batches are wanted, else only keep a batch."""
        self.__accumulated.append(inputs)
        gradients = self.accelerator.gradient_state
        if not gradients.sync_gradients:
            return torch.zeros(())
        batches, self.__accumulated = self.__accumulated, []
        model.train()  # else a step after an evaluation began in another mode, and was a variant
        loss: Tensor
        loss, self.__norm = self.__step_of(model)(batches, num_items_in_batch)
        # What the trainer does next, the step has done: its optimizer does nothing now.
        gradients._set_sync_gradients(False)
        return loss

    def __step_of(self, model: nn.Module) -> ParallelStep:
        """The step that trains the model with the trainer's present optimizer."""
        optimizer = bare(self.optimizer)
        step = self.__step
        if step is None or step.model is not model or step.optimizer is not optimizer:
            if step is not None and step.variants:
                step.write_back()
            how = self.__cluster, self.__options, self.__running
            self.__step = step = ParallelStep(self._update_weights, model, optimizer, *how)
            self.__predictions = {}
        return step

    def _update_weights(
        self, batches: Sequence[Any], n_items: Tensor | int | None
    ) -> tuple[Any, Any]:
        """What the trainer does between two updates of the weights; this is captured.

        Returns:
            The loss, and the norm of the gradients.
        """
        trainer: Any = super()
        model = self.model_wrapped
        losses = [trainer.training_step(model, batch, n_items) for batch in batches]
        norm = trainer._clip_grad_norm(model) if self.args.max_grad_norm > 0 else None
        norm = trainer._get_grad_norm(model, grad_norm=norm)
        hook, handler = "on_pre_optimizer_step", self.callback_handler
        if any(self.__has_overridden(callback, hook) for callback in handler.callbacks):
            call: Any = type(handler).call_event
            call(handler, hook, self.args, self.state, self.control)
        bare(self.optimizer).step()
        return sum(losses), norm

    def _clip_grad_norm(self, model: nn.Module) -> Tensor | None:
        return self.__norm

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Tensor | None:
        return self.__norm

    # Evaluation.

    def evaluation_loop(self, *arguments: Any, **named: Any) -> Any:
        """Evaluate; see `transformers.Trainer`."""
        self.__see_one_device()
        return super().evaluation_loop(*arguments, **named)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **named: Any,
    ) -> Any:
        """Evaluate a batch where the plan keeps the weights, if there is a plan."""
        step = self.__planned()
        if step is None or step.model is not model:
            return super().prediction_step(
                model, inputs, prediction_loss_only, ignore_keys, **named
            )
        asked = prediction_loss_only, ignore_keys, named
        key = repr(asked)
        if key not in self.__predictions:
            self.__predictions[key] = step.follow(self.__prediction(asked))
        return self.__predictions[key](model, inputs)

    def __prediction(self, asked: tuple[bool, list[str] | None, dict[str, Any]]) -> Any:
        only, ignored, named = asked
        predict = super().prediction_step

        def prediction(model: nn.Module, inputs: Any) -> Any:
            return predict(model, inputs, only, ignored, **named)

        return prediction

    # Checkpoints, in the files of the trainer.

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if state_dict is None and (step := self.__planned()):
            state_dict = step.state_dict()["model"]
        super()._save(output_dir, state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save them as the trainer does, with the state of the optimizer from all devices."""
        optimizer: Any = self.optimizer
        if step := self.__planned():
            saved: Any = _Saved(step.state_dict()["optimizer"])
            self.optimizer = saved
        try:
            super()._save_optimizer_and_scheduler(output_dir)
        finally:
            self.optimizer = optimizer

    def _save_rng_state(self, output_dir: str) -> None:
        if self.args.should_save:  # all processes have drawn the same numbers
            super()._save_rng_state(output_dir)

    def save_model(self, *arguments: Any, **named: Any) -> None:
        """Save the model; see `transformers.Trainer`. All processes have to call it."""
        with _written_by_all():
            super().save_model(*arguments, **named)

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        with _written_by_all():
            super()._save_checkpoint(*arguments, **named)


class _Saved:
    """An optimizer of which only the state is read."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> Any:
        """The state."""
        return self._state


@contextmanager
def _written_by_all() -> Iterator[None]:
    """Wait until all processes are here; if one could not write, raise `CheckpointError` in all."""
    meet("save a model")
    problem = ""
    try:
        yield
    except OSError as error:
        if join() is None:
            raise
        problem = f"process {dist.get_rank()}: {error}"
    problems = [text for text in meet("end a save", problem) if text]
    if problems:
        raise CheckpointError(f"a checkpoint is written by all processes; {problems[0]}")


def _check(args: transformers.TrainingArguments, model: Any) -> None:
    """Raise `PlanError` if arguments ask for what a plan decides, or for what it cannot do."""
    others = {
        "fsdp": args.fsdp,
        "deepspeed": args.deepspeed,
        "parallelism_config": args.parallelism_config,
    }
    for name, value in others.items():
        if value:
            raise PlanError(f"the plan says how a step is parallelized: leave out {name}={value!r}")
    if args.torch_compile:
        raise PlanError(
            "the programs of a plan are compiled, not the model: leave out torch_compile=True, and "
            'pass backend="inductor" to the trainer'
        )
    if args.fp16:
        raise PlanError("a step is planned without scaled gradients: use bf16=True, not fp16=True")
    if model is not None and any(p.is_meta for p in model.parameters()):
        raise PlanError(
            "a trainer needs a model with values; for one on the meta device use "
            "frontends.torch.parallelize and its step.init"
        )
