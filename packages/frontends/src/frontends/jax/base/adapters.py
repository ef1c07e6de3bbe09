"""Steps whose arguments are not only arrays: those of `equinox.filter_jit` and `flax.nnx.jit`.

Both libraries wrap `jax.jit` so that a step can take modules. In Equinox, leaves that are not
arrays are static; in NNX, modules are objects that a step writes to. The parallel step takes the
function out of the wrapper and does around its own call what the wrapper does around `jit`. Neither
library is imported here: whoever passes its wrapper has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Protocol

import jax

from frontends.errors import ArgumentError, UnsupportedStepError

Kept = dict[str, Any]
"""What the results of a traced step hold besides arrays."""


class Adapter(Protocol):
    """Translates between the user's arguments and results and the arrays that are planned."""

    function: Callable[..., Any]
    """The step inside the wrapper."""

    def split(self, values: Mapping[int, Any]) -> dict[int, tuple[Any, Hashable]]:
        """For each argument, a tree of its arrays, and the rest of it."""

    def merge(self, arrays: Mapping[int, Any], rests: Mapping[int, Any]) -> dict[int, Any]:
        """The arguments, put together again from arrays and rests."""

    def leave(
        self, result: Any, values: Mapping[int, Any], rests: Mapping[int, Hashable], kept: Kept
    ) -> Any:
        """The tree of arrays that the traced step returns; what else it holds goes into `kept`."""

    def returned(self, result: Any, originals: Mapping[int, Any], kept: Kept) -> Any:
        """What the user gets, given the values of the tree that `leave` returned."""


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
    """Does what `equinox.filter_jit` does: leaves that are not arrays are static."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._is_array: Callable[[Any], bool] = sys.modules["equinox"].is_array

    def split(self, values: Mapping[int, Any]) -> dict[int, tuple[Any, Hashable]]:
        """The arrays, with None in place of other leaves; the rest is those other leaves."""
        return {i: self._split(value) for i, value in values.items()}

    def merge(self, arrays: Mapping[int, Any], rests: Mapping[int, Any]) -> dict[int, Any]:
        """The arguments with both kinds of leaves."""
        return {i: self._merge(value, rests[i]) for i, value in arrays.items()}

    def _split(self, value: Any) -> tuple[Any, Hashable]:
        leaves, tree = jax.tree.flatten(value)
        is_array = [isinstance(x, jax.ShapeDtypeStruct) or self._is_array(x) for x in leaves]
        arrays = [x if array else None for x, array in zip(leaves, is_array, strict=True)]
        rest = tuple(None if array else x for x, array in zip(leaves, is_array, strict=True))
        return jax.tree.unflatten(tree, arrays), (tree, rest)

    def _merge(self, arrays: Any, rest: Any) -> Any:
        tree, others = rest
        leaves = tree.flatten_up_to(arrays)
        return tree.unflatten(
            [other if x is None else x for x, other in zip(leaves, others, strict=True)]
        )

    def leave(
        self, result: Any, values: Mapping[int, Any], rests: Mapping[int, Hashable], kept: Kept
    ) -> Any:
        """The arrays of the result; its other leaves stay as they were when it was traced."""
        arrays, kept["rest"] = self._split(result)
        return arrays

    def returned(self, result: Any, originals: Mapping[int, Any], kept: Kept) -> Any:
        """The result with its other leaves."""
        return self._merge(result, kept["rest"])


class NnxJit:
    """Does what `flax.nnx.jit` does: modules are changed in place."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._nnx = sys.modules["flax.nnx"]

    def split(self, values: Mapping[int, Any]) -> dict[int, tuple[Any, Hashable]]:
        """The state of the modules, and their graph as the rest.

        Arguments that share variables are split together; the first of them gets state and graph.
        """
        parts: dict[int, tuple[Any, Hashable]] = {i: (value, None) for i, value in values.items()}
        for group in self._groups(values):
            graph, state = self._nnx.split(_together(values, group))
            parts[group[0]] = state, (group, graph)
            parts.update((i, ((), (group, None))) for i in group[1:])
        return parts

    def merge(self, arrays: Mapping[int, Any], rests: Mapping[int, Any]) -> dict[int, Any]:
        """New modules with the given state."""
        values = dict(arrays)
        for i, (group, graph) in _first(rests):
            merged = self._nnx.merge(graph, arrays[i])
            values.update(zip(group, (merged,) if len(group) == 1 else merged, strict=True))
        return values

    def leave(
        self, result: Any, values: Mapping[int, Any], rests: Mapping[int, Hashable], kept: Kept
    ) -> Any:
        """The result, and the state of all modules after the step."""
        states = []
        for i, (group, before) in _first(rests):
            graph, state = self._nnx.split(_together(values, group))
            if graph != before:
                raise UnsupportedStepError(
                    "a step may write to the variables of a module, but not change which variables "
                    f"it has; argument {i} has other variables after the step than before"
                )
            states.append(state)
        if self._has_modules(result):
            raise UnsupportedStepError(
                "a step of nnx.jit writes to the modules in its arguments and returns arrays; "
                "this one returns a module"
            )
        return states, result

    def returned(self, result: Any, originals: Mapping[int, Any], kept: Kept) -> Any:
        """Write the new state into the modules that the user passed."""
        states, others = result
        for group, state in zip(self._groups(originals), states, strict=True):
            self._nnx.update(_together(originals, group), state)
        return others

    def _groups(self, values: Mapping[int, Any]) -> list[tuple[int, ...]]:
        """Numbers of the arguments with modules; those that share a variable are in one group."""
        variable = self._nnx.Variable
        groups: list[tuple[tuple[int, ...], set[int]]] = []
        for i, value in values.items():
            if not self._has_modules(value):
                continue
            nodes = (node for _, node in self._nnx.iter_graph(value))
            group: tuple[int, ...] = (i,)
            ids = {id(node) for node in nodes if isinstance(node, variable)}
            for other in [each for each in groups if not ids.isdisjoint(each[1])]:
                groups.remove(other)
                group, ids = (*other[0], *group), ids | other[1]
            groups.append((group, ids))
        return sorted(tuple(sorted(group)) for group, _ in groups)

    def _has_modules(self, value: Any) -> bool:
        kinds = self._nnx.Module, self._nnx.Optimizer, self._nnx.Rngs, self._nnx.Variable

        def is_module(node: Any) -> bool:
            return isinstance(node, kinds)

        return any(map(is_module, jax.tree.leaves(value, is_leaf=is_module)))


def _together(values: Mapping[int, Any], group: tuple[int, ...]) -> Any:
    """The argument of a group, or its arguments as one tuple."""
    return values[group[0]] if len(group) == 1 else tuple(values[i] for i in group)


def _first(rests: Mapping[int, Any]) -> Iterator[tuple[int, tuple[tuple[int, ...], Any]]]:
    """For the first argument of each group: its number, the group, and the group's graph."""
    return ((i, rest) for i, rest in rests.items() if rest is not None and rest[1] is not None)


def hashable(rest: Hashable, name: str) -> Hashable:
    """The rest of an argument itself; a call's variant is looked up by it, so it needs a hash.

    Raises:
        ArgumentError: It has no hash.
    """
    try:
        hash(rest)
    except TypeError as error:
        raise ArgumentError(
            "leaves of modules that are not arrays are static, and are compared by hash and by ==; "
            f"one of {name} has no hash ({error}): make it an array or a tuple"
        ) from error
    return rest
