"""The step's arguments, leaf by leaf, and which of its results take their place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frontends.errors import BatchError, UnsupportedStepError


@dataclass(frozen=True, slots=True)
class Argument:
    """One leaf of the step's arguments."""

    name: str
    """As the user would write it: `params['head']`."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    """Whether it takes the type of what it meets, as Python's numbers do."""

    is_batch: bool


def describe(
    function: Callable[..., Any], arguments: Sequence[Any], batch_argnums: Sequence[int]
) -> tuple[Argument, ...]:
    """Name, shape and type of every leaf of the arguments, in flattening order."""
    try:
        names = list(inspect.signature(function).bind(*arguments).arguments)
    except (TypeError, ValueError):
        names = []
    names += [f"argument{i}" for i in range(len(names), len(arguments))]
    described = []
    batch = _positions(batch_argnums, len(arguments))
    for i, argument in enumerate(arguments):
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            name = names[i] + jax.tree_util.keystr(path)
            aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
            if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
                raise UnsupportedStepError(
                    f"arguments must have plain number types; {name} has {aval.dtype}: "
                    "pass jax.random.key_data(key) and wrap it inside the step"
                )
            weak_type = bool(aval.weak_type)
            described.append(Argument(name, tuple(aval.shape), aval.dtype, weak_type, i in batch))
    return tuple(described)


def _positions(batch_argnums: Sequence[int], n_arguments: int) -> set[int]:
    for number in batch_argnums:
        if not -n_arguments <= number < n_arguments:
            raise BatchError(
                f"batch_argnums must number some of the step's {n_arguments} arguments; got "
                f"batch_argnums={tuple(batch_argnums)}"
            )
    return {number % n_arguments for number in batch_argnums}


def match_state(
    arguments: Sequence[Any], out_shape: Any, batch_argnums: Sequence[int]
) -> dict[int, int]:
    """Which leaf of the result replaces which leaf of the arguments in the next step.

    A result takes the place of the first argument of the same structure, shapes and types, as a
    step that returns (params, opt_state, loss) from (params, opt_state, batch) means it. Parts of
    results and of arguments count too, the largest first, so that state is found in a dict or in
    whatever else a step returns.
    """
    batch = _positions(batch_argnums, len(arguments))
    state: list[tuple[Any, range]] = []
    offset = 0
    for i, argument in enumerate(arguments):
        shapes = jax.eval_shape(lambda tree: tree, argument)
        if i not in batch:
            state += _subtrees(shapes, offset)
        offset += len(jax.tree.leaves(shapes))
    aliases: dict[int, int] = {}
    for wanted, places in sorted(_subtrees(out_shape, 0), key=lambda item: -len(item[1])):
        if aliases.keys().isdisjoint(places):
            taken = set(aliases.values())
            same = (at for known, at in state if known == wanted and taken.isdisjoint(at))
            aliases.update(zip(places, next(same, ()), strict=False))
    return aliases


def _subtrees(tree: Any, offset: int) -> list[tuple[Any, range]]:
    """A tree and its parts, parts later: structure, shapes and types, and the leaves' places."""
    leaves = jax.tree.leaves(tree)
    types = tuple((tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves)
    found = [((jax.tree.structure(tree), types), range(offset, offset + len(leaves)))]
    for part in jax.tree.leaves(tree, is_leaf=lambda node: node is not tree):
        if part is not tree:
            found += _subtrees(part, offset)
            offset += len(jax.tree.leaves(part))
    return found
