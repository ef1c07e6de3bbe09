"""Steps whose arguments are more than arrays: those of `equinox.filter_jit` and `flax.nnx.jit`.

Both libraries wrap `jax.jit` so that a step takes modules. Leaves of Equinox that are no arrays
are static; modules of NNX are objects that a step writes to. The parallel step takes the function
in the wrapper and does the same around its own call. Neither library is imported here: a wrapper
is of one that the user has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

import jax

from frontends.errors import ArgumentError, UnsupportedStepError

Kept = dict[str, Any]
"""What the results of a traced step have besides arrays."""


class Adapter(Protocol):
    """Between what the user passes and what is planned."""

    function: Callable[..., Any]
    """The step in the wrapper."""

    def split(self, value: Any) -> tuple[Any, Hashable]:
        """An argument as a tree of arrays, and the rest of it."""

    def merge(self, arrays: Any, rest: Hashable) -> Any:
        """The argument again."""

    def leave(
        self, result: Any, values: Mapping[int, Any], rests: Mapping[int, Hashable], kept: Kept
    ) -> Any:
        """What a traced step returns: a tree of arrays."""

    def returned(self, result: Any, originals: Mapping[int, Any], kept: Kept) -> Any:
        """What the user gets, of the numbers of that."""


def adapter_of(function: Callable[..., Any]) -> Adapter | None:
    """The adapter of a wrapped step; None for any other function."""
    kind, wrapped = type(function), getattr(function, "__wrapped__", None)
    if wrapped is None:
        return None
    if kind.__module__.startswith("equinox.") and kind.__name__ == "_JitWrapper":
        return FilterJit(wrapped)
    if kind.__module__.startswith("flax.nnx.") and "Jit" in kind.__name__:
        return NnxJit(wrapped)
    return None


class FilterJit:
    """As `equinox.filter_jit`: leaves that are no arrays are static."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._is_array: Callable[[Any], bool] = sys.modules["equinox"].is_array

    def split(self, value: Any) -> tuple[Any, Hashable]:
        """Arrays, with None in place of other leaves; and those."""
        leaves, tree = jax.tree.flatten(value)
        is_array = [isinstance(x, jax.ShapeDtypeStruct) or self._is_array(x) for x in leaves]
        arrays = [x if found else None for x, found in zip(leaves, is_array, strict=True)]
        rest = tuple(None if found else x for x, found in zip(leaves, is_array, strict=True))
        return jax.tree.unflatten(tree, arrays), (tree, rest)

    def merge(self, arrays: Any, rest: Any) -> Any:
        """All leaves in their places."""
        tree, others = rest
        leaves = tree.flatten_up_to(arrays)
        return tree.unflatten(
            [other if x is None else x for x, other in zip(leaves, others, strict=True)]
        )

    def leave(
        self, result: Any, values: Mapping[int, Any], rests: Mapping[int, Hashable], kept: Kept
    ) -> Any:
        """The arrays of the result; the rest is what it was when it was traced."""
        arrays, kept["rest"] = self.split(result)
        return arrays

    def returned(self, result: Any, originals: Mapping[int, Any], kept: Kept) -> Any:
        """The result with its other leaves."""
        return self.merge(result, kept["rest"])


class NnxJit:
    """As `flax.nnx.jit`: modules are changed in place."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._nnx = sys.modules["flax.nnx"]

    def split(self, value: Any) -> tuple[Any, Hashable]:
        """The state of modules, and their graph."""
        if not self._has_modules(value):
            return value, None
        graph, state = self._nnx.split(value)
        return state, graph

    def merge(self, arrays: Any, rest: Any) -> Any:
        """New modules with a state."""
        return arrays if rest is None else self._nnx.merge(rest, arrays)

    def leave(
        self, result: Any, values: Mapping[int, Any], rests: Mapping[int, Hashable], kept: Kept
    ) -> Any:
        """The result, and the state of all modules after the step."""
        states = []
        for i, value in values.items():
            if rests.get(i) is not None:
                graph, state = self._nnx.split(value)
                if graph != rests[i]:
                    raise UnsupportedStepError(
                        "a step may write to the variables of a module, and not change which it "
                        f"has; argument {i} has others after the step than before"
                    )
                states.append(state)
        if self._has_modules(result):
            raise UnsupportedStepError(
                "a step of nnx.jit writes to the modules that it is given, and returns arrays; "
                "this one returns a module"
            )
        return states, result

    def returned(self, result: Any, originals: Mapping[int, Any], kept: Kept) -> Any:
        """Write the new state into the modules that the user passed."""
        states, others = result
        modules = [value for value in originals.values() if self._has_modules(value)]
        for module, state in zip(modules, states, strict=True):
            self._nnx.update(module, state)
        return others

    def _has_modules(self, value: Any) -> bool:
        kinds = self._nnx.Module, self._nnx.Optimizer, self._nnx.Rngs, self._nnx.Variable

        def is_module(node: Any) -> bool:
            return isinstance(node, kinds)

        return any(map(is_module, jax.tree.leaves(value, is_leaf=is_module)))


def hashable(rest: Hashable, name: str) -> Hashable:
    """The rest of an argument, which decides between variants.

    Raises:
        ArgumentError: It has no hash.
    """
    try:
        hash(rest)
    except TypeError as error:
        raise ArgumentError(
            "leaves of modules that are no arrays are static, and compared by their hash and by "
            f"==; one of {name} has none ({error}): make it an array, or a tuple"
        ) from error
    return rest
