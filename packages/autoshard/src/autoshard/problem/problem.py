"""The problem that solvers see: a choice for each node, costs of nodes and of pairs, and memory.

Minimise `sum_i node_costs[i][s_i] + sum_(i,j) edge_costs[i,j][s_i, s_j]` over one strategy `s_i`
for each node (Alpa Eq. 1), such that at every time the usages of the nodes alive then stay within
the limit. A problem knows neither operators nor meshes. It is the problem of the IOPDDL contest
(ASPLOS 2025), whose JSON it reads and writes.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.base.arrays import Array, array, arrays, listed, pairs, shown
from autoshard.errors import ProblemError

FORBIDDEN = 10**18
"""The number that means infinity in the JSON (google/iopddl writes 10**18 for a forbidden pair)."""

LAST_TIME = 2**62
"""The largest time of an interval: sums and differences of two times fit in 64 bits."""
EDGE = "an edge joins two nodes, given by their numbers"
INTERVAL = "an interval is two whole numbers, from and to"


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Node costs, edge costs and memory; infinite costs forbid a strategy or a pair.

    Any nesting of numbers is accepted as an array, and is kept as an array of float64.

    Raises:
        ProblemError: a field does not hold numbers, the fields do not fit together, or finite costs
            or usages could add up to infinity.
    """

    node_costs: tuple[Array, ...]
    """For each node, shape (strategies,)."""
    edges: tuple[tuple[int, int], ...]
    """Pairs of different nodes; the same pair may occur several times."""
    edge_costs: tuple[Array, ...]
    """For each edge (i, j), shape (strategies of i, strategies of j)."""
    usages: tuple[Array, ...]
    """For each node, shape (strategies,): what it uses while it is alive, >= 0."""
    intervals: tuple[tuple[int, int], ...]
    """For each node [from, to): when it is alive. If to <= from, it is never alive and uses
    nothing."""
    usage_limit: float | None = None
    """What all nodes alive at one time may use together; `None` is no limit. Sums of whole numbers
    are exact; sums of fractions may exceed the limit by their rounding."""

    def __post_init__(self) -> None:
        for name, of in (("node_costs", "node"), ("edge_costs", "edge"), ("usages", "node")):
            object.__setattr__(self, name, arrays(listed(getattr(self, name), name), name, of))
        for name, rule in (("edges", EDGE), ("intervals", INTERVAL)):
            object.__setattr__(self, name, pairs(listed(getattr(self, name), name), rule))
        for problem in _problems(self):
            raise ProblemError(problem)

    @property
    def n_nodes(self) -> int:
        """The number of nodes, each of which takes one strategy."""
        return len(self.node_costs)

    def to_json(self) -> str:
        """The problem as IOPDDL JSON; costs that are not whole numbers are written as fractions."""
        nodes = {
            "intervals": [list(interval) for interval in self.intervals],
            "costs": [_to_numbers(np.minimum(cost, FORBIDDEN)) for cost in self.node_costs],
            "usages": [_to_numbers(usage) for usage in self.usages],
        }
        edges = {
            "nodes": [list(edge) for edge in self.edges],
            "costs": [_to_numbers(np.minimum(cost, FORBIDDEN).ravel()) for cost in self.edge_costs],
        }
        problem: dict[str, Any] = {"nodes": nodes, "edges": edges}
        if self.usage_limit is not None and self.usage_limit < math.inf:
            (problem["usage_limit"],) = _to_numbers(np.array([float(self.usage_limit)]))
        return json.dumps({"problem": problem})

    @classmethod
    def from_file(cls, path: str | Path) -> Problem:
        """Read a file of IOPDDL JSON, gzipped or not; see `from_json`.

        Raises:
            ProblemError: as `from_json`, or the file is not text, or is truncated.
            OSError: the file cannot be read.
        """
        content = Path(path).read_bytes()
        try:
            if content.startswith(b"\x1f\x8b"):  # every gzip file begins with these bytes
                content = gzip.decompress(content)
            text = content.decode()
        except (EOFError, zlib.error, UnicodeDecodeError, gzip.BadGzipFile) as error:
            raise ProblemError(
                f"a problem is a file of JSON, gzipped or not; got {str(path)!r}: {error}"
            ) from error
        return cls.from_json(text)

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """Read IOPDDL JSON; costs of 10**18 and more are forbidden.

        Raises:
            ProblemError: the text lacks a field, an edge does not join two nodes, or shapes differ.
        """
        try:
            problem = json.loads(text)["problem"]
            nodes, edges = problem["nodes"], problem["edges"]
            node_costs = [_costs(cost, "node", n) for n, cost in enumerate(nodes["costs"])]
            usages, intervals = tuple(nodes["usages"]), tuple(nodes["intervals"])
            joined, flat = pairs(edges["nodes"], EDGE), list(edges["costs"])
            limit = problem.get("usage_limit")
        except ProblemError:
            raise
        except RecursionError as error:
            raise ProblemError(
                "IOPDDL JSON is nested five deep; got brackets in brackets, deeper than can be read"
            ) from error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ProblemError(
                "IOPDDL JSON has problem.nodes.{intervals,costs,usages} and "
                f"problem.edges.{{nodes,costs}}; got {type(error).__name__}: {error}"
            ) from error
        if len(joined) != len(flat):
            raise ProblemError(f"every edge has costs; got {len(joined)} and {len(flat)}")
        kept, costs = [], []
        for place, (i, j) in enumerate(joined):
            table = _costs(flat[place], "edge", place)
            if not (0 <= i < len(node_costs) and 0 <= j < len(node_costs)):
                raise ProblemError(
                    f"edge ({i}, {j}) does not fit its nodes: they are 0 to {len(node_costs) - 1}"
                )
            shape = (node_costs[i].size, node_costs[j].size)
            if table.size != math.prod(shape):
                raise ProblemError(
                    f"edge ({i}, {j}) does not fit its nodes: {table.size} costs for "
                    f"{shape[0]} and {shape[1]} strategies"
                )
            table = table.reshape(shape)
            if i == j:  # an edge of a node with itself is a cost of the node
                node_costs[i] = node_costs[i] + table.diagonal()
            else:
                kept.append((i, j))
                costs.append(table)
        return cls(tuple(node_costs), tuple(kept), tuple(costs), usages, intervals, limit)


