"""Save state, and go on from it: in as many processes, in others, or by another plan.

`torch.distributed.checkpoint` writes and reads. A checkpoint knows nothing of plans: it holds
tensors under names of model and optimizer, and each process writes and reads only the parts that it
has.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from frontends.errors import CheckpointError
from frontends.torch.calls import Tensor
from frontends.torch.parallel import ParallelStep
from frontends.torch.runtime import Parts, Runtime

_NAME = re.compile(r"""(?:params|buffers)\[(['"])(?P<tensor>.*)\1\]$""")
_OPTIMIZER = re.compile(r"""optimizer\[(['"])(?P<key>.*?)\1\]\[(['"])(?P<tensor>.*)\3\]$""")


def save(folder: str | os.PathLike[str], number: int, step: ParallelStep) -> None:
    """Add a checkpoint to a folder, and wait until it is written.

    All processes call it, with the same folder on a disk that they share. A save that is cut off
    leaves those before it as they were.

    Args:
        folder: Is made if it is not there.
        number: Of the step; larger than those before.
        step: Whose state is saved, for model and optimizer.

    Raises:
        CheckpointError: There is one of this number or a larger.
        PlanError: The step has no plan yet, or no state.
    """
    last = latest(folder)
    if last is not None and number <= last:
        raise CheckpointError(
            "checkpoints are added in the order of their steps, and never written over; got "
            f"number={number}, and {folder} has one of step {last}: save into another folder"
        )
    runtime = step.runtime
    runtime.check_there()
    tensors = _tensors(runtime, Parts(runtime.shards, runtime.whole))
    with _quiet():
        state_dict_saver.save(
            dict(tensors), checkpoint_id=_path(folder, number), no_dist=_is_alone()
        )


def restore(folder: str | os.PathLike[str], step: ParallelStep, number: int | None = None) -> int:
    """Read a checkpoint into the layouts of a step's plan.

    Args:
        folder: Where `save` put it; the plan and the processes may then have been others.
        step: Whose state it becomes; its model may be on the meta device.
        number: Of the step; the last one by default.

    Returns:
        The number of the checkpoint.

    Raises:
        CheckpointError: There is no such checkpoint, or it holds other state.
        PlanError: The step has no plan yet: call `step.prepare(batch)` before.
    """
    there = _numbers(folder)
    if not there or (number is not None and number not in there):
        wanted = "checkpoint" if number is None else f"checkpoint of step {number}"
        raise CheckpointError(f"there is no {wanted} in {folder}; steps that it has: {there}")
    number = there[-1] if number is None else number
    runtime = step.runtime
    parts = runtime.empty()
    tensors = _tensors(runtime, parts)
    try:
        with _quiet():
            state_dict_loader.load(
                tensors, checkpoint_id=_path(folder, number), no_dist=_is_alone()
            )
    except (CheckpointException, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"a checkpoint holds the state of the step that reads it; {folder}, step {number}: "
            f"{error}"
        ) from error
    if _is_alone():
        runtime.load({name: tensors[_public(name)] for name in runtime.state_names})
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
    match = _NAME.match(name)
    assert match is not None, "state is of model or optimizer"
    return f"model.{match['tensor']}"


def _tensors(runtime: Runtime, parts: Parts) -> dict[str, Tensor]:
    """As `torch.distributed.checkpoint` knows them: whole, or DTensors if there are processes."""
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
