"""Flattens what a step takes and returns: trees of containers, mappings and objects.

Nodes that `torch.utils._pytree` knows are flattened as it does. Batches of libraries are often of
types that it treats as leaves: a `BatchEncoding` or another mapping, a dataclass, an object with
attributes. Such a node is flattened by its items or attributes, and rebuilt as a shallow copy in
which these are replaced, so that no constructor runs.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import operator
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from frontends.errors import BatchError, UnsupportedStepError

_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), enum.Enum, range, slice, type),
    *(torch.Tensor, torch.dtype, torch.device, torch.Size, torch.Generator, torch.nn.Module),
    *(torch.SymInt, torch.SymFloat, torch.SymBool, np.ndarray, np.generic),
    *(FunctionType, MethodType, ModuleType),
)
"""Types that are leaves, although some have attributes."""

_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Tree:
    """The structure of a tree; equal for trees with the same structure."""

    kind: type | None
    """Type of the node; None for a leaf."""

    keys: tuple[Any, ...] = ()
    """One for each child: the key of an item, or the name of an attribute."""

    context: Any = None
    """The context of a pytree node, which distinguishes nodes of the same type."""

    children: tuple[Tree, ...] = ()
    example: Any = dataclasses.field(default=None, compare=False, repr=False)
    """The node that the structure was read from; `fill` copies it."""

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        children = (f"{k}: {c}" for k, c in zip(self.keys, self.children, strict=True))
        return f"{self.kind.__name__}({', '.join(children)})"

    @property
    def n_leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.kind is None else sum(child.n_leaves for child in self.children)

    def places(self) -> list[tuple[Any, ...]]:
        """The keys on the way to each leaf."""
        if self.kind is None:
            return [()]
        pairs = zip(self.keys, self.children, strict=True)
        return [(key, *rest) for key, child in pairs for rest in child.places()]

    def bare(self) -> Tree:
        """Return the structure without `example`, which would keep the user's objects alive."""
        children = tuple(child.bare() for child in self.children)
        return dataclasses.replace(self, children=children, example=None)

    def fill(self, leaves: Iterator[Any]) -> Any:
        """Return a tree of this structure with other leaves."""
        if self.kind is None:
            return next(leaves)
        children = [child.fill(leaves) for child in self.children]
        return _put_together(self.kind, self, children)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf and its path."""

    path: str
    """What the user would write after the name of the tree: `['x'][0].mask`."""

    value: Any


_LEAF = Tree(None)


def flatten(tree: Any) -> tuple[list[Leaf], Tree]:
    """Return the leaves of a tree in a fixed order, and its structure.

    Args:
        tree: Containers, mappings and objects with attributes; leaves may be anything.

    Raises:
        BatchError: It contains itself.
    """
    leaves: list[Leaf] = []
    return leaves, _flatten(tree, "", leaves, 0)


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of a tree in a fixed order."""
    return [leaf.value for leaf in flatten(tree)[0]]


def _flatten(node: Any, path: str, leaves: list[Leaf], depth: int) -> Tree:
    if depth > _DEEPEST:
        raise BatchError(
            f"a batch is a tree that ends; at {path[:80]} it is {_DEEPEST} levels deep, or "
            "contains itself"
        )
    parts = _parts(node)
    if parts is None:
        leaves.append(Leaf(path, node))
        return _LEAF
    keys, context, values, write = parts
    children = tuple(
        _flatten(value, path + write(key), leaves, depth + 1)
        for key, value in zip(keys, values, strict=True)
    )
    return Tree(type(node), tuple(keys), context, children, node)


