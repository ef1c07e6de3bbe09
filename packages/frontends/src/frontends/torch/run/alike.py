"""Checks that all processes do the same, with the same batch.

Libraries that train know nothing of the plan: they may shuffle each process's data in another way,
or let process 0 alone save a model. Processes that did so would wait for each other without end, or
train on something else. So each says what it does next, through the store in which they joined.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

from frontends.errors import BatchError, DeviceError, InitializationError
from frontends.torch.base.compat.process_groups import default_store
from frontends.torch.base.trees import flatten
from frontends.torch.run.processes import join
from frontends.torch.run.watch import exchanging, is_anothers, watch

_FOLDER = "meshwright/alike/"
_numbers = itertools.count()
"""How often this process has met the others."""


def meet(doing: str, word: str = "", *, is_soon: bool = False) -> list[str]:
    """Wait until all processes do the same; return what each of them says, by rank.

    Args:
        doing: What this process does next, such as "save a model".
        word: What it says.
        is_soon: Whether a process that comes later than a step may ends all processes.

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
    with watch().begin(is_anothers) if is_soon else nullcontext():
        others = range(dist.get_world_size())
        texts = [watch().wait_for(other, f"{place}{other}", doing) for other in others]
    words = []
    for other, text in enumerate(texts):
        said, _, theirs = text.partition("\n")
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


@dataclass(frozen=True, slots=True)
class Words:
    """What all processes say before a call, by rank; none if this process is alone."""

    generators: Sequence[str] = ()
    """Digests of the states of their random generators."""

    def check_random(self) -> None:
        """Raise `DeviceError` if processes would draw different random numbers."""
        if (other := _other(self.generators)) is not None:
            raise DeviceError(
                "all processes draw the random numbers of one device, and each keeps its part; "
                f"processes 0 and {other} have different states of PyTorch's random generator: "
                "call torch.manual_seed with one number in all of them, and let none draw more "
                "numbers than the others"
            )


def check_alike(batch: Any, model: Module, optimizer: Any, is_first: bool) -> Words:
    """Check that processes call a step alike; all have to call it.

    Args:
        batch: The batch of the call.
        model: The model that the step trains.
        optimizer: Its optimizer.
        is_first: Whether no call has run yet, so that a process may still be getting ready.

    Raises:
        BatchError: Processes have different batches.
        DeviceError: They have other numbers in the optimizer's groups, or another `model.training`.
    """
    if join() is None:
        return Words()
    settings = _settings(model, optimizer)
    parts = _digest(batch), zlib.crc32(_bytes(torch.get_rng_state())), zlib.crc32(settings.encode())
    words = meet("run a batch", " ".join(map(str, parts)), is_soon=not is_first)
    batches, generators, others = zip(*map(str.split, words), strict=True)
    if (other := _other(batches)) is not None:
        raise BatchError(
            "all processes have the same batch, of which the plan gives each its part; processes "
            f"0 and {other} have different ones: seed what draws or shuffles examples equally"
        )
    if (other := _other(others)) is not None:
        raise DeviceError(
            "all processes call a step with the same numbers in the optimizer's groups, and the "
            f"same model.training; those of processes 0 and {other} differ, and process "
            f"{dist.get_rank()} has {settings}: set them equally in all"
        )
    return Words(generators)


def _settings(model: Module, optimizer: Any) -> str:
    """Return what a call depends on besides its batch, as far as it is quickly compared."""
    groups = [
        {key: _shown(value) for key, value in group.items() if key != "params"}
        for group in getattr(optimizer, "param_groups", ())
    ]
    return f"training={model.training}, {groups}"


def _other(words: Sequence[Any]) -> int | None:
    """Return a process that says something else than process 0."""
    return next((rank for rank, word in enumerate(words) if word != words[0]), None)


def _digest(batch: Any) -> int:
    crc = 0
    for leaf in flatten(batch)[0]:
        about = leaf.path, getattr(leaf.value, "dtype", ""), tuple(getattr(leaf.value, "shape", ()))
        crc = zlib.crc32(_bytes(leaf.value), zlib.crc32(str(about).encode(), crc))
    return crc


def check_same_weights(model: Module) -> None:
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


def _bytes(leaf: Any) -> Any:
    """Return what a digest is made of."""
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype != object:
        return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
    if not isinstance(leaf, Tensor):
        return str(_shown(leaf)).encode()
    if leaf.is_meta or leaf.layout is not torch.strided:
        return f"{leaf.dtype}{list(leaf.shape)}".encode()
    flat = leaf.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    flat = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
    return flat.view(torch.uint8).numpy()


def _shown(value: Any) -> Any:
    """Return a value that reads the same in all processes; of an object, its type."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
        return value.item()
    if isinstance(value, tuple | list):
        return [_shown(item) for item in value]
    is_plain = isinstance(value, bool | int | float | complex | str | bytes | None)
    return value if is_plain else type(value).__qualname__
