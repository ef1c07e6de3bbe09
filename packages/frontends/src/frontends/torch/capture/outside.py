"""Tensors that a step reads or writes beside its state and its batch: where Python keeps them.

They are handed to the program at every call, as what is there then: an average of the weights in a
dict, a table in a closure, another model's parameters. What cannot be found again is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from frontends.errors import UnsupportedStepError
from frontends.torch.base.compat.values import is_stand_in, place_of
from frontends.torch.capture.gradients import Gradients
from frontends.torch.capture.place import Place
from frontends.torch.capture.reads import Reads

Tensor = torch.Tensor


def places_of(
    tensors: Sequence[Tensor], reads: Reads, gradients: Gradients
) -> dict[str, tuple[Place, ...]]:
    """A name for each tensor, and where it is.

    Args:
        tensors: That the step met.
        reads: What it read of Python.
        gradients: Tells which gradients it reset.

    Raises:
        UnsupportedStepError: One is in no place that could be looked at again, or gets gradients
            over several calls.
    """
    found: dict[int, list[Place]] = {id(tensor): [] for tensor in tensors}
    for place, frozen in reads.read.values():
        if id(frozen.value) in found:
            found[id(frozen.value)].append(place)
        for keys, each, path in frozen.places():
            if id(each.value) in found:
                found[id(each.value)].append(place.inside(keys, path))
    named: dict[str, tuple[Place, ...]] = {}
    for tensor in tensors:
        places = found[id(tensor)]
        if not places:
            raise UnsupportedStepError(
                "a step reads tensors from its model, its batch, or from variables, attributes, "
                "lists and dicts that can be looked at again at the next call; one of "
                f"{tensor.dtype}{list(tensor.shape)} is in no such place: keep it in one of them, "
                "or put it into the batch"
            )
        named[f"outside[{places[0].name!r}]"] = tuple(places)
        _check_gradient(tensor, places[0], gradients)
    if len(named) < len(tensors):
        return {f"outside[{i}]": tuple(found[id(t)]) for i, t in enumerate(tensors)}
    return named


def _check_gradient(tensor: Tensor, place: Place, gradients: Gradients) -> None:
    if not tensor.requires_grad or not tensor.is_leaf or tensor.grad is None:
        return
    is_reset = gradients.is_reset(tensor)
    if is_stand_in(tensor.grad):
        tensor.grad = None
        if not is_reset:
            raise UnsupportedStepError(
                "a step computes gradients of its model's parameters, or sets others to None "
                f"before; it adds to that of {place.name}: make it a parameter of the model"
            )


def check_apart(written: Collection[str], there: Mapping[str, Tensor]) -> None:
    """What a step writes in place shares no memory with anything else that it reads.

    Args:
        written: Names of what it writes that is the user's.
        there: All that it reads, by name.

    Raises:
        UnsupportedStepError: It does, or may.
    """
    if not written:
        return
    sharing: dict[int, set[int]] = {}
    for tensor in there.values():
        if tensor.device.type != "meta" and tensor.numel():
            sharing.setdefault(place_of(tensor)[0], set()).add(id(tensor))
    for name in written:
        if len(sharing.get(place_of(there[name])[0], ())) > 1:
            raise UnsupportedStepError(
                "what a step writes in place shares its memory with nothing else that it reads; "
                f"{name} does: give a clone of it"
            )
