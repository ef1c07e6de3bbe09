"""A captured step: its program, arguments and results, and what it changes besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from frontends.torch.base.compat.stand_ins import Alias
from frontends.torch.base.flat import FlatProgram
from frontends.torch.base.host import Number
from frontends.torch.base.supposed import Decisions
from frontends.torch.base.trees import Tree
from frontends.torch.capture.arguments import Argument, State
from frontends.torch.capture.guards import Guards
from frontends.torch.capture.left import Effect
from frontends.torch.capture.told import Told

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Returned:
    """A leaf of what the step returns that is a value of the program."""

    name: str
    is_number: bool
    """Whether the user gets a Python number instead of a tensor, as from `item()`."""


@dataclass(frozen=True)
class Leavings:
    """What a step changes besides its state and what it returns."""

    n_values: int
    """How many values the effects use: these follow the returned ones among the results."""

    effects: tuple[Effect, ...]
    gradients: tuple[str, ...]
    """Parameters that have a gradient with values after the step: the results that follow."""

    cleared: tuple[str, ...]
    """Parameters whose gradients are not kept after the step (`GoneGradient`)."""

    emptied: tuple[str, ...]
    """Parameters whose gradient is None after the step."""

    flags: tuple[tuple[Tensor, bool], ...]
    """Parameters whose `requires_grad` the step changes, with the new value."""

    told: tuple[Told, ...]
    """Output that is printed and logged."""

    removed: tuple[tuple[tuple[Any, ...], Any], ...]
    """Items that the step removes from its batch: the path of the mapping, and the key."""

    written: tuple[str, ...]
    """Arguments outside of the state that it writes in place: the results that follow."""

    aliases: Mapping[int, Alias]
    """By index among the returned values and those of effects: the ones that share memory with the
    state or the batch, as when a parameter is returned."""


@dataclass(frozen=True)
class Captured:
    """A captured step, as a program for the whole batch."""

    flat: FlatProgram
    """The program; its outputs are the new values of `updates`, and then the results."""

    arguments: tuple[Argument, ...]
    """One for each input of `flat`."""

    state: State
    updates: tuple[str, ...]
    """The arguments that the step updates."""

    results: tuple[Any, ...]
    """For each leaf of what the step returns, and then for all that `left` describes, a `Returned`,
    a `Number`, or the value itself if it is constant."""

    out_tree: Tree
    """The structure of what the step returns."""

    draws: tuple[str, ...]
    """Names of random values; equal draws are one value."""

    numbers: Mapping[str, Number]
    """Arguments that Python computes at each call."""

    left: Leavings
    guards: Guards
    decisions: Decisions
    """Decisions by numbers that the program computes; these are its last results."""

    only_once: str | None
    """Why the step has to be captured again at every call; None if it has not."""
