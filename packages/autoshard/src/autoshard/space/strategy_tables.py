"""Tables over an operator's strategies, cached by rule and mesh shape: specs, sizes, seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from costmodel import Device, MeshLinks, Product, operator_time
from numpy.typing import NDArray
from shardspec import Mesh, Spec

from autoshard.base.arrays import Array, frozen
from autoshard.base.checks import checked
from autoshard.graph.dim_divisors import Pieces, pieces_of_factors
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Operator, Value
from autoshard.graph.rule import Rule
from autoshard.space.arithmetic import arithmetic_dtype
from autoshard.space.conversion import SpecSet, spec_set
from autoshard.space.matrix_sizes import matrix_sizes
from autoshard.space.options import Options
from autoshard.space.permutations import SentValue, halved_factor, message_seconds, messages
from autoshard.space.strategy import (
    Strategy,
    enumerate_strategies,
    split_factors,
    stored_specs,
)


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The spec of one operand or result in each strategy of a node."""

    distinct: SpecSet
    index: NDArray[np.intp]
    """For each strategy: which of the distinct specs."""
    elements: Array
    """For each strategy: the number of elements of the largest shard."""


@dataclass(frozen=True, slots=True, eq=False)
class OperatorTable:
    """The strategies of a rule on a mesh, with all that does not depend on dtypes and devices."""

    strategies: tuple[Strategy, ...]
    operands: tuple[Column, ...]
    results: tuple[Column, ...]
    share: Array
    """For each strategy: the fraction of the work that the busiest device does; 1.0 if all devices
    repeat it."""
    messages: tuple[tuple[SentValue, ...], ...] | None
    """For each strategy: what devices send to each other while the operator runs; `None` if no
    strategy needs that."""
    sizes: Array | None
    """For each strategy: rows, columns and batch of the product of matrices that the operator is;
    `None` if it is none."""


@lru_cache(maxsize=4096)
def column(specs: tuple[Spec, ...], shape: tuple[int, ...], mesh_shape: tuple[int, ...]) -> Column:
    """The column of a value of this shape, whose spec in each strategy is given."""
    distinct = tuple(dict.fromkeys(specs))
    position = {spec: index for index, spec in enumerate(distinct)}
    index = np.array([position[spec] for spec in specs], dtype=np.intp)
    elements = np.array([float(largest_part(spec, shape, mesh_shape)) for spec in distinct])
    return Column(spec_set(distinct), frozen(index), frozen(elements[index]))


