"""The leaves of whatever a step takes and returns: trees of containers, mappings and objects.

What `torch.utils._pytree` knows is taken apart as it does. Beyond that people pass batches of their
libraries, which pytrees take for leaves: a `BatchEncoding` or another mapping, a dataclass, an
object with attributes. Such a node is taken apart by its items or attributes, and put together as a
shallow copy in which these are replaced, so that no constructor runs.
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
    """The structure of a tree; equal for trees that are built alike."""

    kind: type | None
    """Of a node; None for a leaf."""

    keys: tuple[Any, ...] = ()
    """Of the children: keys of items, or names of attributes."""

    context: Any = None
    """What else tells nodes apart: a pytree's own context."""

    children: tuple[Tree, ...] = ()
    example: Any = dataclasses.field(default=None, compare=False, repr=False)
    """The node that it was read from, of which copies are made."""

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        children = (f"{k}: {c}" for k, c in zip(self.keys, self.children, strict=True))
        return f"{self.kind.__name__}({', '.join(children)})"

    @property
    def n_leaves(self) -> int:
        """How many leaves it has."""
        return 1 if self.kind is None else sum(child.n_leaves for child in self.children)

    def bare(self) -> Tree:
        """The same without the nodes that it was read from, which would be kept alive."""
        children = tuple(child.bare() for child in self.children)
        return dataclasses.replace(self, children=children, example=None)

    def fill(self, leaves: Iterator[Any]) -> Any:
        """A tree of this structure with other leaves."""
        if self.kind is None:
            return next(leaves)
        made = [child.fill(leaves) for child in self.children]
        return _put_together(self.kind, self, made)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf and where it is."""

    path: str
    """As the user would write it, after the name of the tree: `['x'][0].mask`."""

    value: Any


_LEAF = Tree(None)


def flatten(tree: Any) -> tuple[list[Leaf], Tree]:
    """The leaves of a tree in a fixed order, and its structure.

    Args:
        tree: Of containers, mappings and objects with attributes; leaves may be anything.

    Raises:
        BatchError: It contains itself.
    """
    leaves: list[Leaf] = []
    return leaves, _flatten(tree, "", leaves, 0)


def leaves_of(tree: Any) -> list[Any]:
    """The leaves alone."""
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
    """The children of a node: keys, what else tells it apart, values, how a key is written."""
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
        own = vars(node)
        return list(own), None, list(own.values()), _attribute
    return None


def removed(before: Tree, now: Any, leaves: Sequence[Any]) -> list[tuple[tuple[Any, ...], Any]]:
    """What was taken out of a tree, as `batch.pop("labels")` does.

    Args:
        before: Its structure.
        now: The tree.
        leaves: What it had.

    Returns:
        The keys of the mapping from which something was taken, and the key that it had there.

    Raises:
        UnsupportedStepError: Something else was changed.
    """
    found: list[tuple[tuple[Any, ...], Any]] = []
    _find_removed(before, now, iter(leaves), (), found)
    return found


def _find_removed(
    before: Tree,
    now: Any,
    leaves: Iterator[Any],
    path: tuple[Any, ...],
    found: list[tuple[tuple[Any, ...], Any]],
) -> None:
    if before.kind is None:
        if next(leaves) is not now:
            raise _changed(path)
        return
    parts = _parts(now)
    keys, values = (parts[0], parts[2]) if parts is not None else ([], [])
    there = dict(zip(keys, values, strict=True))
    is_mapping = issubclass(before.kind, Mapping)
    if type(now) is not before.kind or any(key not in before.keys for key in there):
        raise _changed(path)
    for key, child in zip(before.keys, before.children, strict=True):
        if key in there:
            _find_removed(child, there[key], leaves, (*path, key), found)
            continue
        if not is_mapping:
            raise _changed(path)
        found.append((path, key))
        for _ in range(child.n_leaves):
            next(leaves)


def _changed(path: tuple[Any, ...]) -> UnsupportedStepError:
    where = "".join(f"[{key!r}]" for key in path)
    return UnsupportedStepError(
        "a step leaves its batch as it is, but for what it takes out; this one changes "
        f"batch{where}: put what it makes into another dict, or return it"
    )


def remove(tree: Any, path: tuple[Any, ...], key: Any) -> None:
    """Take an item out of a mapping in a tree."""
    for step in path:
        tree = getattr(tree, step) if isinstance(step, str) and hasattr(tree, step) else tree[step]
    del tree[key]


def _comparable(context: Any) -> Any:
    return tuple(context) if isinstance(context, list) else context


def _item(key: Any) -> str:
    return f"[{key!r}]"


def _attribute(name: str) -> str:
    return f".{name}"


def _put_together(kind: type, tree: Tree, made: list[Any]) -> Any:
    example = tree.example
    if kind in (list, tuple):
        return kind(made)
    if kind in (dict, collections.OrderedDict):
        return kind(zip(tree.keys, made, strict=True))
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return kind._make(made)
    if kind in pytree.SUPPORTED_NODES:
        context = pytree.SUPPORTED_NODES[kind].flatten_fn(example)[1]
        return pytree.SUPPORTED_NODES[kind].unflatten_fn(made, context)
    if issubclass(kind, set | frozenset | collections.deque | list):
        return kind(made)
    parts = _parts(example)
    is_written = isinstance(example, MutableMapping) or not isinstance(example, Mapping)
    if not is_written and parts is not None and all(map(operator.is_, made, parts[2])):
        return example  # a mapping of the user's that nobody can change
    new = copy.copy(example)
    if isinstance(new, collections.UserDict):
        new.data = dict(zip(tree.keys, made, strict=True))
        return new
    for key, value in zip(tree.keys, made, strict=True):
        if isinstance(new, Mapping):
            new[key] = value  # type: ignore[index]
        else:
            object.__setattr__(new, key, value)
    return new
