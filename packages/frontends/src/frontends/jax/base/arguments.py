"""The step's arguments, leaf by leaf, and which of its results take their place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from frontends.errors import ArgumentError, BatchError
from frontends.search.plan_options import is_number


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
    """Whether its leading dim holds examples."""

    is_fed: bool = False
    """Whether it comes with the batch, and has no dim that could hold examples."""

    keys: Any = None
    """The type of the random keys whose numbers these are, if the user passes keys."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a step returns.

    Never as a tree of shapes: nodes of users may check what they are made of, and want arrays.
    """

    tree: Any
    leaves: Sequence[jax.ShapeDtypeStruct]


def numbers_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of a leaf, or of its numbers if it holds typed random keys."""
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        return cast("jax.ShapeDtypeStruct", jax.eval_shape(jax.random.key_data, shape))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=bool(aval.weak_type))


def type_of(leaf: Any, name: Callable[[], str]) -> Any:
    """Shape and type of a leaf, which may be a `jax.ShapeDtypeStruct`.

    Args:
        leaf: Of the arguments of a step.
        name: Makes its name, as the user would write it.

    Raises:
        ArgumentError: It is nothing that JAX computes with.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    try:
        found = jax.typeof(leaf)
        if isinstance(leaf, int):
            np.asarray(leaf, found.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
        raise ArgumentError(
            "arguments of a step are arrays, numbers and trees of them, as for jax.jit; got "
            f"{name()} of type {kind}: {_way_out(kind)}"
        ) from error
    return found


def _way_out(kind: str) -> str:
    if kind.startswith("torch."):
        return "convert it by .numpy()"
    if kind in ("int", "numpy.ndarray"):
        return "give an array of a type that JAX has"
    return (
        "name an argument that chooses what the step does in static_argnums, keep such leaves out "
        "of trees (equinox.partition does it), or wrap the step in equinox.filter_jit"
    )


def describe(
    function: Callable[..., Any], arguments: Sequence[Any], batch_argnums: Sequence[int]
) -> tuple[Argument, ...]:
    """Name, shape and type of every leaf of the arguments, in flattening order.

    Typed random keys are described by their numbers. Single numbers and keys of the batch are the
    same for all its examples.
    """
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
            given = type_of(leaf, partial(str, name))
            aval = numbers_of(leaf)
            keys = given.dtype if given.dtype != aval.dtype else None
            shape, has_dims = tuple(aval.shape), bool(given.shape)
            is_batch, is_fed = i in batch and has_dims, i in batch and not has_dims
            described.append(
                Argument(name, shape, aval.dtype, aval.weak_type, is_batch, is_fed, keys)
            )
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
    arguments: Sequence[Any], out: Outputs, batch_argnums: Sequence[int]
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
        leaves, tree = jax.tree.flatten(argument)
        if i not in batch:
            state += _subtrees(tree, list(map(numbers_of, leaves)), offset)
        offset += len(leaves)
    aliases: dict[int, int] = {}
    for wanted, places in sorted(_subtrees(out.tree, out.leaves, 0), key=lambda i: -len(i[1])):
        if aliases.keys().isdisjoint(places):
            taken = set(aliases.values())
            same = (at for known, at in state if known == wanted and taken.isdisjoint(at))
            aliases.update(zip(places, next(same, ()), strict=False))
    return aliases


def _subtrees(
    tree: Any, leaves: Sequence[jax.ShapeDtypeStruct], offset: int
) -> list[tuple[Any, range]]:
    """A tree and its parts, parts later: structure, shapes and types, and the leaves' places."""
    types = tuple((tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves)
    found = [((tree, types), range(offset, offset + len(leaves)))]
    at = 0
    for part in tree.children():
        found += _subtrees(part, leaves[at : at + part.num_leaves], offset + at)
        at += part.num_leaves
    return found


def argnums_of(given: Any) -> tuple[int, ...]:
    """`batch_argnums` as a tuple; one number is one, as `jax.jit` takes it.

    Raises:
        BatchError: It is no number, and no sequence of numbers.
    """
    numbers = (given,) if is_number(given) else given
    is_several = isinstance(numbers, Sequence) and not isinstance(numbers, str)
    if not is_several or not all(map(is_number, numbers)):
        raise BatchError(
            "batch_argnums is the number of an argument, or several, as (2,) or -1, or () if there "
            f"is no batch; got batch_argnums={given!r}"
        )
    return tuple(numbers)
