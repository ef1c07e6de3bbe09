"""Checks that all processes do the same, with the same batch.

Libraries that train know nothing of the plan: they may shuffle each process's data in another way,
or let process 0 alone save a model. Processes that did so would wait for each other without end, or
train on something else. So each says what it does next, through the store in which they joined.
"""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import torch
import torch.distributed as dist

from frontends.errors import BatchError, DeviceError, InitializationError
from frontends.torch.base.compat.process_groups import default_store
from frontends.torch.base.trees import leaves_of
from frontends.torch.run.processes import join
from frontends.torch.run.watch import exchanging, watch

_FOLDER = "meshwright/alike/"
_numbers = itertools.count()
"""How often this process has met the others."""


def meet(doing: str, word: str = "") -> list[str]:
    """Wait until all processes do the same; return what each of them says, by rank.

    Args:
        doing: What this process does next, such as "save a model".
        word: What it says.

    Raises:
        DeviceError: Another process does something else, or does not come within an hour; every
            minute, process 0 prints for whom it waits.
    """
    rank = join()
    if rank is None:
        return [word]
    number, store = next(_numbers), default_store()
    place = f"{_FOLDER}{number}/"
    with exchanging():
        store.set(f"{place}{rank}", f"{doing}\n{word}")
    words = []
    for other in range(dist.get_world_size()):
        said, _, theirs = watch().wait_for(other, f"{place}{other}", doing).partition("\n")
        if said != doing:
            raise DeviceError(
                f"all processes do the same; process {rank} is about to {doing}, and process "
                f"{other} to {said}: let all of them do it"
            )
        words.append(theirs)
    if number > 1:  # all have read what was said two meetings ago
        with exchanging():
            store.delete_key(f"{_FOLDER}{number - 2}/{rank}")
    return words


def check_alike(batch: Any) -> None:
    """Raise `BatchError` if processes have different batches; all have to call it."""
    if join() is None:
        return
    crc = 0
    for leaf in leaves_of(batch):
        part = _bytes(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf).encode()
        crc = zlib.crc32(part, crc)
    words = meet("run a batch", f"{crc:08x}")
    if len(set(words)) > 1:
        other = next(rank for rank, word in enumerate(words) if word != words[0])
        raise BatchError(
            "all processes have the same batch, of which the plan gives each its part; processes "
            f"0 and {other} have different ones: seed what draws or shuffles examples equally"
        )


def check_same_weights(model: torch.nn.Module) -> None:
    """Raise `InitializationError` if processes begin with different weights; all have to call it.

    Each process keeps its part of its own model's weights, so these would be a mixture. Weights on
    the meta device are left out, as they have no values yet.
    """
    if join() is None:
        return
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    digests = ["-" if t.is_meta else f"{zlib.crc32(_bytes(t)):08x}" for t in state.values()]
    first, *others = [word.split() for word in meet("place a model", " ".join(digests))]
    for process, theirs in enumerate(others, 1):
        for name, a, b in zip(state, first, theirs, strict=False):
            if a != b and "-" not in (a, b):
                raise InitializationError(
                    "all processes begin with the same weights, of which the plan gives each its "
                    f"part; processes 0 and {process} have different values of {name}: call "
                    "torch.manual_seed before the model is built, or load it from one file"
                )


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