@lru_cache(maxsize=1 << 14)
def largest_part(spec: Spec, shape: tuple[int, ...], mesh_shape: tuple[int, ...]) -> int:
    """Elements of the largest shard of a tensor; uneven dims are padded to equal parts.

    Examples:
        >>> largest_part(Spec.parse("S0R"), (10, 2), (4,))
        6
    """
    parts = (math.prod(mesh_shape[e] for e in on if isinstance(e, int)) for on in spec.dims)
    return math.prod(-(-size // n) for size, n in zip(shape, parts, strict=True))


def table_of(
    graph: Graph, operator: Operator, mesh_shape: tuple[int, ...], options: Options
) -> OperatorTable:
    """The strategies of an operator of a graph that the options allow."""
    pieces: tuple[Pieces, ...] = ()
    if options.strided:
        names = operator.inputs + operator.outputs
        pieces = pieces_of_factors(operator.rule, [graph.pieces[name] for name in names])
    return operator_table(operator.rule, mesh_shape, options.uneven, options.strided, pieces)


def stored_specs_of(
    graph: Graph, name: str, mesh_shape: tuple[int, ...], options: Options
) -> tuple[Spec, ...]:
    """The specs in which a value of a graph may be stored under the options."""
    pieces = graph.pieces[name] if options.strided else ()
    return stored_specs(graph.value(name).shape, mesh_shape, options.uneven, pieces)


@lru_cache(maxsize=4096)
def operator_table(
    rule: Rule,
    mesh_shape: tuple[int, ...],
    uneven: bool = False,
    strided: bool = False,
    pieces: tuple[Pieces, ...] = (),
) -> OperatorTable:
    """The strategies of a rule as columns; see `enumerate_strategies`."""
    strategies = enumerate_strategies(rule, mesh_shape, uneven, strided, pieces)
    sides = (rule.operand_shapes, rule.result_shapes)
    operands, results = (
        tuple(
            column(tuple(specs), shape, mesh_shape)
            for specs, shape in zip(zip(*of_strategies, strict=True), shapes, strict=True)
        )
        for shapes, of_strategies in zip(
            sides,
            ([s.operand_specs for s in strategies], [s.result_specs for s in strategies]),
            strict=True,
        )
    )
    share = [work_share(rule, strategy, mesh_shape) for strategy in strategies]
    sent = tuple(messages(rule, strategy, mesh_shape) for strategy in strategies)
    sizes = [matrix_sizes(rule, strategy, mesh_shape) for strategy in strategies]
    return OperatorTable(
        strategies,
        operands,
        results,
        frozen(np.array(share, dtype=np.float64)),
        sent if any(sent) else None,
        None if None in sizes else frozen(np.array(sizes, dtype=np.float64)),
    )


@checked
def work_share(rule: Rule, strategy: Strategy, mesh_shape: tuple[int, ...]) -> float:
    """The fraction of an operator's FLOP that the busiest device does.

    Axes that split a factor divide the work; along the others all devices repeat it. Halves of a
    factor over opposite parts of one that rises balance it.

    Args:
        rule: The operator's rule.
        strategy: One of its strategies.
        mesh_shape: The sizes of the mesh's axes.

    Examples:
        >>> rule = Rule.parse("(a,b)->(a,b) {a=2 halves, b=8 rises}")
        >>> [work_share(rule, how, (4,)) for how in enumerate_strategies(rule, (4,))]
        [1.0, 0.25]
    """
    share, is_balanced = 1.0, halved_factor(rule, strategy, mesh_shape) is not None
    for factor, axes in split_factors(rule, strategy.mapping).items():
        n = math.prod(mesh_shape[axis] for axis in axes)
        one = rule.factors[factor]
        if one.kind != "whole":  # the second factor of a ring, which every device goes through
            share *= replace(one, rises=one.rises and not is_balanced).share(n)
    return share


def compute_seconds(
    operator: Operator,
    operands: list[Value],
    results: list[Value],
    device: Device,
    table: OperatorTable,
) -> Array:
    """Seconds of one run of an operator in each strategy: the roofline of one device.

    The FLOP are those of the busiest device; the bytes are those of the shards that it reads and
    writes, as often as the operator's `accesses` say.
    """
    values = operands + results
    itemsizes = tuple(float(value.itemsize) for value in values)
    launches = 1.0
    if operator.accesses is not None:
        launches = operator.accesses.launches
        times = operator.accesses.times
        itemsizes = tuple(size * n for size, n in zip(itemsizes, times, strict=True))
    dtype = arithmetic_dtype(operator.rule, tuple(value.dtype for value in values))
    itemsize = float(results[0].itemsize) if results else 0.0
    return _roofline(operator.flops, itemsizes, itemsize, dtype, launches, device, table)


def sent_seconds(
    graph: Graph, operator: Operator, mesh: Mesh, links: MeshLinks, table: OperatorTable
) -> Array | None:
    """Seconds of the messages of one run in each strategy; `None` if no strategy sends any."""
    if table.messages is None:
        return None
    return message_seconds(graph, operator, table.strategies, mesh, links)


@lru_cache(maxsize=4096)
def _roofline(
    flops: float,
    bytes_of_each: tuple[float, ...],
    result_itemsize: float,
    dtype: str,
    launches: float,
    device: Device,
    table: OperatorTable,
) -> Array:
    """`compute_seconds` by all that it depends on, so that repeated layers share one array."""
    n_bytes = np.zeros(len(table.share))
    for itemsize, part in zip(bytes_of_each, table.operands + table.results, strict=True):
        n_bytes += itemsize * part.elements
    if table.sizes is not None and device.products is not None:
        m, n, batch = table.sizes.T
        k = flops * table.share / np.maximum(2 * m * n * batch, 1.0)
        product = Product(m, n, k, batch, result_itemsize)
        arrays = (flops * table.share, n_bytes)
        return frozen(np.asarray(operator_time(*arrays, device, dtype, launches, product)))
    work = np.stack([flops * table.share, n_bytes], axis=1)
    pairs, inverse = np.unique(work, axis=0, return_inverse=True)
    times = np.array([operator_time(f, b, device, dtype, launches) for f, b in pairs.tolist()])
    return frozen(times[inverse.reshape(-1)])