def _problems(problem: Problem) -> Iterator[str]:
    """Yield a sentence for each way in which the fields of a problem do not fit together."""
    n = problem.n_nodes
    if not n == len(problem.usages) == len(problem.intervals):
        yield (
            f"every node has costs, usages and an interval; got {n}, {len(problem.usages)} and "
            f"{len(problem.intervals)}"
        )
        return
    # all numbers are checked at once first; single arrays are searched only if that fails
    costs, used = _flat(problem.node_costs + problem.edge_costs), _flat(problem.usages)
    are_good = costs.min() > -math.inf and used.min() >= 0.0 and used.max() < math.inf
    for node, (cost, usage) in enumerate(zip(problem.node_costs, problem.usages, strict=True)):
        if cost.ndim != 1 or cost.shape != usage.shape or not cost.size:
            yield (
                "a node has at least one strategy and a usage for each; node "
                f"{node} has costs of shape {cost.shape} and usages of shape {usage.shape}"
            )
        elif not are_good and not (
            cost.min() > -math.inf and usage.min() >= 0.0 and usage.max() < math.inf
        ):
            yield (
                "costs are numbers or inf and usages are finite and >= 0; node "
                f"{node} has costs {shown(cost)} and usages {shown(usage)}"
            )
    every = [*chain.from_iterable(problem.intervals), 0]
    if max(every) > LAST_TIME or min(every) < -LAST_TIME:
        for node, (first, last) in enumerate(problem.intervals):
            if max(abs(first), abs(last)) > LAST_TIME:
                yield f"times are -2**62 to 2**62; node {node} has the interval ({first}, {last})"
    if len(problem.edges) != len(problem.edge_costs):
        yield f"every edge has costs; got {len(problem.edges)} and {len(problem.edge_costs)}"
    sizes = [len(cost) for cost in problem.node_costs]
    for (i, j), cost in zip(problem.edges, problem.edge_costs, strict=False):
        if i == j or not (0 <= i < n and 0 <= j < n):
            yield f"an edge joins two different nodes of {n}; got ({i}, {j})"
        elif cost.shape != (sizes[i], sizes[j]):
            yield (
                f"an edge's costs have a row for each strategy of its first node; edge ({i}, {j}) "
                f"has shape {cost.shape} for {sizes[i]} and {sizes[j]} strategies"
            )
        elif not are_good and not cost.min(initial=math.inf) > -math.inf:
            yield f"costs are numbers or inf; edge ({i}, {j}) has {shown(cost)}"
    limit = problem.usage_limit
    if not (limit is None or (isinstance(limit, Real) and _is_number(limit))):
        yield f"a usage limit is a number, or None for no limit; got usage_limit={shown(limit)}"
    n_costs = n + len(problem.edge_costs)
    for what, entries, times in (("costs", costs, n_costs), ("usages", used, n)):
        if math.isinf(_most(entries, times)):
            yield (
                f"the largest of the {what}, as many times as there are nodes and edges, is below "
                "1.8e308, so that sums are numbers; give them in a larger unit, and inf for what "
                "is forbidden"
            )


def _most(entries: Array, times: int) -> float:
    """An upper bound on the magnitude of any sum of `times` finite entries."""
    return times * float(np.abs(entries).max(where=np.isfinite(entries), initial=0.0))


def equal_choices(n: int) -> Array:
    """The costs of an edge that forces two nodes of `n` strategies to take the same one."""
    table = np.full((n, n), math.inf)
    np.fill_diagonal(table, 0.0)
    return table


def _flat(tables: tuple[Array, ...]) -> Array:
    """The entries of all distinct arrays, in one array: repeated layers share tables."""
    distinct = {id(table): table for table in tables}
    flat = np.concatenate([table.ravel() for table in distinct.values()] or [np.zeros(0)])
    return flat if flat.size else np.zeros(1)


def _is_number(value: Real) -> bool:
    try:
        return not math.isnan(float(value))
    except OverflowError:  # an int beyond all floats
        return False


def _costs(values: object, of: str, place: int) -> Array:
    """Costs from the JSON, with `FORBIDDEN` and more as infinity."""
    costs = array(values, "costs", of, place)
    return np.where(costs >= FORBIDDEN, np.inf, costs)


def _to_numbers(values: Array) -> list[float | int]:
    return [int(value) if value.is_integer() else value for value in values.tolist()]
