"""The leaves of a step's arguments, and which of its results replace them in the next step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from frontends.base.batch_axes import BatchAxes, BatchLeafShape, axes_of
from frontends.errors import ArgumentError, BatchError
from frontends.jax.base import _compat
from frontends.search.plan_options import is_number


@dataclass(frozen=True, slots=True)
class Argument:
    """One leaf of the step's arguments."""

    name: str
    """As the user would write it: `params['head']`."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    """Whether its dtype is weak: it adopts that of the array it is combined with, like a Python
    number."""

    is_batch: bool
    """Whether its leading dim holds examples."""

    is_fed: bool = False
    """Whether it is part of the batch, but its leading dim does not hold examples."""

    batch_axis: int | None = None
    """Of an argument that is fed: another dim that holds examples."""

    keys: Any = None
    """If the user passes typed random keys: their dtype; shape and dtype are of their numbers."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a step returns, as a structure and leaves.

    The leaves are never put into the structure: a user's tree node may check what it is built from,
    and accept arrays only.
    """

    tree: Any
    leaves: Sequence[jax.ShapeDtypeStruct]


def numbers_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a leaf, or of its numbers if it holds typed random keys."""
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    if _compat.is_key_type(aval.dtype):
        return _compat.shape_of_numbers(aval)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=bool(aval.weak_type))


def type_of(leaf: Any, name: Callable[[], str]) -> Any:
    """Shape and dtype of a leaf, which may be a `jax.ShapeDtypeStruct`.

    Args:
        leaf: A leaf of a step's arguments.
        name: Returns its name, as the user would write it.

    Raises:
        ArgumentError: JAX cannot compute with it.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    try:
        aval = jax.typeof(leaf)
        if isinstance(leaf, int):
            np.asarray(leaf, aval.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
        raise ArgumentError(
            "arguments of a step are arrays, numbers and trees of them, as for jax.jit; got "
            f"{name()} of type {kind}: {_way_out(kind)}"
        ) from error
    return aval


def _way_out(kind: str) -> str:
    if kind.startswith("torch."):
        return "convert it by .numpy()"
    if kind in ("int", "numpy.ndarray"):
        return "give an array of a dtype that JAX has"
    return (
        "list an argument that chooses what the step does in static_argnums, keep such leaves out "
        "of trees (equinox.partition does it), or wrap the step in equinox.filter_jit"
    )


def describe(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    batch_argnums: Sequence[int],
    batch_axes: BatchAxes = 0,
) -> tuple[Argument, ...]:
    """Name, shape and dtype of every leaf of the arguments, in flattening order.

    Typed random keys are described by their numbers. A single number or key in the batch is shared
    by all examples (`is_fed`).

    Args:
        function: The step.
        arguments: Its arguments.
        batch_argnums: Which of them hold the batch.
        batch_axes: Which dims of the batch hold the examples; if several arguments hold it, a
            sequence with an item for each.

    Raises:
        BatchError: An argument or a dim does not exist.
        ArgumentError: JAX cannot compute with a leaf.
    """
    try:
        names = list(inspect.signature(function).bind(*arguments).arguments)
    except (TypeError, ValueError):
        names = []
    names += [f"argument{i}" for i in range(len(names), len(arguments))]
    described: list[Argument] = []
    batch = _positions(batch_argnums, len(arguments))
    in_batch: list[tuple[int, BatchLeafShape]] = []
    order = [number % len(arguments) for number in batch_argnums] if batch else []
    for i, argument in enumerate(arguments):
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            name = names[i] + jax.tree_util.keystr(path)
            aval = type_of(leaf, partial(str, name))
            numbers = numbers_of(leaf)
            keys = aval.dtype if aval.dtype != numbers.dtype else None
            shape = tuple(numbers.shape)
            if i in batch:
                place = [order.index(i)] if len(order) > 1 else []
                at = (*place, *(_key(key) for key in path))
                in_batch.append((len(described), BatchLeafShape(name, at, tuple(aval.shape))))
            described.append(
                Argument(name, shape, numbers.dtype, numbers.weak_type, False, False, keys=keys)
            )
    axes = axes_of(batch_axes, [leaf for _, leaf in in_batch])
    for (number, _), axis in zip(in_batch, axes, strict=True):
        leaf = described[number]
        described[number] = replace(
            leaf, is_batch=axis == 0, is_fed=axis != 0, batch_axis=axis or None
        )
    return tuple(described)


def _key(entry: Any) -> Any:
    """What a user writes for an entry of a path of JAX: a key, a number, or an attribute's name."""
    return next(getattr(entry, n) for n in ("key", "idx", "name") if hasattr(entry, n))


