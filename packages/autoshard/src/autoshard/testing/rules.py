"""A checker of rules: compares what an operator computes on shards with what it computes whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from shardspec import Layout, Mesh, assemble, shard

from autoshard.graph.rule import Rule
from autoshard.space.strategy import Strategy, enumerate_strategies

Array = NDArray[Any]
Index = tuple[NDArray[np.intp], ...]
"""For each dim, the indices of the whole tensor that a device's shard holds."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of an operator that one device runs: the indices of its shards."""

    operands: tuple[Index, ...]
    results: tuple[Index, ...]

    def shape(self, result: int = 0) -> tuple[int, ...]:
        """The shape of the shard of a result that the device has to compute."""
        return tuple(map(len, self.results[result]))

    def counts(self, *dims: tuple[int, int]) -> bool:
        """Whether this device is the first along these (operand, dim), so that it adds summands."""
        return all(self.operands[operand][dim][0] == 0 for operand, dim in dims)


Run = Callable[[list[Array], Part], list[Array]]
"""(shards of the operands, the part that they are) -> shards of the results, in numpy."""


def meshes(max_axes: int = 3) -> st.SearchStrategy[Mesh]:
    """Small meshes of one to three axes, some of size 1, some of a prime size."""
    shapes = [(2,), (3,), (4,), (2, 2), (1, 2), (2, 1), (2, 3), (2, 2, 2)]
    return st.sampled_from([s for s in shapes if len(s) <= max_axes]).map(
        lambda shape: Mesh(shape, ("x", "y", "z")[: len(shape)])
    )


MESHES = (Mesh((2,), ("x",)), Mesh((2, 3), ("x", "y")))


def check_rule(
    rule: Rule,
    run: Run,
    *,
    operands: Sequence[Array] | None = None,
    meshes: Iterable[Mesh] = MESHES,
    uneven: bool = False,
    strided: bool = False,
    seed: int = 0,
) -> None:
    """Run an operator in every strategy that its rule allows, and compare with running it whole.

    Each device gets the shards that the strategy's specs give it; the addends of partial sums are
    drawn at random. The results of all devices are assembled as the results' specs say.

    Args:
        rule: The operator's rule.
        run: The operator in numpy, on shards.
        operands: The whole operands; by default small integers, whose sums are exact in any order.
        meshes: The meshes; every strategy on each of them is run.
        uneven: Whether to include strategies that pad; the program does not see the padding.
        strided: Whether to include strategies with strided shards.
        seed: Seed of the integers and of the addends.

    Raises:
        AssertionError: a strategy computes something else, or not a shard of the result.
        ShardsError: replicas of a result differ.
    """
    for mesh in meshes:
        for strategy in enumerate_strategies(rule, mesh.shape, uneven, strided):
            check_strategy(rule, run, mesh, strategy, operands=operands, seed=seed)


def check_strategy(
    rule: Rule,
    run: Run,
    mesh: Mesh,
    strategy: Strategy,
    *,
    operands: Sequence[Array] | None = None,
    seed: int = 0,
) -> None:
    """`check_rule` for one strategy on one mesh."""
    if operands is None:
        rng = np.random.default_rng(seed)
        operands = [rng.integers(-9, 10, shape) for shape in rule.operand_shapes]
    expected = run(list(operands), _everything(rule))
    sources = _layouts(rule.operand_shapes, mesh, strategy.operand_specs)
    targets = _layouts(rule.result_shapes, mesh, strategy.result_specs)
    shards = [shard(layout, v, seed=seed) for layout, v in zip(sources, operands, strict=True)]
    parts: list[dict[int, Array]] = [{} for _ in targets]
    for device in mesh.device_ids:
        part = Part(
            tuple(layout.indices(device) for layout in sources),
            tuple(layout.indices(device) for layout in targets),
        )
        held = [
            shard_of[device][tuple(slice(len(i)) for i in index)]
            for shard_of, index in zip(shards, part.operands, strict=True)
        ]
        for position, result in enumerate(run(held, part)):
            parts[position][device] = _padded(result, targets[position].local_shape(device))
    for position, layout in enumerate(targets):
        actual = assemble(layout, parts[position])
        message = f"result {position} of '{rule}' under {strategy} on {mesh.shape}"
        if actual.dtype.kind in "fc":
            # sums in a different order differ in their last digits
            np.testing.assert_allclose(actual, expected[position], 1e-9, 1e-9, err_msg=message)
        else:
            np.testing.assert_array_equal(actual, expected[position], err_msg=message)


def _padded(result: Array, shape: tuple[int, ...]) -> Array:
    """A shard, padded to the shape that an uneven layout gives it; the padding does not matter.

    Raises:
        AssertionError: the result is not a shard at all, as when a rule splits a dim that must not
            be split.
    """
    result = np.asarray(result)
    assert result.ndim == len(shape), f"a shard has shape {shape}; got {result.shape}"
    assert all(n <= m for n, m in zip(result.shape, shape, strict=True)), (result.shape, shape)
    padded = np.zeros(shape, result.dtype)
    padded[tuple(map(slice, result.shape))] = result
    return padded


def _everything(rule: Rule) -> Part:
    def index(shape: tuple[int, ...]) -> Index:
        return tuple(np.arange(size) for size in shape)

    return Part(tuple(map(index, rule.operand_shapes)), tuple(map(index, rule.result_shapes)))


def _layouts(shapes: tuple[tuple[int, ...], ...], mesh: Mesh, specs: Sequence[Any]) -> list[Layout]:
    return [Layout(shape, mesh, spec) for shape, spec in zip(shapes, specs, strict=True)]
