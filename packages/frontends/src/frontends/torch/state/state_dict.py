"""State in PyTorch's form: the `state_dict()` of a model, and that of its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frontends.torch.base.calls import Tensor
from frontends.torch.capture.arguments import State

Path = tuple[Any, ...]
"""The path of an entry of a state dict: `("model", "h.0.weight")`."""


def entries_of(state: State) -> dict[Path, str]:
    """Return, by path in the state dicts, the name of each tensor of a step's state.

    A tied parameter has a path for each of its names.

    Returns:
        By path, such as `("model", "h.0.weight")` or `("optimizer", "state", 0, "exp_avg")`, in the
        order of the state dicts.
    """
    names = {id(tensor): name for name, tensor in state.tensors.items()}
    entries: dict[Path, str] = {
        ("model", key): names[id(tensor)]
        for key, tensor in state.model.state_dict(keep_vars=True).items()
        if id(tensor) in names
    }
    for number, kept in state.optimizer.state_dict()["state"].items():
        for key, tensor in kept.items():
            if id(tensor) in names:
                entries["optimizer", "state", number, key] = names[id(tensor)]
    return entries


def assemble(state: State, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the state dicts of model and optimizer with other tensors.

    Args:
        state: The state of both.
        tensors: The tensors by name; state that is not among them is left out.

    Returns:
        `model` and `optimizer`, for the `load_state_dict` of either.
    """
    entries = entries_of(state)
    model: dict[str, Any] = {}
    for key, value in state.model.state_dict().items():
        name = entries.get(("model", key))
        if name is None:
            model[key] = value
        elif name in tensors:
            model[key] = tensors[name]
    optimizer = state.optimizer.state_dict()
    optimizer["state"] = {
        number: {
            key: tensors[name]
            for key in kept
            if (name := entries["optimizer", "state", number, key]) in tensors
        }
        for number, kept in optimizer["state"].items()
    }
    optimizer["state"] = {number: kept for number, kept in optimizer["state"].items() if kept}
    return {"model": model, "optimizer": optimizer}


def written(path: Path) -> str:
    """Return a path as the user would write it."""
    section, *keys = path
    return f"{section}{''.join(f'[{key!r}]' for key in keys)}"
