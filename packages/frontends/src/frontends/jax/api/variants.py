"""The variants of a step, which are told apart by the key that `jax.jit` uses for its traces.

`jit` traces a function again for other shapes, dtypes and structures of its arguments, for other
static values, and in another context of JAX's configuration. What the function closes over is
frozen when it is traced. A parallel step does the same: each such case is a variant with a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from frontends.answer.plan import Plan
from frontends.errors import ArgumentError
from frontends.jax.api.first_pass import FirstPass
from frontends.jax.base import _compat
from frontends.jax.base.adapters import Kept
from frontends.jax.base.arguments import type_of
from frontends.jax.base.passed import Passed
from frontends.jax.base.signature import CallArguments
from frontends.jax.base.stacked_array import StackedArray
from frontends.jax.run.runtime import Runtime
from frontends.jax.trace.trace import Trace
from frontends.search.plan_step import Planned

LeafType = tuple[tuple[int, ...], Any, bool]
"""Shape and dtype of a leaf, and whether the dtype is weak."""

_NAMED = 3
"""How many differences, and how many values of each, a message names."""


@dataclass(frozen=True, slots=True)
class Key:
    """What decides which variant runs a call."""

    names: tuple[str, ...]
    n_places: int
    static: tuple[tuple[int, type, Any], ...]
    """The arguments' numbers, types and values; so 1, 1.0 and True are different."""

    rests: tuple[Any, ...]
    """What each argument holds besides arrays, if that is static."""

    tree: Any
    types: tuple[LeafType, ...]
    context: Any
    """The part of JAX's configuration and contexts that `jit` has in its key."""

    @classmethod
    def of(cls, call: CallArguments, *, of_shapes: bool = False) -> Key:
        """The key of a call.

        Args:
            call: The call's arguments.
            of_shapes: Whether `jax.ShapeDtypeStruct` may stand for arrays.

        Raises:
            ArgumentError: JAX cannot compute with a leaf, or a static value has no hash.
        """
        for i, value in call.static.items():
            try:
                hash(value)
            except TypeError as error:
                raise ArgumentError(
                    "a static argument is compared by its hash and by ==, as jax.jit does; got "
                    f"{call.names[i]}={value!r:.60} of type {type(value).__name__}, which has no "
                    "hash: give a tuple in place of a list, or a frozen dataclass"
                ) from error
        try:
            leaves, tree = jax.tree.flatten(tuple(call.arrays.values()))
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"arguments of a step are trees as JAX knows them; it says: {error}"
            ) from error
        types = []
        for i, leaf in enumerate(leaves):
            if type(leaf) in (_compat.ArrayImpl, StackedArray):
                types.append((leaf.shape, leaf.dtype, leaf.weak_type))
            else:
                types.append(_type_of(leaf, call, i, of_shapes))
        static = tuple((i, type(value), value) for i, value in call.static.items())
        context = _compat.trace_context()
        rests = tuple(call.rests.values())
        return cls(call.names, call.n_places, static, rests, tree, tuple(types), context)

    def changes(self, other: Key, arguments: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """What differs from an earlier key: a name, and the value in this key.

        Args:
            other: The earlier key.
            arguments: The leaves of the arguments of this key, which have names.
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
            yield "what is not an array in the arguments", "other values"
        if self.context != other.context:
            yield "JAX's configuration", "another context"


def described(of: LeafType) -> str:
    """The type of a leaf as text: `float32[4,8]`."""
    shape, dtype, weak = of
    return f"{'weak ' if weak else ''}{dtype}[{','.join(map(str, shape))}]"


def _type_of(leaf: Any, call: CallArguments, index: int, of_shapes: bool) -> LeafType:
    if isinstance(leaf, jax.ShapeDtypeStruct) and of_shapes:
        return leaf.shape, leaf.dtype, bool(leaf.weak_type)
    if isinstance(leaf, jax.core.Tracer):
        raise ArgumentError(
            "a parallel step compiles itself, and cannot be traced; "
            f"{name_of(call, index)} is traced by jit, grad or vmap: call the step outside of "
            "them, and use them inside the step"
        )
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise ArgumentError(
            f"a step is called with arrays; got {name_of(call, index)} as a shape without numbers: "
            "prepare(...) plans for shapes"
        )
    aval = type_of(leaf, lambda: name_of(call, index))
    return aval.shape, aval.dtype, bool(aval.weak_type)


def name_of(call: CallArguments, index: int) -> str:
    """The name of a leaf of a call's arguments, as the user would write it."""
    for i, argument in call.arrays.items():
        paths = jax.tree_util.tree_leaves_with_path(argument)
        if index < len(paths):
            return call.names[i] + jax.tree_util.keystr(paths[index][0])
        index -= len(paths)
    raise IndexError(index)


@dataclass(slots=True)
class Variant:
    """A step as it is planned for the calls of one key, and compiled if it has run."""

    key: Key
    planned: Planned[Trace]
    is_held: bool
    """Whether its state has the devices and layouts of an earlier plan."""

    changes: tuple[str, ...]
    """What differs from the first variant."""

    kept: Kept
    """What its results hold besides arrays."""

    passed: Passed | None = None
    """Of a function that follows a step: which results are its arguments."""

    runtime: Runtime | None = None
    first_pass: FirstPass | None = None

    def __repr__(self) -> str:
        what = ", ".join(self.changes) or "first"
        return f"<Variant ({what}): {self.plan!r}>"

    @property
    def plan(self) -> Plan:
        """The plan by which it runs."""
        return self.planned.plan


def changes_from(key: Key, planned: Planned[Trace], first: Key) -> tuple[str, ...]:
    """What differs between a key and the first one, as texts."""
    changes = list(key.changes(first, planned.trace.leaves))
    more = [f"{len(changes) - _NAMED} more"] if len(changes) > _NAMED else []
    return tuple([f"{name}={value}" for name, value in changes[:_NAMED]] + more)


def what_keeps_changing(variants: Sequence[Variant]) -> str:
    """What differs among variants, most often changed first: names, and values of each."""
    seen: dict[str, dict[str, None]] = {}
    first = variants[0]
    for variant in variants[1:]:
        arguments = variant.planned.trace.leaves
        for name, value in variant.key.changes(first.key, arguments):
            seen.setdefault(name, {})[value] = None
    often = sorted(seen.items(), key=lambda item: -len(item[1]))[:_NAMED]
    return "; ".join(f"{name} ({', '.join([*values][:_NAMED])}, ...)" for name, values in often)
