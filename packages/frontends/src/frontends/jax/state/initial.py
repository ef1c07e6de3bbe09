"""Make state on the devices that keep it, so that it is never whole anywhere (Rhino §6.3).

Each stage runs the user's initialisation for its own leaves; what only other leaves need is dead
code there. XLA shards the rest by the plan's layouts. JAX draws the same random numbers under every
sharding, as each number depends only on its position in the array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from autoshard import Graph
from jax.sharding import NamedSharding
from shardspec import Spec

from frontends.answer.plan import Plan
from frontends.errors import PlanError
from frontends.jax.base import _compat
from frontends.jax.base.arguments import Argument, numbers_of
from frontends.jax.base.stacked_array import StackedArray, StackedSharding
from frontends.jax.lower.compile import Submeshes
from frontends.jax.trace.trace import Trace
from frontends.program.state_locations import find_placed

Home = NamedSharding | StackedSharding
Homes = Mapping[int, Home]
"""By number of a leaf of the step's arguments: its sharding between steps; not for the batch."""


def find_homes(trace: Trace, plan: Plan, graph: Graph) -> Homes:
    """The shardings of state between steps.

    What no stage reads is replicated on the devices of the first stage.

    Raises:
        DeviceError: JAX has fewer devices than the plan uses.
    """
    submeshes = Submeshes(plan, graph)
    number = {argument.name: i for i, argument in enumerate(trace.arguments)}
    homes = {
        i: submeshes.sharding(0, Spec.replicated(len(argument.shape)))
        for i, argument in enumerate(trace.arguments)
        if not argument.is_batch
    }
    state = {argument.name for argument in trace.arguments if not argument.is_batch}
    for stage, slot, _ in reversed(find_placed(plan, trace.constants, state)):
        if slot.value in number:
            homes[number[slot.value]] = submeshes.sharding(stage, slot.spec)
    return {
        leaf: homes[place.start] if cut is None else StackedSharding(cut, [homes[i] for i in place])
        for leaf, (place, cut) in enumerate(zip(trace.places, trace.cuts, strict=True))
        if place.start in homes
    }


def leaves_of_state(shapes: Any, tree: Any, arguments: Sequence[Argument]) -> list[int]:
    """The numbers of the leaves of the step's arguments that the leaves of a tree of state are.

    Args:
        shapes: The state: the step's first argument that is not batch, or a tuple of its first
            ones.
        tree: The structure of all arguments of the step.
        arguments: Their leaves.

    Raises:
        PlanError: The state has another structure, or other shapes or dtypes.
    """
    expected: list[tuple[Any, range]] = []
    at = 0
    for child in tree.children():
        leaves = range(at, at + child.num_leaves)
        if not any(arguments[i].is_batch or arguments[i].is_fed for i in leaves):
            expected.append((child, leaves))
        at = leaves.stop
    parts = shapes if isinstance(shapes, tuple) else (shapes,)
    if expected and jax.tree.structure(shapes) == expected[0][0]:
        parts = (shapes,)
    structures = [jax.tree.structure(part) for part in parts]
    if structures != [child for child, _ in expected[: len(structures)]]:
        raise PlanError(
            "state is the step's first argument that is not batch, or a tuple of its first ones; "
            f"got {jax.tree.structure(shapes)}, and the step was planned for "
            f"{', '.join(str(child) for child, _ in expected)}"
        )
    numbers_of_leaves = [i for _, leaves in expected[: len(structures)] for i in leaves]
    for i, leaf in zip(numbers_of_leaves, jax.tree.leaves(shapes), strict=True):
        numbers, argument = numbers_of(leaf), arguments[i]
        if (numbers.shape, numbers.dtype) != (argument.shape, argument.dtype):
            raise PlanError(
                "state has the shapes and types that the step was planned for; got "
                f"{argument.name} of {numbers.dtype}{list(numbers.shape)} instead of "
                f"{argument.dtype}{list(argument.shape)}"
            )
    return numbers_of_leaves


