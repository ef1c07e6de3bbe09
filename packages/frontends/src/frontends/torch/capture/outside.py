"""Finds the places of tensors that a step uses besides its state and its batch.

Examples are an average of the weights in a dict, a table in a closure, another model's parameters.
At every call, the tensors in these places are passed to the program. A tensor whose place is not
known is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from frontends.errors import UnsupportedStepError
from frontends.torch.base.compat.values import is_stand_in, place_of
from frontends.torch.capture.gradients import Gradients
from frontends.torch.capture.location import Location
from frontends.torch.capture.reads import Reads

Tensor = torch.Tensor


def places_of(
    tensors: Sequence[Tensor], reads: Reads, gradients: Gradients
) -> dict[str, tuple[Location, ...]]:
    """Return a name for each tensor, and all places where it is.

    Args:
        tensors: The tensors that the step used.
        reads: What it read of Python.
        gradients: Tells for which tensors the step reset the gradient.

    Raises:
        UnsupportedStepError: One is in no place that can be read again, or accumulates gradients
            over several calls.
    """
    places_by_id: dict[int, list[Location]] = {id(tensor): [] for tensor in tensors}
    for place, frozen in reads.read.values():
        if id(frozen.value) in places_by_id:
            places_by_id[id(frozen.value)].append(place)
        for keys, each, path in frozen.places():
            if id(each.value) in places_by_id:
                places_by_id[id(each.value)].append(place.inside(keys, path))
    named: dict[str, tuple[Location, ...]] = {}
    for tensor in tensors:
        places = places_by_id[id(tensor)]
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
        return {f"outside[{i}]": tuple(places_by_id[id(t)]) for i, t in enumerate(tensors)}
    return named


def _check_gradient(tensor: Tensor, place: Location, gradients: Gradients) -> None:
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


def check_apart(written: Collection[str], tensors: Mapping[str, Tensor]) -> None:
    """Check that tensors which a step writes in place share no memory with others that it reads.

    Args:
        written: Names of the user's tensors that it writes.
        tensors: All tensors that it reads, by name.

    Raises:
        UnsupportedStepError: One does, or may.
    """
    if not written:
        return
    sharing: dict[int, set[int]] = {}
    for tensor in tensors.values():
        if tensor.device.type != "meta" and tensor.numel():
            sharing.setdefault(place_of(tensor)[0], set()).add(id(tensor))
    for name in written:
        if len(sharing.get(place_of(tensors[name])[0], ())) > 1:
            raise UnsupportedStepError(
                "what a step writes in place shares its memory with nothing else that it reads; "
                f"{name} does: pass a clone of it"
            )