def _parts(node: Any) -> tuple[list[Any], Any, list[Any], Callable[[Any], str]] | None:
    """Return a node's keys, pytree context, children, and how to write a key; None for a leaf."""
    if isinstance(node, dict) and type(node) in (dict, collections.OrderedDict):
        return list(node), None, list(node.values()), _item
    if type(node) in (list, tuple):
        return list(range(len(node))), None, list(node), _item
    if isinstance(node, _PLAIN) or node is None:
        return None
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return list(node._fields), None, list(node), _attribute
    if type(node) in pytree.SUPPORTED_NODES:
        values, context = pytree.SUPPORTED_NODES[type(node)].flatten_fn(node)
        values = list(values)
        return list(range(len(values))), _comparable(context), values, _item
    if isinstance(node, Mapping):
        keys = list(node)
        return keys, None, [node[key] for key in keys], _item
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        names = [field.name for field in dataclasses.fields(node) if hasattr(node, field.name)]
        return names, None, [getattr(node, name) for name in names], _attribute
    if isinstance(node, list | set | frozenset | collections.deque):
        return list(range(len(node))), None, list(node), _item
    if hasattr(node, "__dict__") and type(node).__module__ != "builtins" and not callable(node):
        attributes = vars(node)
        return list(attributes), None, list(attributes.values()), _attribute
    return None


def removed(before: Tree, now: Any, leaves: Sequence[Any]) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the items that were removed from a tree, as by `batch.pop("labels")`.

    Args:
        before: Its structure before.
        now: The tree.
        leaves: Its leaves before.

    Returns:
        For each item, the keys that lead to the mapping it was in, and its key there.

    Raises:
        UnsupportedStepError: Something else was changed.
    """
    items: list[tuple[tuple[Any, ...], Any]] = []
    _find_removed(before, now, iter(leaves), (), items)
    return items


def _find_removed(
    before: Tree,
    now: Any,
    leaves: Iterator[Any],
    path: tuple[Any, ...],
    removed_items: list[tuple[tuple[Any, ...], Any]],
) -> None:
    if before.kind is None:
        if next(leaves) is not now:
            raise _changed(path)
        return
    parts = _parts(now)
    keys, values = (parts[0], parts[2]) if parts is not None else ([], [])
    remaining = dict(zip(keys, values, strict=True))
    is_mapping = issubclass(before.kind, Mapping)
    if type(now) is not before.kind or any(key not in before.keys for key in remaining):
        raise _changed(path)
    for key, child in zip(before.keys, before.children, strict=True):
        if key in remaining:
            _find_removed(child, remaining[key], leaves, (*path, key), removed_items)
            continue
        if not is_mapping:
            raise _changed(path)
        removed_items.append((path, key))
        for _ in range(child.n_leaves):
            next(leaves)


def _changed(path: tuple[Any, ...]) -> UnsupportedStepError:
    where = "".join(f"[{key!r}]" for key in path)
    return UnsupportedStepError(
        "a step leaves its batch as it is, but for what it takes out; this one changes "
        f"batch{where}: put what it makes into another dict, or return it"
    )


def remove(tree: Any, path: tuple[Any, ...], key: Any) -> None:
    """Remove an item from a mapping in a tree."""
    for step in path:
        tree = getattr(tree, step) if isinstance(step, str) and hasattr(tree, step) else tree[step]
    del tree[key]


def _comparable(context: Any) -> Any:
    return tuple(context) if isinstance(context, list) else context


def _item(key: Any) -> str:
    return f"[{key!r}]"


def _attribute(name: str) -> str:
    return f".{name}"


def _put_together(kind: type, tree: Tree, children: list[Any]) -> Any:
    example = tree.example
    if kind in (list, tuple):
        return kind(children)
    if kind in (dict, collections.OrderedDict):
        return kind(zip(tree.keys, children, strict=True))
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return kind._make(children)
    if kind in pytree.SUPPORTED_NODES:
        context = pytree.SUPPORTED_NODES[kind].flatten_fn(example)[1]
        return pytree.SUPPORTED_NODES[kind].unflatten_fn(children, context)
    if issubclass(kind, set | frozenset | collections.deque | list):
        return kind(children)
    parts = _parts(example)
    is_written = isinstance(example, MutableMapping) or not isinstance(example, Mapping)
    if not is_written and parts is not None and all(map(operator.is_, children, parts[2])):
        return example  # a mapping of the user's that nobody can change
    new = copy.copy(example)
    if isinstance(new, collections.UserDict):
        new.data = dict(zip(tree.keys, children, strict=True))
        return new
    for key, value in zip(tree.keys, children, strict=True):
        if isinstance(new, Mapping):
            new[key] = value  # type: ignore[index]
        else:
            object.__setattr__(new, key, value)
    return new