def place_shapes(shapes: Any, homes: Sequence[Home]) -> Any:
    """The same shapes with shardings."""
    leaves, tree = jax.tree.flatten(shapes)
    placed = []
    for leaf, home in zip(leaves, homes, strict=True):
        if isinstance(home, StackedSharding):
            placed.append(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=home))
            continue
        # Typed keys are sharded as their numbers are, which have more dims.
        spec = jax.sharding.PartitionSpec(*home.spec[: leaf.ndim])
        sharding = NamedSharding(home.mesh, spec)
        placed.append(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding))
    return jax.tree.unflatten(tree, placed)


def make_state(
    function: Callable[..., Any], arguments: Sequence[Any], homes: Sequence[Home]
) -> Any:
    """Call a function so that each leaf of its result is made in its sharding.

    Args:
        function: The user's initialisation; it is traced.
        arguments: What it is called with: small arrays and random keys, equal in all processes.
        homes: The sharding of each leaf of the result.

    Returns:
        What the function returns. A leaf that lies on other processes only has no data here.
    """
    leaves, tree = jax.tree.flatten(tuple(arguments))
    dtypes = [jax.typeof(leaf).dtype for leaf in leaves]
    is_key = list(map(_compat.is_key_type, dtypes))
    inputs = [
        np.asarray(_compat.key_data(leaf) if key else leaf)
        for leaf, key in zip(leaves, is_key, strict=True)
    ]

    def call(*inputs: Any) -> tuple[list[Any], Any]:
        typed = [
            _compat.wrap_keys(numbers, dtype) if key else numbers
            for numbers, dtype, key in zip(inputs, dtypes, is_key, strict=True)
        ]
        return jax.tree.flatten(function(*jax.tree.unflatten(tree, typed)))

    shapes = jax.eval_shape(function, *arguments)
    expected, out_tree = jax.tree.flatten(shapes)
    parts: list[_Part] = []
    for i, home in enumerate(homes):
        parts += _parts_of(i, numbers_of(expected[i]), home)
    by_mesh: dict[Any, list[int]] = {}
    for k, part in enumerate(parts):
        by_mesh.setdefault(part.home.mesh, []).append(k)
    made: dict[int, Any] = {}
    for mesh, of_mesh in by_mesh.items():
        if not mesh.local_devices:
            continue

        def make(*inputs: Any, of_mesh: Sequence[int] = of_mesh) -> list[Any]:
            results, _ = call(*inputs)
            return [parts[k].of(results[parts[k].leaf]) for k in of_mesh]

        results = jax.jit(make, out_shardings=[parts[k].home for k in of_mesh])(*inputs)
        # XLA:CPU aborts if programs with collectives queue up for more threads than it has.
        made.update(zip(of_mesh, jax.block_until_ready(results), strict=True))
    state: list[list[Any]] = [[] for _ in expected]
    for k, part in enumerate(parts):
        shape = part.shape
        if k not in made:
            made[k] = jax.make_array_from_single_device_arrays(
                shape.shape, part.home, [], dtype=shape.dtype
            )
        state[part.leaf].append(made[k])
    leaves = [
        StackedArray(home.cut.axis, arrays)
        if isinstance(home, StackedSharding)
        else _compat.wrap_keys(arrays[0], leaf.dtype)
        if _compat.holds_keys(leaf)
        else arrays[0]
        for leaf, home, arrays in zip(expected, homes, state, strict=True)
    ]
    return jax.tree.unflatten(out_tree, leaves)


@dataclass(frozen=True, slots=True)
class _Part:
    """An array that is made on the devices of one stage: a leaf of the state, or a piece of one."""

    leaf: int
    shape: jax.ShapeDtypeStruct
    home: NamedSharding
    index: tuple[slice, ...] | None = None
    """Where it is in the leaf."""

    def of(self, leaf: Any) -> Any:
        """The array, given the whole leaf."""
        if self.index is not None:
            return leaf[self.index]
        return _compat.key_data(leaf) if _compat.holds_keys(leaf) else leaf


def _parts_of(leaf: int, numbers: jax.ShapeDtypeStruct, home: Home) -> list[_Part]:
    if not isinstance(home, StackedSharding):
        return [_Part(leaf, numbers, home)]
    cut = home.cut
    shape = jax.ShapeDtypeStruct(cut.shape(numbers.shape), numbers.dtype)
    return [
        _Part(leaf, shape, piece, cut.slices(i, numbers.shape))
        for i, piece in enumerate(home.pieces)
    ]
