"""Coarse graphs: Rhino's cones, critical nodes and three levels of merging (Rhino 4.3, O2).

1. *Cones*. A cone root is an operator with several operands; every other operator joins the cone of
   the first root that it leads to (-> `cone_roots`). For each strategy of the root, the others take
   the strategies that cost least inside the cone (-> `decided_by`).
2. *Segments*. Critical nodes are the contractions on the backbone: those whose earliest and latest
   time are equal if all operators take equally long (-> `critical_operators`). Everything else
   joins the critical node that is nearest, and its strategy follows from that node's.
3. What remains is a strategy for each critical node. This problem is almost a chain, and any method
   of `solve` can solve it.

O3 is the whole graph, so this module does nothing for it. As in Rhino, the edges that leave a cone
or a segment do not count when its inside is decided; this is the loss of quality of O2. Of equally
good insides, the one that forbids the least outside is taken.

Departures from Rhino:

- Once there is a choice, the insides are decided again, with the edges that leave them at the
  strategies chosen outside, and so on as long as that helps (see `staged`). This halves the cost of
  a GPT on 2x4.
- Rhino decides a segment by an ILP; here it is eliminated exactly.
- Rhino cuts segments by time; here a weight's gradient and update are merged with the critical node
  that reads the weight, not with the one that runs at the same time.
- Inputs, and copies that several operators read, are in no cone [deciding them inside of cones
  costs a GPT on 2x2 a fifth, instead of a fiftieth].
- Values that depend on no input, such as a mask, join no group: they are never sent, so their
  layout has to suit all their readers.
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
"""The most entries of a table in the elimination of a cone or segment, 16 MB; if it would need a
larger one, it is searched instead."""
TIE = 1e-9
"""Relative weight of strategies forbidden outside: less than any cost difference that matters."""


def coarse(
    graph: Graph,
    problem: Problem,
    operator_nodes: Sequence[int],
    around: Sequence[int] | None = None,
) -> Groups:
    """The groups of O2, one for each critical node.

    Args:
        graph: Verified.
        problem: The problem of sharding the graph, with edges from producer to reader.
        operator_nodes: The node of each operator; tied operators may share one.
        around: A choice for which the insides are decided again; it remains possible in the groups.

    Returns:
        Groups whose choices are the strategies of the critical nodes. A graph without contractions
        is merged into cones only.
    """
    constants = {
        node
        for node, operator in zip(operator_nodes, graph.operators, strict=True)
        if graph.constants.issuperset(operator.outputs)
    }
    root_of = list(range(problem.n_nodes))
    for node, root in zip(operator_nodes, cone_roots(graph), strict=True):
        if node not in constants:
            root_of[node] = operator_nodes[root]
    # if operators are tied, the root of one may itself be in the cone of another
    root_of = [root if root_of[root] == root else node for node, root in enumerate(root_of)]
    cones = merge(problem, root_of, around)
    pivots = {cones.of[operator_nodes[index]] for index in critical_operators(graph)}
    if not pivots:
        return cones
    alone = {cones.of[node] for node in constants}
    merged = grouped(problem, cones)
    segments = nearest(merged, sorted(pivots), alone)
    chosen = None if around is None else [around[root] for root in dict.fromkeys(root_of)]
    return cones.then(merge(merged, segments, chosen))


def cone_roots(graph: Graph) -> list[int]:
    """For each operator the root of its cone: itself if it has several operands or no reader."""
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
    """The contractions on a longest path: operators of several operands that reduce a factor."""
    operators = graph.operators
    makers = [_makers(graph, operator) for operator in operators]
    before = [0] * len(operators)
    after = [0] * len(operators)
    for index, read_from in enumerate(makers):
        before[index] = max((before[maker] + 1 for maker in read_from), default=0)
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
    """The operators whose results an operator reads, by index."""
    producers = (graph.producers.get(name) for name in dict.fromkeys(operator.inputs))
    return list(dict.fromkeys(maker[0] for maker in producers if maker is not None))


def nearest(problem: Problem, pivots: Sequence[int], alone: Set[int]) -> list[int]:
    """For each node the pivot that is the fewest edges away; itself if alone or not connected."""
    around: list[list[int]] = [[] for _ in range(problem.n_nodes)]
    for i, j in problem.edges:
        around[i].append(j)
        around[j].append(i)
    pivot_of = {pivot: pivot for pivot in pivots}
    waiting = deque(pivots)
    while waiting:
        node = waiting.popleft()
        for other in around[node]:
            if other not in pivot_of and other not in alone:
                pivot_of[other] = pivot_of[node]
                waiting.append(other)
    return [pivot_of.get(node, node) for node in range(problem.n_nodes)]


def merge(problem: Problem, root_of: Sequence[int], around: Sequence[int] | None = None) -> Groups:
    """Groups whose choices are the strategies of their roots, in the order of their first nodes.

    Args:
        problem: The problem of the nodes.
        root_of: The root of each node.
        around: A choice of all nodes. If it is given, edges that leave a group count, at the
            strategies that it has outside; and a root that keeps its strategy of this choice keeps
            those of its whole group.
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
        if key not in known:  # equal groups, as of repeated layers, are decided once
            known[key] = list(decided_by(part, nodes.index(root)).T)
        for node, chosen in zip(nodes, known[key], strict=True):
            strategies[node] = chosen
            if around is not None:
                strategies[node] = chosen.copy()
                strategies[node][around[root]] = around[node]
    return Groups(of, tuple(strategies))


