"""Run a user's step once on tensors without values, and keep what it does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from frontends.errors import BatchError, UnsupportedStepError
from frontends.step import BACKWARD
from frontends.torch import _compat
from frontends.torch.arguments import Argument, State, describe, name_leaves
from frontends.torch.decompositions import DECOMPOSITIONS
from frontends.torch.flat import Flat, known_from
from frontends.torch.read import AliasedError, Name, read
from frontends.torch.refusals import explained

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Returned:
    """A leaf of what the step returns that is a value of the step."""

    name: str
    is_number: bool
    """Whether the user gets one of Python's numbers, as from `item()`."""


@dataclass(frozen=True)
class Captured:
    """A step on the whole batch."""

    flat: Flat
    """Its outputs are the new values of `updates`, and then what is returned."""

    arguments: tuple[Argument, ...]
    """One for each input of `flat`."""

    state: State
    updates: tuple[str, ...]
    """The arguments that the step gives new values."""

    results: tuple[Any, ...]
    """For each leaf of what the step returns a `Returned`, or the constant that it always is."""

    out_tree: Any
    draws: tuple[str, ...]
    """Random values; equal draws are there once."""


def training_step(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """The usual step of a loss: `loss_fn(model, batch)`, its gradients, and an update."""

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def capture(
    step: Callable[..., Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
) -> Captured:
    """Trace `step(model, optimizer, batch)`, which changes nothing of the three.

    Raises:
        BatchError: The batch is empty.
        UnsupportedStepError: The step cannot be written as one program; the message says why.
    """
    state = State(model, optimizer)
    named = name_leaves(batch)
    given = {name: leaf for name, leaf in named if isinstance(leaf, Tensor)}
    settings = state.settings
    places = {f"optimizer.param_groups[{i}][{key!r}]": (i, key) for i, key in settings}
    arguments = [
        *(Argument(n, tuple(t.shape), t.dtype, False) for n, t in state.tensors.items()),
        *(Argument(name, (), torch.float64, False, place) for name, place in places.items()),
        *describe(named),
    ]
    _check_not_empty(arguments)
    names = [argument.name for argument in arguments]
    numbers = [torch.empty((), dtype=torch.float64) for _ in settings]
    tensors = [*state.tensors.values(), *numbers, *given.values()]
    updates: list[str] = []
    out: dict[str, Any] = {}

    def function(*values: Tensor) -> list[Any]:
        mine = dict(zip(names, values, strict=True))
        for name, tensor in state.tensors.items():
            mine[name] = mine[name].detach().requires_grad_(tensor.requires_grad)
        leaves = [mine.get(name, leaf) for name, leaf in named]
        now = {place: mine[name].item() for name, place in places.items()}
        with state.replaced(mine, now) as left:
            returned = step(model, optimizer, pytree.tree_unflatten(leaves, tree))
        results, out["tree"] = pytree.tree_flatten(returned)
        out["is_tensor"] = [isinstance(r, Tensor) for r in results]
        updates[:] = left
        return [v.detach() if isinstance(v, Tensor) else v for v in (*left.values(), *results)]

    tree = pytree.tree_structure(batch)
    with explained():
        program = _compat.Program(function, tensors, DECOMPOSITIONS)
    try:
        flat, returned, draws = read(program.module, names)
    except AliasedError:
        flat, returned, draws = read(program.without_writes(), names)
    n_state = len(updates)
    changed = [
        (new, name) for new, name in zip(returned[:n_state], updates, strict=True) if new != name
    ]
    for new, name in changed:
        _check_update(flat, new, name)
    results = tuple(
        Returned(value, not is_tensor) if isinstance(value, Name) else value
        for value, is_tensor in zip(returned[n_state:], out["is_tensor"], strict=True)
    )
    outputs = (*(new for new, _ in changed), *(r.name for r in results if isinstance(r, Returned)))
    flat = Flat(flat.inputs, flat.lines, flat.kinds, flat.constants, outputs).live()
    flat, kept = _draw_once(flat, draws)
    _check_draws(flat, kept, given)
    if not any(line.phase == BACKWARD for line in flat.lines):
        raise UnsupportedStepError(
            "a training step must compute gradients with backward() or torch.autograd.grad, and "
            "use them; none was found in what the step returns or updates"
        )
    return Captured(
        flat, tuple(arguments), state, tuple(n for _, n in changed), results, out["tree"], kept
    )


def _check_not_empty(arguments: Sequence[Argument]) -> None:
    for argument in arguments:
        if argument.is_batch and argument.shape[0] == 0:
            raise BatchError(
                "a batch holds at least one example, in the leading dim; got "
                f"{argument.name} of shape {argument.shape}: plan with a batch as it will be "
                "trained"
            )


def _check_update(flat: Flat, new: Any, name: str) -> None:
    if not isinstance(new, Name) or flat.kinds[new] != flat.kinds[name]:
        became = flat.kinds[new] if isinstance(new, Name) else repr(new)
        raise UnsupportedStepError(
            "a step keeps shape and type of what it updates; "
            f"{name}, {flat.kinds[name]}, becomes {became}"
        )


def _draw_once(flat: Flat, draws: Mapping[str, Any]) -> tuple[Flat, tuple[str, ...]]:
    """Let those that read the same numbers twice, as checkpointing does, read one value."""
    first: dict[Any, str] = {}
    made = {name for line in flat.lines for name in line.outputs}
    instead = {name: first.setdefault(key, name) for name, key in draws.items() if name in made}
    flat = flat.renamed({a: b for a, b in instead.items() if a != b}).live()
    return flat, tuple(first.values())


def _check_draws(flat: Flat, draws: Collection[str], free: Collection[str]) -> None:
    known = known_from(flat.lines, {*free, *flat.constants})
    for name in draws:
        if name not in known:
            raise UnsupportedStepError(
                "random numbers are drawn before the step runs, so that they are those of one "
                f"device; {name} depends on weights: draw uniform numbers and compare them"
            )
