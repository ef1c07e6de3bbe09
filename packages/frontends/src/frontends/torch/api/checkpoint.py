"""Save state, and go on from it: in as many processes, in others, or by another plan.

`torch.distributed.checkpoint` writes and reads. A checkpoint knows nothing of plans: it holds
tensors under names of model and optimizer, and each process writes and reads only the parts that it
has. Beside them are the state of the random generator and what is no tensor: the settings of the
optimizer's groups, and the state of whatever else the user names, such as a schedule.
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

from frontends.base.present import present
from frontends.errors import CheckpointError
from frontends.run.checkpoints import check_next, number_to_read
from frontends.torch.base.calls import Tensor
from frontends.torch.run.runtime import Parts, Runtime

_NAME = re.compile(r"""(?:params|buffers)\[(['"])(?P<tensor>.*)\1\]$""")
_OPTIMIZER = re.compile(r"""optimizer\[(['"])(?P<key>.*?)\1\]\[(['"])(?P<tensor>.*)\3\]$""")


_GENERATOR, _SETTINGS = "generator", "settings"
"""Names in a checkpoint, beside those of model and optimizer."""


class Trained(Protocol):
    """A parallel step, as far as it has state."""

    optimizer: Optimizer

    @property
    def runtime(self) -> Runtime:
        """What has the state."""


def save(
    folder: str | os.PathLike[str],
    number: int,
    step: Trained,
    *,
    keep: int = 3,
    extra: Mapping[str, Stateful] | None = None,
) -> None:
    """Add a checkpoint to a folder, and wait until it is written.

    All processes call it, with the same folder on a disk that they share. A save that is cut off
    leaves those before it as they were.

    Args:
        folder: Is made if it is not there.
        number: Of the step; larger than those before.
        step: Whose state is saved, for model and optimizer; with the state of PyTorch's random
            generator, which draws the step's random numbers.
        keep: How many checkpoints stay in the folder; the oldest go.
        extra: What else goes on from the checkpoint, by any names: what has `state_dict()` and
            `load_state_dict()`, as schedules of learning rates have. It is process 0's.

    Raises:
        CheckpointError: There is one of this number or a larger, or a process could not write; it
            is raised in all of them.
        PlanError: The step has no plan yet, or no state.
    """
    last = latest(folder)
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
    except CheckpointException as error:  # of all processes, in each of them
        reasons = [
            f"process {process}: {type(failed).__name__}: {failed}"
            for process, (failed, _) in sorted(error.failures.items())
        ]
        kept = (
            "there is none before it" if last is None else f"the last is still that of step {last}"
        )
        raise CheckpointError(
            f"a checkpoint is there when all processes have written it; {folder}, step {number}, "
            f"is not: {', '.join(reasons)}; {kept}: make room, and save again"
        ) from error
    if _is_alone() or dist.get_rank() == 0:
        for old in _numbers(folder)[:-keep]:
            Path(_path(folder, old), ".metadata").unlink()  # first: it is complete no more
            shutil.rmtree(_path(folder, old))


def restore(
    folder: str | os.PathLike[str],
    step: Trained,
    number: int | None = None,
    *,
    extra: Mapping[str, Stateful] | None = None,
) -> int:
    """Read a checkpoint into the layouts of a step's plan.

    The optimizer's learning rates and PyTorch's random generator become those of then. Read only
    files that you trust: what is no tensor is unpickled, as `torch.distributed.checkpoint` does.

    Args:
        folder: Where `save` put it; the plan and the processes may then have been others.
        step: Whose state it becomes; its model may be on the meta device.
        number: Of the step; the last one by default.
        extra: What else is to go on, by the names under which it was saved.

    Returns:
        The number of the checkpoint.

    Raises:
        CheckpointError: There is no such checkpoint, or it holds other state.
        PlanError: The step has no plan yet: call `step.prepare(batch)` before.
    """
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
            f"{error}"
        ) from error
    settings = pickle.loads(state[_SETTINGS])
    lacking = (extra or {}).keys() - settings["extra"].keys()
    groups = step.optimizer.param_groups
    if lacking or len(groups) != len(settings["param_groups"]):
        raise CheckpointError(
            f"a checkpoint holds the state of what goes on from it; {folder}, step {number}, has "
            f"the extra {sorted(settings['extra'])} and {len(settings['param_groups'])} groups of "
            f"parameters; asked for are {sorted(extra or ())} and {len(groups)}"
        )
    for name, one in (extra or {}).items():
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


def latest(folder: str | os.PathLike[str]) -> int | None:
    """The number of the last checkpoint in a folder; None if it has none, or is not there."""
    return max(_numbers(folder), default=None)


def _numbers(folder: str | os.PathLike[str]) -> list[int]:
    """The checkpoints that are complete: their description is written last."""
    return sorted(int(path.parent.name) for path in Path(folder).glob("[0-9]*/.metadata"))


def _path(folder: str | os.PathLike[str], number: int) -> str:
    return str(Path(folder, f"{number:08d}"))


def _is_alone() -> bool:
    return not dist.is_initialized()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warning that there is one process only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _public(name: str) -> str:
    """A tensor's name in a checkpoint: `model.head.weight`, `optimizer.exp_avg.head.weight`."""
    if match := _OPTIMIZER.match(name):
        return f"optimizer.{match['key']}.{match['tensor']}"
    match = present(_NAME.match(name), f"state is of model or optimizer, and {name} is state")
    return f"model.{match['tensor']}"


def _tensors(runtime: Runtime, parts: Parts) -> dict[str, Tensor]:
    """State in its names in a checkpoint: whole, or DTensors where there are processes."""
    found = {_public(name): tensor for name, tensor in parts.whole.items()}
    for key, held in parts.shards.items():
        name = _public(key[1].value)
        if name not in found:
            alone = _is_alone()
            found[name] = (
                runtime.engine.whole(key[0], key[1], held)
                if alone
                else runtime.dtensors.of(key, held[0])
            )
    return found