def _forbidden_outside(problem: Problem, of: Sequence[int]) -> list[Array]:
    """For each node and strategy: the fraction of forbidden pairs with nodes of other groups.

    Summed over edges, so a strategy that forbids all strategies of a neighbour counts 1 for it.
    """
    fractions = [np.zeros(len(cost)) for cost in problem.node_costs]
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        if of[i] != of[j]:
            forbidden = np.isinf(table)
            fractions[i] += forbidden.mean(axis=1)
            fractions[j] += forbidden.mean(axis=0)
    return fractions


def _paid_outside(problem: Problem, of: Sequence[int], around: Sequence[int]) -> list[Array]:
    """For each node and strategy: the cost of its edges to other groups, which stay as chosen."""
    paid = [np.zeros(len(cost)) for cost in problem.node_costs]
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        if of[i] != of[j]:
            for node, costs in ((i, table[:, around[j]]), (j, table[around[i]])):
                finite = np.isfinite(costs)
                # the others may change, too, so a forbidden pair only costs as much as the dearest
                paid[node] += np.where(finite, costs, costs.max(where=finite, initial=0.0))
    return paid


def _part(
    problem: Problem,
    nodes: Sequence[int],
    edges: Sequence[int],
    outside: Sequence[Array],
    paid: Sequence[Array] | None,
) -> Problem:
    """The problem of some nodes and the edges between them; ties favour forbidding less outside."""
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
    digest = hashlib.blake2b(
        repr((root, problem.edges, [len(c) for c in problem.node_costs])).encode()
    )
    for table in problem.node_costs + problem.edge_costs:
        digest.update(table.tobytes())
    return digest.digest()


def decided_by(problem: Problem, root: int) -> NDArray[np.intp]:
    """The cheapest choice of all nodes for each strategy of one of them.

    Args:
        problem: Its memory is ignored.
        root: The node whose strategy is fixed.

    Returns:
        Shape (strategies of `root`, nodes).
    """
    choices = core.decided_by(arrays_of(problem), root, ENTRIES)
    return _searched(problem, root) if choices is None else choices.astype(np.intp)


def _searched(problem: Problem, root: int) -> NDArray[np.intp]:
    """`decided_by` of a problem that is too wide: a search for each strategy of the root."""
    choices = []
    for strategy, cost in enumerate(problem.node_costs[root]):
        only = np.full(len(problem.node_costs[root]), np.inf)
        only[strategy] = cost
        costs = (*problem.node_costs[:root], only, *problem.node_costs[root + 1 :])
        one = Problem(costs, problem.edges, problem.edge_costs, problem.usages, problem.intervals)
        try:
            choices.append(solve(one, "local_search", steps=1).choice)
        except InfeasibleError:  # any choice will do: with this strategy, all cost infinity
            choices.append((*(0,) * root, strategy, *(0,) * (problem.n_nodes - root - 1)))
    return np.array(choices, dtype=np.intp)
