"""Coarse graphs: Rhino's cones, critical nodes and three levels of merging (Rhino 4.3, O2).

1. *Cones*. A cone root is an operator with several operands; every other operator joins the cone of
   the first root that it leads to (-> `cone_roots`). For each strategy of the root the others take
   what costs least inside the cone (-> `decided_by`).
2. *Segments*. Critical nodes are the contractions on the backbone: those whose earliest and latest
   time are equal if each operator takes as long as any other (-> `critical_operators`). Everything
   joins the critical node that it is nearest to, and follows from that one's strategy.
3. What is left, a strategy for each critical node, is near linear, and any `solve` takes it.

O3 is the whole graph, so nothing here. As in Rhino what leaves a cone or a segment does not count
when its inside is decided; that is what O2 loses. Of equally good insides the one is taken that
forbids least outside.

Departures: once there is a choice, insides are decided again, with what leaves them at what was
chosen there, and so on as long as it gains (see `staged`); this halves what a GPT on 2x4 takes.
Rhino decides a segment by an ILP, this eliminates it exactly. Rhino cuts segments by
time; here a weight's gradient and update are merged with the critical node that reads the weight,
not with whichever runs at the same time. Inputs and the copies that several operators read are in
no cone [decided inside one, they cost a GPT on 2x2 a fifth instead of a fiftieth]. What is computed
from nothing, such as a mask, joins nothing: it is never sent, so it must suit all who read it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from autoshard.base._native import core
from autoshard.base.arrays import Array
from autoshard.errors import InfeasibleError
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Operator
from autoshard.problem._arrays import arrays_of
from autoshard.problem.groups import Groups, each_alone, grouped
from autoshard.problem.problem import Problem
from autoshard.solvers.solve import solve

ENTRIES = 2_000_000
"""Of any table in the elimination of a cone or segment, 16 MB; a wider one is searched."""
TIE = 1e-9
"""Relative weight of what is forbidden outside: less than any difference in cost that matters."""


def coarse(
    graph: Graph,
    problem: Problem,
    operator_nodes: Sequence[int],
    around: Sequence[int] | None = None,
) -> Groups:
    """The groups of O2: one a critical node.

    Args:
        graph: Verified.
        problem: Of sharding it, with edges from producer to reader.
        operator_nodes: The node of each operator; several may have one, if they are tied.
        around: A choice that insides are decided again for; it stays one of what can be chosen.

    Returns:
        Groups whose choices are the critical nodes' strategies. A graph without any contraction is
        merged into cones only.
    """
    made_alone = {
        node
        for node, operator in zip(operator_nodes, graph.operators, strict=True)
        if graph.constants.issuperset(operator.outputs)
    }
    root_of = list(range(problem.n_nodes))
    for node, root in zip(operator_nodes, cone_roots(graph), strict=True):
        if node not in made_alone:
            root_of[node] = operator_nodes[root]
    # where operators are tied, what is a root of one may itself be in the cone of another
    root_of = [root if root_of[root] == root else node for node, root in enumerate(root_of)]
    cones = merge(problem, root_of, around)
    pivots = {cones.of[operator_nodes[index]] for index in critical_operators(graph)}
    if not pivots:
        return cones
    alone = {cones.of[node] for node in made_alone}
    merged = grouped(problem, cones)
    segments = nearest(merged, sorted(pivots), alone)
    chosen = None if around is None else [around[root] for root in dict.fromkeys(root_of)]
    return cones.then(merge(merged, segments, chosen))


def cone_roots(graph: Graph) -> list[int]:
    """Per operator the root of its cone: itself if it has several operands, or leads nowhere."""
    readers: list[list[int]] = [[] for _ in graph.operators]
    for index, operator in enumerate(graph.operators):
        for maker in _makers(graph, operator):
            readers[maker].append(index)
    roots = list(range(len(graph.operators)))
    for index in reversed(roots):
        if len(graph.operators[index].inputs) < 2 and readers[index]:
            roots[index] = roots[readers[index][0]]
    return roots


def critical_operators(graph: Graph) -> list[int]:
    """The contractions on a longest path: those that sum over a factor, with several operands."""
    operators = graph.operators
    makers = [_makers(graph, operator) for operator in operators]
    before = [0] * len(operators)
    after = [0] * len(operators)
    for index, found in enumerate(makers):
        before[index] = max((before[maker] + 1 for maker in found), default=0)
    for index in range(len(operators) - 1, -1, -1):
        for maker in makers[index]:
            after[maker] = max(after[maker], after[index] + 1)
    longest = max((b + a for b, a in zip(before, after, strict=True)), default=0)
    return [
        index
        for index, operator in enumerate(operators)
        if before[index] + after[index] == longest
        and len(operator.inputs) > 1
        and any(factor.kind == "reduce" for factor in operator.rule.factors)
    ]


def _makers(graph: Graph, operator: Operator) -> list[int]:
    """The operators that an operator reads from."""
    made = (graph.producers.get(name) for name in dict.fromkeys(operator.inputs))
    return list(dict.fromkeys(maker[0] for maker in made if maker is not None))


def nearest(problem: Problem, pivots: Sequence[int], alone: Set[int]) -> list[int]:
    """Per node the pivot with the fewest edges to it; itself if it is alone, or far from all."""
    around: list[list[int]] = [[] for _ in range(problem.n_nodes)]
    for i, j in problem.edges:
        around[i].append(j)
        around[j].append(i)
    found = {pivot: pivot for pivot in pivots}
    waiting = deque(pivots)
    while waiting:
        node = waiting.popleft()
        for other in around[node]:
            if other not in found and other not in alone:
                found[other] = found[node]
                waiting.append(other)
    return [found.get(node, node) for node in range(problem.n_nodes)]


def merge(problem: Problem, root_of: Sequence[int], around: Sequence[int] | None = None) -> Groups:
    """The groups in which a root decides, numbered in the order of their first nodes.

    Args:
        problem: Of the nodes.
        root_of: The root of each node.
        around: A choice of all nodes, so that what leaves a group counts at what others choose
            there; a root that stays with its own strategy then keeps its group as it is.
    """
    members: dict[int, list[int]] = {}
    for node, root in enumerate(root_of):
        members.setdefault(root, []).append(node)
    number = {root: index for index, root in enumerate(members)}
    of = tuple(number[root] for root in root_of)
    strategies = list(each_alone(problem).strategies)
    outside = _forbidden_outside(problem, of)
    paid = None if around is None else _paid_outside(problem, of, around)
    inside: list[list[int]] = [[] for _ in members]
    for edge, (i, j) in enumerate(problem.edges):
        if of[i] == of[j]:
            inside[of[i]].append(edge)
    known: dict[bytes, list[NDArray[np.intp]]] = {}
    for root, nodes in members.items():
        if len(nodes) == 1:
            continue
        part = _part(problem, nodes, inside[number[root]], outside, paid)
        key = _digest(part, nodes.index(root))
        if key not in known:  # repeated layers are decided once
            known[key] = list(decided_by(part, nodes.index(root)).T)
        for node, chosen in zip(nodes, known[key], strict=True):
            strategies[node] = chosen
            if around is not None:
                strategies[node] = chosen.copy()
                strategies[node][around[root]] = around[node]
    return Groups(of, tuple(strategies))


def _forbidden_outside(problem: Problem, of: Sequence[int]) -> list[Array]:
    """Per node and strategy: of the pairs with nodes of other groups, the part that is forbidden.

    Summed over edges. A strategy that forbids all that a neighbour could do counts most.
    """
    found = [np.zeros(len(cost)) for cost in problem.node_costs]
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        if of[i] != of[j]:
            forbidden = np.isinf(table)
            found[i] += forbidden.mean(axis=1)
            found[j] += forbidden.mean(axis=0)
    return found


def _paid_outside(problem: Problem, of: Sequence[int], around: Sequence[int]) -> list[Array]:
    """Per node and strategy: its edges with other groups, these being as they are."""
    found = [np.zeros(len(cost)) for cost in problem.node_costs]
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        if of[i] != of[j]:
            for node, costs in ((i, table[:, around[j]]), (j, table[around[i]])):
                finite = np.isfinite(costs)
                # others may change, too, so what is forbidden now is only as dear as it gets
                found[node] += np.where(finite, costs, costs.max(where=finite, initial=0.0))
    return found


def _part(
    problem: Problem,
    nodes: Sequence[int],
    edges: Sequence[int],
    outside: Sequence[Array],
    paid: Sequence[Array] | None,
) -> Problem:
    """Some nodes and the edges between them, with ties broken by what they forbid outside."""
    number = {node: index for index, node in enumerate(nodes)}
    costs = [problem.node_costs[node] for node in nodes]
    tables = [problem.edge_costs[edge] for edge in edges]
    dearest = max(float(np.max(t, where=np.isfinite(t), initial=0.0)) for t in costs + tables)
    return Problem(
        tuple(
            cost + TIE * (dearest or 1.0) * outside[node] + (0.0 if paid is None else paid[node])
            for node, cost in zip(nodes, costs, strict=True)
        ),
        tuple((number[problem.edges[e][0]], number[problem.edges[e][1]]) for e in edges),
        tuple(tables),
        tuple(np.zeros(len(cost)) for cost in costs),
        ((0, 0),) * len(nodes),
    )


def _digest(problem: Problem, root: int) -> bytes:
    found = hashlib.blake2b(
        repr((root, problem.edges, [len(c) for c in problem.node_costs])).encode()
    )
    for table in problem.node_costs + problem.edge_costs:
        found.update(table.tobytes())
    return found.digest()


def decided_by(problem: Problem, root: int) -> NDArray[np.intp]:
    """What every node does for each strategy of one of them.

    Args:
        problem: Its memory is ignored.
        root: The node that decides.

    Returns:
        Shape (strategies of `root`, nodes): the cheapest choice for each.
    """
    found = core.decided_by(arrays_of(problem), root, ENTRIES)
    return _searched(problem, root) if found is None else found.astype(np.intp)


def _searched(problem: Problem, root: int) -> NDArray[np.intp]:
    """The same by a search for each strategy of the root."""
    found = []
    for strategy, cost in enumerate(problem.node_costs[root]):
        only = np.full(len(problem.node_costs[root]), np.inf)
        only[strategy] = cost
        costs = (*problem.node_costs[:root], only, *problem.node_costs[root + 1 :])
        one = Problem(costs, problem.edges, problem.edge_costs, problem.usages, problem.intervals)
        try:
            found.append(solve(one, "local_search", steps=1).choice)
        except InfeasibleError:  # then it does not matter
            found.append((*(0,) * root, strategy, *(0,) * (problem.n_nodes - root - 1)))
    return np.array(found, dtype=np.intp)
