"""Results of a function that are its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


class Passed:
    """A function without those of its results that are its arguments, unchanged.

    `flax.nnx` returns all variables of a module, of which an evaluation changes few. Of the others
    the caller gets back the arrays that it has.

    Args:
        function: A function of arrays.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._tree: Any = None
        self._from: list[int | None] = []
        self.__wrapped__ = function  # for the names of the arguments

    def __call__(self, *arguments: Any) -> list[Any]:
        """The results that are made, as a list; called when the function is traced."""
        number = {id(leaf): i for i, leaf in enumerate(jax.tree.leaves(arguments))}
        leaves, self._tree = jax.tree.flatten(self._function(*arguments))
        self._from = [number.get(id(leaf)) for leaf in leaves]
        return [leaf for leaf, i in zip(leaves, self._from, strict=True) if i is None]

    def returned(self, made: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """All results of a call.

        Args:
            made: The results that were made.
            arguments: What the function was called with.
        """
        given, results = jax.tree.leaves(arguments), iter(made)
        leaves = [next(results) if i is None else _array(given[i]) for i in self._from]
        return jax.tree.unflatten(self._tree, leaves)


def _array(leaf: Any) -> jax.Array:
    """An argument as `jax.jit` returns it; of a numpy array, which the caller may fill, a copy."""
    return leaf if isinstance(leaf, jax.Array) else jnp.array(leaf)