def _positions(batch_argnums: Sequence[int], n_arguments: int) -> set[int]:
    for number in batch_argnums:
        if not -n_arguments <= number < n_arguments:
            raise BatchError(
                f"batch_argnums must number some of the step's {n_arguments} arguments; got "
                f"batch_argnums={tuple(batch_argnums)}"
            )
    return {number % n_arguments for number in batch_argnums}


def match_state(
    arguments: Sequence[Any], out: Outputs, batch_argnums: Sequence[int]
) -> dict[int, int]:
    """For each leaf of the result that is new state: the leaf of the arguments that it replaces.

    A result replaces, in the next step, the first argument of the same structure, shapes and
    dtypes that nothing else replaces: this is what a step means that returns (params, opt_state,
    loss) from (params, opt_state, batch). Parts of results and of arguments are matched too, the
    largest first, so that state is found within a dict or whatever else a step returns.

    Returns:
        Index in the flattened result -> index in the flattened arguments.
    """
    batch = _positions(batch_argnums, len(arguments))
    state: list[tuple[Any, range]] = []
    offset = 0
    for i, argument in enumerate(arguments):
        leaves, tree = jax.tree.flatten(argument)
        if i not in batch:
            state += subtrees(tree, list(map(numbers_of, leaves)), offset)
        offset += len(leaves)
    aliases: dict[int, int] = {}
    results = sorted(subtrees(out.tree, out.leaves, 0), key=lambda item: -len(item[1]))
    for result, indices in results:
        if aliases.keys().isdisjoint(indices):
            replaced = set(aliases.values())
            same = (at for part, at in state if part == result and replaced.isdisjoint(at))
            aliases.update(zip(indices, next(same, ()), strict=False))
    return aliases


def subtrees(
    tree: Any, leaves: Sequence[jax.ShapeDtypeStruct], offset: int
) -> list[tuple[Any, range]]:
    """A tree and all its parts, outer before inner: its structure and types, its leaves' indices.

    Args:
        tree: The structure.
        leaves: Shapes and dtypes of its leaves.
        offset: Index of its first leaf.
    """
    types = tuple((tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves)
    parts = [((tree, types), range(offset, offset + len(leaves)))]
    at = 0
    for part in tree.children():
        parts += subtrees(part, leaves[at : at + part.num_leaves], offset + at)
        at += part.num_leaves
    return parts


def check_kept(name: str, array: jax.Array) -> None:
    """Raise `ArgumentError` if an array of state was given away to a step that wrote over it."""
    if array.is_deleted():
        raise ArgumentError(
            f"state can be used once if steps may write over it; {name} was given away to a step "
            "with donate=True: go on with the state that this step returned"
        )


def argnums_of(batch_argnums: Any) -> tuple[int, ...]:
    """`batch_argnums` as a tuple; a single number is allowed, as in `jax.jit`.

    Raises:
        BatchError: It is neither a number nor a sequence of numbers.
    """
    numbers = (batch_argnums,) if is_number(batch_argnums) else batch_argnums
    is_sequence = isinstance(numbers, Sequence) and not isinstance(numbers, str)
    if not is_sequence or not all(map(is_number, numbers)):
        raise BatchError(
            "batch_argnums is the number of an argument, such as -1, or a sequence of numbers, "
            f"such as (2,), or () if there is no batch; got batch_argnums={batch_argnums!r}"
        )
    return tuple(numbers)
