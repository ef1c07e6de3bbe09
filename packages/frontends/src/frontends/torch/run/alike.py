"""Checks that all processes do the same, with the same batch.

Libraries that train know nothing of the plan: they may shuffle each process's data in another way,
or let process 0 alone save a model. Processes that did so would wait for each other without end, or
train on something else. So each says what it does next, through the store in which they joined.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

from frontends.errors import BatchError, DeviceError, InitializationError
from frontends.torch.base.checksums import checksum_of
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
        DeviceError: They have other numbers in the optimizer's groups, or train other modules.
    """
    if join() is None:
        return Words()
    settings = _settings(model, optimizer)
    leaves = [(str(leaf.path), leaf.value) for leaf in flatten(batch)[0]]
    parts = map(checksum_of, (leaves, torch.get_rng_state(), settings))
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
            f"same modules in training; those of processes 0 and {other} differ, and process "
            f"{dist.get_rank()} has {settings}: set them equally in all"
        )
    return Words(generators)


def _settings(model: Module, optimizer: Any) -> str:
    """Return what a call depends on besides its batch, as far as it is quickly compared."""
    groups = [
        {key: _shown(value) for key, value in group.items() if key != "params"}
        for group in getattr(optimizer, "param_groups", ())
    ]
    others = [name for name, module in model.named_modules() if module.training != model.training]
    unlike = f" (not in {', '.join(others)})" if others else ""
    return f"training={model.training}{unlike}, {groups}"


def _other(words: Sequence[Any]) -> int | None:
    """Return a process that says something else than process 0."""
    return next((rank for rank, word in enumerate(words) if word != words[0]), None)


def check_same_weights(model: Module) -> None:
    """Raise `InitializationError` if processes begin with different weights; all have to call it.

    Each process keeps its part of its own model's weights, so these would be a mixture. Weights on
    the meta device are left out, as they have no values yet.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if (other := _unlike(state, "place a model")) is not None:
        raise InitializationError(
            "all processes begin with the same weights, of which the plan gives each its part; "
            f"processes 0 and {other[0]} have different values of {other[1]}: call "
            "torch.manual_seed before the model is built, or load it from one file"
        )


def check_same_outside(tensors: Mapping[str, Tensor]) -> None:
    """Raise `BatchError` if a capture read different tensors; all have to call it.

    Args:
        tensors: Those that belong to neither model, optimizer nor batch, by name.
    """
    if (other := _unlike(tensors, "capture a step")) is not None:
        raise BatchError(
            "all processes compute with the same tensors; processes 0 and "
            f"{other[0]} have different values of {other[1]}, which the step takes from outside "
            "model and batch: compute it equally in all"
        )


def check_same_variant(number: int) -> None:
    """Raise `DeviceError` if processes would run different variants; all have to call it.

    Args:
        number: That of the variant which this process would run.
    """
    numbers = [int(word) for word in meet("run a variant", str(number))]
    if (other := _other(numbers)) is not None:
        raise DeviceError(
            "all processes run the same program; the step's code reads something that is not the "
            f"same in processes 0 and {other}, which would run the variants {numbers[0]} and "
            f"{numbers[other]} of step.variants: let it read equal values in all"
        )


def _unlike(tensors: Mapping[str, Tensor], doing: str) -> tuple[int, str] | None:
    """A process that has another value of a tensor than process 0, and the name of the tensor."""
    if join() is None:
        return None
    digests = ["-" if t.is_meta else f"{checksum_of(t):08x}" for t in tensors.values()]
    first, *others = [word.split() for word in meet(doing, " ".join(digests))]
    for process, theirs in enumerate(others, 1):
        for name, a, b in zip(tensors, first, theirs, strict=False):
            if a != b and "-" not in (a, b):
                return process, name
    return None


def _shown(value: Any) -> Any:
    """Return a value that reads the same in all processes; of an object, its type."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
        return value.item()
    if isinstance(value, tuple | list):
        return [_shown(item) for item in value]
    is_plain = isinstance(value, bool | int | float | complex | str | bytes | None)
    return value if is_plain else type(value).__qualname__
