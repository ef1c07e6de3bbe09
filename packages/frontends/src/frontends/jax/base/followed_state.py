"""Which state of a training step the arguments of a function are that follows the step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from frontends.jax.base import _compat
from frontends.jax.base.arguments import Argument, subtrees
from frontends.jax.base.stacked_array import StackedArray

_PART = re.compile(r"\[[^\]]*\]|\.?[^.\[]+")
"""A part of a leaf's name: `params`, `['head']` and `.bias` of `params['head'].bias`."""


class FollowedState:
    """The state of a step that has a plan.

    A function that follows the step names it in its own way: of `state` it may get `state.params`,
    as `weights`. A plan knows arguments by name, so that the function's get the step's names.

    Args:
        tree: The structure of all arguments of the step.
        leaves: Their leaves.
        parameters: The numbers of those that are parameters.
        homes: Returns the sharding of the leaves that are state, by their numbers.
    """

    def __init__(
        self,
        tree: Any,
        leaves: Sequence[Argument],
        parameters: Set[int],
        homes: Callable[[], Mapping[int, Any]],
    ) -> None:
        self._leaves, self._parameters, self._homes = leaves, parameters, homes
        self._parts = [_PART.findall(leaf.name) for leaf in leaves]
        self._trees: dict[Any, list[range]] = defaultdict(list)
        self._single: dict[Any, list[range]] = defaultdict(list)
        offset = 0
        for child in tree.children():
            its = range(offset, offset + child.num_leaves)
            offset = its.stop
            if not any(leaves[i].is_batch or leaves[i].is_fed for i in its):
                types = [jax.ShapeDtypeStruct(leaves[i].shape, leaves[i].dtype) for i in its]
                for part, at in subtrees(child, types, its.start):
                    self._trees[part].append(at)
        for i, leaf in enumerate(leaves):
            if not (leaf.is_batch or leaf.is_fed):
                self._single[leaf.shape, np.dtype(leaf.dtype)].append(range(i, i + 1))

    def named(self, arguments: Sequence[Any], leaves: Sequence[Argument]) -> tuple[Argument, ...]:
        """The leaves of a function's arguments, with the step's names for those that are its state.

        An argument, or a part of one, is the state that has its structure, shapes and types. Of
        several, it is the one in whose layout it lies, then the one with the same name, then the
        parameters, then the first one. A single array is the state that lies where it does, or
        whose name has the same end.

        Args:
            arguments: The arguments.
            leaves: Their leaves as the function names them.
        """
        state: dict[int, int] = {}
        offset = 0
        for argument in arguments:
            values, tree = jax.tree.flatten(argument)
            its = range(offset, offset + len(values))
            offset = its.stop
            if any(leaves[i].is_batch or leaves[i].is_fed for i in its):
                continue
            types = [jax.ShapeDtypeStruct(leaves[i].shape, leaves[i].dtype) for i in its]
            given = dict(zip(its, values, strict=True))
            for part, at in subtrees(tree, types, its.start):  # outer before inner
                if state.keys().isdisjoint(at):
                    found = self._found(part, at, given, leaves, set(state.values()))
                    state.update(zip(at, found, strict=False))
        used = {self._leaves[i].name for i in state.values()}
        others = used | {leaf.name for leaf in self._leaves}
        names = [
            self._leaves[state[i]].name
            if i in state
            else f"own.{leaf.name}"
            if leaf.name in (used if leaf.is_batch or leaf.is_fed else others)
            else leaf.name
            for i, leaf in enumerate(leaves)
        ]
        return tuple(replace(leaf, name=name) for leaf, name in zip(leaves, names, strict=True))

    def _found(
        self,
        part: Any,
        at: range,
        given: Mapping[int, Any],
        leaves: Sequence[Argument],
        taken: set[int],
    ) -> range:
        """The numbers of the step's leaves that a part of the arguments is; empty if it is none."""
        is_single = jax.tree_util.treedef_is_leaf(part[0])
        first = leaves[at.start] if at else None
        if is_single and first is not None:
            candidates = self._single.get((first.shape, np.dtype(first.dtype)), [])
        else:
            candidates = self._trees.get(part, [])
        candidates = [its for its in candidates if taken.isdisjoint(its)]
        if first is None or not candidates:
            return range(0)
        names = [_PART.findall(leaves[i].name) for i in at]

        def score(its: range) -> tuple[int, int, int]:
            pairs = zip(at, its, names, strict=True)
            in_place = same = trained = 0
            for mine, i, parts in pairs:
                in_place += _lies_at(given[mine], self._homes, i)
                same += _common_end(parts, self._parts[i])
                trained += i in self._parameters
            return in_place, same, trained

        best = max(candidates, key=score)
        return range(0) if is_single and score(best)[:2] == (0, 0) else best


def _lies_at(leaf: Any, homes: Callable[[], Mapping[int, Any]], number: int) -> bool:
    """Whether an array lies where a plan keeps some state; never if it lies on one device only."""
    if not isinstance(leaf, jax.Array) or _compat.holds_keys(leaf) or leaf.is_deleted():
        return False
    if len(leaf.sharding.device_set) == 1:
        return False
    home = homes().get(number)
    if home is None or isinstance(leaf, StackedArray) or not isinstance(home, jax.NamedSharding):
        return home == leaf.sharding
    return bool(leaf.sharding.is_equivalent_to(home, leaf.ndim))


def _common_end(parts: Sequence[str], others: Sequence[str]) -> int:
    """How many parts at the end of two names are equal."""
    n = 0
    for part, other in zip(reversed(parts), reversed(others), strict=False):
        if part.strip(".[]'") != other.strip(".[]'"):
            break
        n += 1
    return n
