"""Rematerialization: backward computes values again instead of keeping them since forward.

It is a pass on graphs, so no other module has to know about it: the copies of the operators are
operators of backward, with their own strategies and prices, and the values that these copies read
are saved instead. `least_saved` finds what to compute again so that the fewest bytes are saved.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Hashable
from dataclasses import replace
from typing import Any

from autoshard.base.checks import of_class
from autoshard.errors import GraphError
from autoshard.graph.graph import Graph, verify
from autoshard.graph.graph_fields import Operator, Value
from autoshard.graph.lifetime import saved_activations


def rematerialize(graph: Graph, names: Collection[str]) -> Graph:
    """The graph in which later phases compute some saved activations again.

    Each is recomputed once in every later phase that needs it, just before its first reader there,
    from inputs, saved activations, and other recomputed values (Chen et al., "Training Deep Nets
    with Sublinear Memory Cost", 2016). To keep only the ends of segments, name all values between
    them.

    Args:
        graph: Verified.
        names: Results of operators of the first phase.

    Returns:
        A verified graph; the name of a recomputed value is the phase, `@` and the original name, as
        is that of the operator that computes it again.

    Raises:
        GraphError: one of the names is not a result of the first phase.

    Examples:
        >>> from autoshard.programs import mlp_step
        >>> graph = mlp_step(batch=8, width=4, hidden=16)
        >>> saved_activations(graph)
        ('x', 'einsum_0', 'gelu_1', 'einsum_2', 'mul_const_6')
        >>> saved_activations(rematerialize(graph, ["gelu_1"]))
        ('x', 'einsum_0', 'einsum_2', 'mul_const_6')
    """
    of_class(GraphError, "graph", graph, Graph, "as GraphBuilder and Graph.parse make it")
    _check_names("names", names)
    first = {name for op in graph.operators if op.phase == 0 for name in op.outputs}
    if unknown := [name for name in names if name not in first]:
        saved = (name for name in saved_activations(graph) if name in first)
        raise GraphError(
            "a recomputed value is a result of the first phase; got "
            f"{unknown[0]!r}, and later phases read of these {', '.join(saved)}"
        )
    values: dict[str, Value] = dict(graph.by_name)
    operators: list[Operator] = []
    again: dict[tuple[int, str], str] = {}

    def recompute(name: str, phase: int) -> str:
        """The name of a value in a phase; adds its operator first, if it is recomputed there."""
        if name not in names or phase == 0:
            return name
        if (phase, name) not in again:
            operator = graph.operators[graph.producers[name][0]]
            inputs = tuple(recompute(operand, phase) for operand in operator.inputs)
            prefix = f"{graph.phases[phase].name}@"
            for output in operator.outputs:
                again[phase, output] = prefix + output
                values[prefix + output] = replace(graph.value(output), name=prefix + output)
            outputs = tuple(again[phase, output] for output in operator.outputs)
            operators.append(
                replace(
                    operator,
                    name=prefix + operator.name,
                    inputs=inputs,
                    outputs=outputs,
                    phase=phase,
                )
            )
        return again[phase, name]

    for operator in graph.operators:
        inputs = tuple(recompute(name, operator.phase) for name in operator.inputs)
        operators.append(replace(operator, inputs=inputs))
    changed = replace(graph, values=tuple(values.values()), operators=tuple(operators))
    verify(changed)
    return changed


def least_saved(
    graph: Graph,
    repeatable: Collection[str],
    readers: Collection[str] | None = None,
    saved: Collection[str] = (),
) -> tuple[str, ...]:
    """What to compute again, so that later phases read the fewest bytes from the first one.

    A minimum cut between what is there anyhow and the values that `readers` read: of each path, one
    value is saved, and what follows it is computed again from there. Of several minimum cuts it is
    the last one, after which the least is computed again (Ford, Fulkerson, 1956; PyTorch's
    partitioner of forward and backward takes a minimum cut, too).

    Args:
        graph: Verified.
        repeatable: Operators of the first phase that may run again, by name.
        readers: Operators of later phases; by default all.
        saved: Values that are saved whatever else is.

    Returns:
        Names for `rematerialize`, in the order in which they are computed.

    Raises:
        GraphError: An argument is of another kind.

    Examples:
        >>> from autoshard.programs import mlp_step
        >>> graph = mlp_step(batch=8, width=4, hidden=16)
        >>> least_saved(graph, ["gelu_1"])
        ('gelu_1',)
        >>> least_saved(graph, ["einsum_0", "gelu_1"])  # 'x' is an input, which is there anyhow
        ('einsum_0', 'gelu_1')
    """
    of_class(GraphError, "graph", graph, Graph, "as GraphBuilder and Graph.parse make it")
    _check_names("repeatable", repeatable)
    _check_names("saved", saved)
    if readers is not None:
        _check_names("readers", readers)
        readers = frozenset(readers)
    repeatable, saved = frozenset(repeatable), frozenset(saved)
    first = {name: op for op in graph.operators if op.phase == 0 for name in op.outputs}
    wanted = {
        name
        for op in graph.operators
        if op.phase > 0 and (readers is None or op.name in readers)
        for name in op.inputs
        if name in first
    }
    cut = _Cut()
    todo, seen = [*wanted], set(wanted)
    for name in todo:  # the loop appends to this list
        op = first[name]
        n_bytes = 0 if name in saved else graph.value(name).n_bytes
        cut.add((name, "made"), (name, "there"), n_bytes)
        if name in wanted:
            cut.add((name, "there"), _END)
        if op.name not in repeatable:
            cut.add(_BEGIN, (name, "made"))
            continue
        for operand in dict.fromkeys(op.inputs):
            if operand in first:
                cut.add((operand, "there"), (name, "made"))
                if operand not in seen:
                    seen.add(operand)
                    todo.append(operand)
    after = cut.after()
    return tuple(name for name in first if (name, "made") in after)


def _check_names(argument: str, names: Any) -> None:
    is_some = isinstance(names, Collection) and not isinstance(names, str)
    if not is_some or not all(isinstance(name, str) for name in names):
        raise GraphError(
            f"{argument} is a collection of names, as ['gelu_1']; got {argument}={names!r}"
        )


_BEGIN, _END = "begin", "end"


class _Cut:
    """A directed graph with capacities, and its last minimum cut between `_BEGIN` and `_END`."""

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, float]] = defaultdict(dict)
        """By node, what may still flow to each neighbour."""

    def add(self, a: Hashable, b: Hashable, capacity: float = float("inf")) -> None:
        self._left[a][b] = capacity
        self._left[b].setdefault(a, 0)

    def after(self) -> set[Hashable]:
        """The nodes after the cut: those that lead to the end when no more can flow."""
        while path := self._path():
            flow = min(self._left[a][b] for a, b in path)
            for a, b in path:
                self._left[a][b] -= flow
                self._left[b][a] += flow
        after: set[Hashable] = {_END}
        todo = deque[Hashable](after)
        while todo:
            b = todo.popleft()
            for a in self._left[b]:
                if a not in after and self._left[a][b] > 0:
                    after.add(a)
                    todo.append(a)
        return after

    def _path(self) -> list[tuple[Hashable, Hashable]]:
        """The edges of a shortest path on which more can flow; none if there is none."""
        before: dict[Hashable, Hashable] = {_BEGIN: _BEGIN}
        todo = deque[Hashable](before)
        while todo and _END not in before:
            a = todo.popleft()
            for b, capacity in self._left[a].items():
                if capacity > 0 and b not in before:
                    before[b] = a
                    todo.append(b)
        if _END not in before:
            return []
        path: list[tuple[Hashable, Hashable]] = []
        node: Hashable = _END
        while node != _BEGIN:
            path.append((before[node], node))
            node = before[node]
        return path
