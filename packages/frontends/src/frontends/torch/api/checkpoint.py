"""Saves and restores state; the number of processes and the plan may change in between.

`torch.distributed.checkpoint` writes and reads. A checkpoint does not depend on a plan: it holds
tensors under the names of model and optimizer, and each process writes and reads only the parts
that it keeps. A checkpoint also holds the state of the random generator, and what is not a tensor:
the settings of the optimizer's groups, and the state of whatever else the user names, such as a
learning rate schedule.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from frontends.base.boundary import first_line
from frontends.base.present import present
from frontends.errors import CheckpointError
from frontends.run.checkpoints import check_keep, check_next, number_to_read
from frontends.torch.base.calls import Tensor
from frontends.torch.run.kept_state import Parts
from frontends.torch.run.runtime import Runtime

_NAME = re.compile(r"""(?:params|buffers)\[(['"])(?P<tensor>.*)\1\]$""")
_OPTIMIZER = re.compile(r"""optimizer\[(['"])(?P<key>.*?)\1\]\[(['"])(?P<tensor>.*)\3\]$""")


_GENERATOR, _SETTINGS = "generator", "settings"
"""Names in a checkpoint besides those of model and optimizer."""


class Trained(Protocol):
    """The part of a parallel step that checkpoints use."""

    optimizer: Optimizer

    @property
    def runtime(self) -> Runtime:
        """The runtime, which holds the state."""


def save(
    folder: str | os.PathLike[str],
    number: int,
    step: Trained,
    *,
    keep: int = 3,
    extra: Mapping[str, Stateful] | None = None,
) -> None:
    """Add a checkpoint to a folder, and wait until it is written.

    All processes have to call it, with the same folder on a disk that they share. If it is
    interrupted, previous checkpoints stay as they were.

    Args:
        folder: The folder; it is created if it does not exist.
        number: The step's number, larger than those of previous checkpoints.
        step: The step whose state is saved: that of model and optimizer, and that of PyTorch's
            random generator, which draws the step's random numbers.
        keep: How many checkpoints to keep in the folder; older ones are deleted.
        extra: Other objects to save, by any names: objects with `state_dict()` and
            `load_state_dict()`, such as learning rate schedules. Process 0's are saved.

    Raises:
        CheckpointError: There is a checkpoint of this or a larger number, or a process could not
            write; it is raised in all processes.
        PlanError: The step has no plan yet, or no state.
    """
    last = latest(folder)
    check_keep(keep)
    check_next(folder, number, last)
    runtime = step.runtime
    runtime.check_there()
    state: dict[str, Any] = {**_tensors(runtime, Parts(runtime.shards, runtime.whole))}
    state[_GENERATOR] = torch.get_rng_state()
    groups = [{k: v for k, v in g.items() if k != "params"} for g in step.optimizer.param_groups]
    others = {name: one.state_dict() for name, one in (extra or {}).items()}
    state[_SETTINGS] = pickle.dumps({"param_groups": groups, "extra": others})
    try:
        with _quiet():
            state_dict_saver.save(state, checkpoint_id=_path(folder, number), no_dist=_is_alone())
    except CheckpointException as error:  # raised in each process, for all processes
        kept = (
            "there is none before it" if last is None else f"the last is still that of step {last}"
        )
        raise CheckpointError(
            f"a checkpoint is complete when all processes have written it; {folder}, step "
            f"{number}, is not: {_reasons(error)}; {kept}: make room, and save again"
        ) from error
    if _is_alone() or dist.get_rank() == 0:
        for old in _numbers(folder)[:-keep]:
            Path(_path(folder, old), ".metadata").unlink()  # first, so that it is not complete
            shutil.rmtree(_path(folder, old))


def restore(
    folder: str | os.PathLike[str],
    step: Trained,
    number: int | None = None,
    *,
    extra: Mapping[str, Stateful] | None = None,
) -> int:
    """Read a checkpoint into the layouts of a step's plan.

    The optimizer's settings, such as learning rates, and PyTorch's random generator are restored,
    too. Read only files that you trust: what is not a tensor is unpickled, as
    `torch.distributed.checkpoint` does.

    Args:
        folder: The folder of `save`; it may have been called with another plan or number of
            processes.
        step: The step whose state is set; its model may be on the meta device.
        number: The number of the checkpoint; the last one by default.
        extra: Other objects to restore, by the names under which they were saved.

    Returns:
        The number of the checkpoint.

    Raises:
        CheckpointError: There is no such checkpoint, or it holds other state.
        PlanError: The step has no plan yet: call `step.prepare(batch)` before.
    """
    return read(folder, step, number, extra or {}, is_all=False)


def read(
    folder: str | os.PathLike[str],
    step: Trained,
    number: int | None,
    extra: Mapping[str, Stateful],
    *,
    is_all: bool,
) -> int:
    """As `restore`; with `is_all`, refuse a checkpoint with other objects than `extra`."""
    number = number_to_read(folder, number, _numbers(folder))
    runtime = step.runtime
    parts = runtime.empty()
    state: dict[str, Any] = {**_tensors(runtime, parts)}
    state |= {_GENERATOR: torch.get_rng_state(), _SETTINGS: b""}
    try:
        with _quiet():
            state_dict_loader.load(state, checkpoint_id=_path(folder, number), no_dist=_is_alone())
    except (CheckpointException, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"a checkpoint holds the state of the step that reads it; {folder}, step {number}: "
            f"{_reasons(error)}"
        ) from error
    settings = pickle.loads(state[_SETTINGS])
    lacking = extra.keys() - settings["extra"].keys()
    if is_all and settings["extra"].keys() - extra.keys():
        raise CheckpointError(
            f"a run that goes on restores all that it has saved; {folder}, step {number}, has the "
            f"extra {sorted(settings['extra'])}, and extra= has {sorted(extra)}: pass them all"
        )
    groups = step.optimizer.param_groups
    if lacking or len(groups) != len(settings["param_groups"]):
        raise CheckpointError(
            f"a checkpoint holds the state of what is restored from it; {folder}, step {number}, "
            f"has the extra {sorted(settings['extra'])} and {len(settings['param_groups'])} groups "
            f"of parameters; asked for are {sorted(extra)} and {len(groups)}"
        )
    for name, one in extra.items():
        one.load_state_dict(settings["extra"][name])
    for group, then in zip(groups, settings["param_groups"], strict=True):
        group.update(then)
    torch.set_rng_state(state[_GENERATOR])
    if _is_alone():
        runtime.load({name: state[_public(name)] for name in runtime.state_names})
    else:
        for name, tensor in parts.whole.items():
            runtime.cut(name, tensor, parts)
        runtime.take(parts)
    return number


def _reasons(error: BaseException) -> str:
    """What went wrong, in one line, by process if torch says so."""
    if not isinstance(error, CheckpointException):
        return first_line(error)
    return ", ".join(
        f"process {process}: {type(failed).__name__}: {first_line(failed)}"
        for process, (failed, _) in sorted(error.failures.items())
    )


def latest(folder: str | os.PathLike[str]) -> int | None:
    """Return the number of the last checkpoint in a folder; None if there is none."""
    return max(_numbers(folder), default=None)


def _numbers(folder: str | os.PathLike[str]) -> list[int]:
    """Return the numbers of complete checkpoints: their metadata is written last."""
    return sorted(int(path.parent.name) for path in Path(folder).glob("[0-9]*/.metadata"))


def _path(folder: str | os.PathLike[str], number: int) -> str:
    return str(Path(folder, f"{number:08d}"))


def _is_alone() -> bool:
    return not dist.is_initialized()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warning that there is only one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _public(name: str) -> str:
    """Return a tensor's name in a checkpoint.

    Examples are `model.head.weight` and `optimizer.exp_avg.head.weight`.
    """
    if match := _OPTIMIZER.match(name):
        return f"optimizer.{match['key']}.{match['tensor']}"
    match = present(_NAME.match(name), f"state is of model or optimizer, and {name} is state")
    return f"model.{match['tensor']}"


def _tensors(runtime: Runtime, parts: Parts) -> dict[str, Tensor]:
    """Return state under its names in a checkpoint: DTensors if there are several processes."""
    tensors = {_public(name): tensor for name, tensor in parts.whole.items()}
    for key, held in parts.shards.items():
        name = _public(key[1].value)
        if name not in tensors:
            alone = _is_alone()
            tensors[name] = (
                runtime.engine.whole(key[0], key[1], held)
                if alone
                else runtime.dtensors.of(key, held[0])
            )
    return tensors
