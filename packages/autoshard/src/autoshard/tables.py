"""Per rule and mesh shape, once: its strategies' specs, and how the work is shared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from costmodel import Device, operator_time
from numpy.typing import NDArray
from shardspec import Spec

from autoshard.conversion import SpecSet, spec_set
from autoshard.graph import Operator, Value
from autoshard.problem import Array
from autoshard.rule import Rule
from autoshard.strategy import Strategy, enumerate_strategies


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One operand's or result's spec in each strategy of a node."""

    distinct: SpecSet
    index: NDArray[np.intp]
    """Per strategy: which of the distinct specs."""
    shards: Array
    """Per strategy: into how many parts the value is split."""


@dataclass(frozen=True, slots=True, eq=False)
class OperatorTable:
    """Everything about a rule's strategies that does not depend on shapes or costs."""

    strategies: tuple[Strategy, ...]
    operands: tuple[Column, ...]
    results: tuple[Column, ...]
    workers: Array
    """Per strategy: the devices that share the work; the others repeat it."""


def column(specs: Sequence[Spec], mesh_shape: tuple[int, ...]) -> Column:
    """The column of these specs, one a strategy."""
    distinct = tuple(dict.fromkeys(specs))
    position = {spec: index for index, spec in enumerate(distinct)}
    index = np.array([position[spec] for spec in specs], dtype=np.intp)
    shards = np.array([math.prod(mesh_shape[axis] for axis in spec.axes) for spec in distinct])
    return Column(spec_set(distinct), index, shards[index].astype(np.float64))


@lru_cache(maxsize=4096)
def operator_table(rule: Rule, mesh_shape: tuple[int, ...]) -> OperatorTable:
    """The strategies of a rule as columns."""
    strategies = enumerate_strategies(rule, mesh_shape)
    workers = [
        math.prod(
            size
            for size, target in zip(mesh_shape, strategy.mapping, strict=True)
            if isinstance(target, int)
        )
        for strategy in strategies
    ]
    return OperatorTable(
        strategies,
        tuple(
            column([strategy.operand_specs[i] for strategy in strategies], mesh_shape)
            for i in range(len(rule.operands))
        ),
        tuple(
            column([strategy.result_specs[i] for strategy in strategies], mesh_shape)
            for i in range(len(rule.results))
        ),
        np.array(workers, dtype=np.float64),
    )


def compute_seconds(
    operator: Operator,
    operands: list[Value],
    results: list[Value],
    device: Device,
    table: OperatorTable,
) -> Array:
    """One run of an operator on one device, per strategy: a roofline over its part.

    The FLOP are shared by the devices that an axis of a factor gives work to; the bytes are those
    of the shards that the device reads and writes.
    """
    flops = operator.flops / table.workers
    n_bytes = np.zeros_like(flops)
    for value, part in zip(operands + results, table.operands + table.results, strict=True):
        n_bytes += value.n_bytes / part.shards
    dtype = _arithmetic_dtype(operands + results)
    pairs, inverse = np.unique(np.stack([flops, n_bytes], axis=1), axis=0, return_inverse=True)
    times = np.array([operator_time(f, b, device, dtype) for f, b in pairs.tolist()])
    return times[inverse.reshape(-1)]


def _arithmetic_dtype(values: list[Value]) -> str:
    """The dtype whose rate an operator runs at: its widest floating-point one, if it has any."""
    floating = [value for value in values if "float" in value.dtype or "complex" in value.dtype]
    return max(floating or values, key=lambda value: value.itemsize).dtype
