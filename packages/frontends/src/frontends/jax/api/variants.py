"""What a call of a step is planned for: `jax.jit`'s own key, and the plans by it.

`jit` traces a function anew for other shapes, types and structures of its arguments, for other
static values, and in another context of JAX's configuration; what the function closes over is
frozen at a trace. A parallel step does the same: each such case is a variant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from frontends.answer.plan import Plan
from frontends.errors import ArgumentError
from frontends.jax.base import _compat
from frontends.jax.base.adapters import Kept
from frontends.jax.base.arguments import type_of
from frontends.jax.base.signature import Call
from frontends.jax.run.runtime import Runtime
from frontends.jax.trace.trace import Trace
from frontends.search.plan_step import Planned

LeafType = tuple[tuple[int, ...], Any, bool]
"""Shape and type of a leaf, and whether it takes the type of what it meets."""

_NAMED = 3
"""How many leaves of a kind a message names."""


@dataclass(frozen=True, slots=True)
class Key:
    """What decides which variant runs a call."""

    names: tuple[str, ...]
    n_places: int
    static: tuple[tuple[int, type, Any], ...]
    """By number of the argument; 1, 1.0 and True are different values."""

    rests: tuple[Any, ...]
    """What arguments have besides arrays, where that is static."""

    tree: Any
    types: tuple[LeafType, ...]
    context: Any
    """JAX's configuration, as far as `jit` asks for it."""

    @classmethod
    def of(cls, call: Call, *, of_shapes: bool = False) -> Key:
        """The key of a call.

        Args:
            call: Its arguments.
            of_shapes: Whether `jax.ShapeDtypeStruct` may stand for arrays.

        Raises:
            ArgumentError: A leaf is nothing that JAX computes with, or a static value has no hash.
        """
        for i, value in call.static.items():
            try:
                hash(value)
            except TypeError as error:
                raise ArgumentError(
                    "a static argument is compared by its hash and by ==, as jax.jit does; got "
                    f"{call.names[i]}={value!r:.60} of type {type(value).__name__}, which has no "
                    "hash: give a tuple for a list, or a frozen dataclass"
                ) from error
        try:
            leaves, tree = jax.tree.flatten(tuple(call.arrays.values()))
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"arguments of a step are trees as JAX knows them; it says: {error}"
            ) from error
        types = []
        for i, leaf in enumerate(leaves):
            if type(leaf) is _compat.ArrayImpl:
                types.append((leaf.shape, leaf.dtype, leaf.weak_type))
            else:
                types.append(_type_of(leaf, call, i, of_shapes))
        static = tuple((i, type(value), value) for i, value in call.static.items())
        context = _compat.trace_context()
        rests = tuple(call.rests.values())
        return cls(call.names, call.n_places, static, rests, tree, tuple(types), context)

    def changes(self, other: Key, arguments: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """What is other than in an earlier key: its name, and what it is here.

        Args:
            other: The earlier key.
            arguments: Leaves of the arguments of this one, with their names.
        """
        before = {i: (kind, value) for i, kind, value in other.static}
        for i, kind, value in self.static:
            if before.get(i) != (kind, value):
                yield self.names[i], f"{value!r:.60}"
        if (self.names, self.tree) != (other.names, other.tree):
            yield "the structure of the arguments", f"{self.tree}"
        elif self.types != other.types:
            for argument, ours, theirs in zip(arguments, self.types, other.types, strict=False):
                if ours != theirs:
                    yield argument.name, described(ours)
        if self.rests != other.rests:
            yield "what is no array in the arguments", "others"
        if self.context != other.context:
            yield "JAX's configuration", "another context"


def described(of: LeafType) -> str:
    """A type as text: `float32[4,8]`."""
    shape, dtype, weak = of
    return f"{'weak ' if weak else ''}{dtype}[{','.join(map(str, shape))}]"


def _type_of(leaf: Any, call: Call, index: int, of_shapes: bool) -> LeafType:
    if isinstance(leaf, jax.ShapeDtypeStruct) and of_shapes:
        return leaf.shape, leaf.dtype, bool(leaf.weak_type)
    if isinstance(leaf, jax.core.Tracer):
        raise ArgumentError(
            f"a parallel step is compiled by itself; {name_of(call, index)} is traced by jit, grad "
            "or vmap: call the step outside of them, and use what they do inside the step"
        )
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise ArgumentError(
            f"a step is called with arrays; got {name_of(call, index)} as a shape without numbers: "
            "prepare(...) plans for shapes"
        )
    found = type_of(leaf, lambda: name_of(call, index))
    return found.shape, found.dtype, bool(found.weak_type)


def name_of(call: Call, index: int) -> str:
    """The name of a leaf of a call's arguments, as the user would write it."""
    for i, argument in call.arrays.items():
        paths = jax.tree_util.tree_leaves_with_path(argument)
        if index < len(paths):
            return call.names[i] + jax.tree_util.keystr(paths[index][0])
        index -= len(paths)
    raise IndexError(index)


@dataclass(slots=True)
class Variant:
    """A step as it is planned, and compiled if it has run, for the calls of one key."""

    key: Key
    planned: Planned[Trace]
    is_held: bool
    """Whether its state lies as an earlier plan has it."""

    changes: tuple[str, ...]
    """What is other than at the first variant."""

    kept: Kept
    """What its results have besides arrays."""

    runtime: Runtime | None = None

    def __repr__(self) -> str:
        what = ", ".join(self.changes) or "first"
        return f"<Variant ({what}): {self.plan!r}>"

    @property
    def plan(self) -> Plan:
        """How it runs."""
        return self.planned.plan


def changes_from(key: Key, planned: Planned[Trace], first: Key) -> tuple[str, ...]:
    """What of a key is other than of the first one, as text."""
    found = list(key.changes(first, planned.trace.arguments))
    more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return tuple([f"{name}={value}" for name, value in found[:_NAMED]] + more)


def what_keeps_changing(variants: Sequence[Variant]) -> str:
    """What differs among variants: names, and the values of each."""
    seen: dict[str, dict[str, None]] = {}
    first = variants[0]
    for variant in variants[1:]:
        arguments = variant.planned.trace.arguments
        for name, value in variant.key.changes(first.key, arguments):
            seen.setdefault(name, {})[value] = None
    often = sorted(seen.items(), key=lambda item: -len(item[1]))[:_NAMED]
    return "; ".join(f"{name} ({', '.join([*values][:_NAMED])}, ...)" for name, values in often)
