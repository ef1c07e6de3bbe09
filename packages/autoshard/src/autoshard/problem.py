"""The problem that solvers see: a choice for each node, costs of nodes and of pairs, and memory.

Minimise `sum_i node_costs[i][s_i] + sum_(i,j) edge_costs[i,j][s_i, s_j]` over one strategy `s_i` a
node (Alpa Eq. 1), such that at every time the usages of the nodes alive then stay within the limit.
It knows neither operators nor meshes, and is the IOPDDL contest's problem (ASPLOS 2025), whose JSON
it reads and writes.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import ProblemError

Array = NDArray[np.float64]

FORBIDDEN = 10**18
"""What stands for infinity in the JSON (google/iopddl writes 10**18 for a forbidden pair)."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Node costs, edge costs and memory; infinite costs forbid a strategy or a pair."""

    node_costs: tuple[Array, ...]
    """Per node, shape (strategies,)."""
    edges: tuple[tuple[int, int], ...]
    """Pairs of different nodes; a pair may repeat."""
    edge_costs: tuple[Array, ...]
    """Per edge (i, j), shape (strategies of i, strategies of j)."""
    usages: tuple[Array, ...]
    """Per node, shape (strategies,): what it uses while it is alive, >= 0."""
    intervals: tuple[tuple[int, int], ...]
    """Per node [from, to): when it is alive; empty means it uses nothing."""
    usage_limit: float | None = None
    """What all nodes alive at one time may use together; `None` is no limit."""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ProblemError(problem)

    @property
    def n_nodes(self) -> int:
        """How many choices there are to make."""
        return len(self.node_costs)

    def to_json(self) -> str:
        """The problem as IOPDDL JSON. Costs that are not whole numbers are written as they are."""
        nodes = {
            "intervals": [list(interval) for interval in self.intervals],
            "costs": [_to_numbers(cost) for cost in self.node_costs],
            "usages": [_to_numbers(usage) for usage in self.usages],
        }
        edges = {
            "nodes": [list(edge) for edge in self.edges],
            "costs": [_to_numbers(cost.ravel()) for cost in self.edge_costs],
        }
        problem: dict[str, Any] = {"nodes": nodes, "edges": edges}
        if self.usage_limit is not None:
            problem["usage_limit"] = _to_numbers(np.array([float(self.usage_limit)]))[0]
        return json.dumps({"problem": problem})

    @classmethod
    def from_file(cls, path: str | Path) -> Problem:
        """Read a file of IOPDDL JSON, gzipped or not; see `from_json`.

        Raises:
            ProblemError: also if it is no text, or ends before it should.
            OSError: the file cannot be read.
        """
        content = Path(path).read_bytes()
        try:
            if content.startswith(b"\x1f\x8b"):  # what every gzip file begins with
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
            node_costs = [_from_numbers(cost) for cost in nodes["costs"]]
            usages = tuple(np.array(usage, dtype=np.float64) for usage in nodes["usages"])
            intervals = tuple((int(first), int(last)) for first, last in nodes["intervals"])
            pairs, flat = list(edges["nodes"]), list(edges["costs"])
        except (KeyError, TypeError, ValueError) as error:
            raise ProblemError(
                "IOPDDL JSON has problem.nodes.{intervals,costs,usages} and "
                f"problem.edges.{{nodes,costs}}; got {type(error).__name__}: {error}"
            ) from error
        kept, costs = [], []
        for pair, cost in zip(pairs, flat, strict=True):
            if len(pair) != 2:
                raise ProblemError(f"an edge joins two nodes; got nodes {pair}")
            i, j = pair
            try:
                table = _from_numbers(cost).reshape(len(node_costs[i]), len(node_costs[j]))
            except (IndexError, ValueError) as error:
                raise ProblemError(f"edge {pair} does not fit its nodes: {error}") from error
            if i == j:  # an edge of a node with itself is a cost of the node
                node_costs[i] = node_costs[i] + table.diagonal()
            else:
                kept.append((i, j))
                costs.append(table)
        return cls(
            tuple(node_costs),
            tuple(kept),
            tuple(costs),
            usages,
            intervals,
            problem.get("usage_limit"),
        )


def _problems(problem: Problem) -> Iterator[str]:
    """Each misfit of a problem's parts, as a sentence."""
    n = problem.n_nodes
    if not n == len(problem.usages) == len(problem.intervals):
        yield (
            f"every node has costs, usages and an interval; got {n}, {len(problem.usages)} and "
            f"{len(problem.intervals)}"
        )
        return
    for node, (cost, usage) in enumerate(zip(problem.node_costs, problem.usages, strict=True)):
        if cost.ndim != 1 or cost.shape != usage.shape or not cost.size:
            yield (
                "a node has at least one strategy and a usage for each; node "
                f"{node} has costs of shape {cost.shape} and usages of shape {usage.shape}"
            )
        elif np.isnan(cost).any() or not np.isfinite(usage).all() or (usage < 0).any():
            yield f"costs are numbers or inf and usages are finite and >= 0; see node {node}"
    if len(problem.edges) != len(problem.edge_costs):
        yield f"every edge has costs; got {len(problem.edges)} and {len(problem.edge_costs)}"
    for (i, j), cost in zip(problem.edges, problem.edge_costs, strict=False):
        if i == j or not (0 <= i < n and 0 <= j < n):
            yield f"an edge joins two different nodes of {n}; got ({i}, {j})"
        elif cost.shape != (len(problem.node_costs[i]), len(problem.node_costs[j])):
            yield (
                f"an edge's costs have a row for each strategy of its first node; edge ({i}, {j}) "
                f"has shape {cost.shape} for {len(problem.node_costs[i])} and "
                f"{len(problem.node_costs[j])} strategies"
            )


def _to_numbers(values: Array) -> list[float | int]:
    return [
        FORBIDDEN if value >= FORBIDDEN else int(value) if value.is_integer() else value
        for value in values.tolist()
    ]


def _from_numbers(numbers: list[float]) -> Array:
    values = np.array(numbers, dtype=np.float64)
    return np.where(values >= FORBIDDEN, np.inf, values)
