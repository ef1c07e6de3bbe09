"""The training step that the command `plan` plans: of JAX or PyTorch, by name or from a file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.base.present import present
from frontends.cli.demo.torch_models import TorchModel, from_config
from frontends.errors import PlanError
from frontends.search.plan_options import PlanOptions

RETURNS = "(model, optimizer, loss_fn, batch) in PyTorch, or (train_step, arguments) in JAX"
"""What a function in a user's file has to return."""

_RUNS = "Python runs files that end in .py"
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Subject:
    """A training step, and the arguments that it is planned for."""

    framework: Literal["jax", "torch"]
    given: tuple[Any, ...]
    """The arguments of the framework's `plan_for` before the cluster."""

    def plan(self, cluster: Cluster, options: PlanOptions) -> Plan:
        """Search a plan.

        Args:
            cluster: The cluster to plan for.
            options: How to plan.
        """
        if self.framework == "jax":
            from frontends.jax import plan_for

            step, arguments = self.given
            return plan_for(step, arguments, cluster, **options.keywords()).plan
        import frontends.torch

        step, model, optimizer, batch = self.given
        return frontends.torch.plan_for(
            step, model, optimizer, batch, cluster, **options.keywords()
        ).plan


def of_torch(model: TorchModel, sizes: Mapping[str, int]) -> Subject:
    """A model of Hugging Face, with other sizes than its own."""
    return _in_torch(*model.make(sizes))


def of_config(path: Path, sizes: Mapping[str, int]) -> Subject:
    """The model of a `config.json`; `sizes` has its batch and sequence, which the file has not."""
    for name in ("batch", "sequence"):
        if name not in sizes:
            raise PlanError(
                f"a configuration has no batch: give --batch and --sequence with {path}"
            )
    return of_torch(from_config(path), sizes)


def of_file(path: Path, name: str) -> Subject:
    """The training step that a function in a file returns.

    Args:
        path: A Python file, which is run.
        name: Name of a function in it that needs no arguments, and is called.

    Raises:
        PlanError: The file or function does not exist, or the function does not return `RETURNS`.
    """
    function = getattr(_run(path), name, None)
    if not callable(function):
        raise PlanError(f"--model is FILE.py:FUNCTION; {path} has no function {name}")
    parameters = inspect.signature(function).parameters.values()
    if needed := [p.name for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]:
        raise PlanError(
            f"the function of --model is called without arguments; {path}:{name} needs "
            f"{', '.join(needed)}: give them defaults"
        )
    returned = function()
    if isinstance(returned, tuple) and len(returned) == 4:
        return _in_torch(*returned)
    if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[0]):
        return Subject("jax", returned)
    kinds = [type(each).__name__ for each in returned] if isinstance(returned, tuple) else returned
    raise PlanError(f"the function of --model returns {RETURNS}; {path}:{name} returns {kinds!r}")


def _in_torch(model: Any, optimizer: Any, loss_fn: Any, batch: Any) -> Subject:
    import torch

    from frontends.torch.capture.capture import training_step

    for name, value, is_valid in (
        ("model", model, isinstance(model, torch.nn.Module)),
        ("optimizer", optimizer, isinstance(optimizer, torch.optim.Optimizer)),
        ("loss_fn", loss_fn, callable(loss_fn)),
    ):
        if not is_valid:
            raise PlanError(f"the function of --model returns {RETURNS}; got {name}={value!r}")
    return Subject("torch", (training_step(loss_fn), model, optimizer, batch))


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise PlanError(f"--model is FILE.py:FUNCTION; there is no file {path}")
    spec = present(importlib.util.spec_from_file_location(path.stem, path), _RUNS)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # as Python does for the program it runs
    present(spec.loader, _RUNS).exec_module(module)
    return module
