"""Rules of control flow: a factor is a dim that stays parallel throughout the bodies that it runs.

The dims of a body's values and the factors of its operators are tied where splitting one means
splitting the other: a dim and the major factor of an operator that spans it, a loop's carry and the
value that replaces it, the same operand of two branches. A class of tied dims is one factor of the
control flow if every operator in the class can be split there on its own: none of its factors is
reduced, whole, or a minor factor of some dim, and no tensor or operator is in the class twice. The
factor's size is the greatest common divisor of all sizes in the class. Everything else is whole. A
partial sum inside a body would have to be finished by a collective in the body, which a strategy of
the control flow, seen from outside, cannot express.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from autoshard.errors import RuleError
from autoshard.graph.graph import Graph
from autoshard.graph.rule import Dims, Rule
from autoshard.rules.factors import Dim, Factors, Shape, Shapes

Node = Hashable
"""A dim (graph, "value", name, dim), or a factor (graph, "operator", index, factor)."""
Slot = tuple[int, str] | None
"""The body's value (graph, name) that corresponds to an operand or result of the control flow."""


def scan(
    operand_shapes: Shapes, result_shapes: Shapes, *, body: Graph, n_constants: int, n_carry: int
) -> Rule:
    """A loop over the leading dim of its last operands, like `jax.lax.scan`.

    Args:
        operand_shapes: Constants, carry, and sequences (with their leading dim).
        result_shapes: Carry, and sequences of results.
        body: Its inputs are the constants, the carry and a slice of each sequence; its outputs are
            the new carry and a slice of each resulting sequence.
        n_constants: How many operands are constants.
        n_carry: How many operands, and how many results, are carry.
    """
    _same_length("operands", body.inputs, operand_shapes)
    _same_length("results", body.outputs, result_shapes)
    ties = _Ties((body,))
    inputs = [(0, name) for name in body.inputs]
    outputs = [(0, output.value) for output in body.outputs]
    for before, after in zip(inputs[n_constants:], outputs[:n_carry], strict=False):
        ties.same(before, after)
    first = n_constants + n_carry
    return ties.rule(
        operand_shapes,
        inputs,
        result_shapes,
        outputs,
        [i >= first for i in range(len(inputs))],
        [i >= n_carry for i in range(len(outputs))],
    )


def cond(operand_shapes: Shapes, result_shapes: Shapes, *, branches: Sequence[Graph]) -> Rule:
    """One of several graphs, chosen by the first operand and run on the others."""
    for branch in branches:
        _same_length("operands after the choice", branch.inputs, operand_shapes[1:])
        _same_length("results", branch.outputs, result_shapes)
    ties = _Ties(branches)
    for other in range(1, len(branches)):
        for a, b in zip(branches[0].inputs, branches[other].inputs, strict=True):
            ties.same((0, a), (other, b))
        for c, d in zip(branches[0].outputs, branches[other].outputs, strict=True):
            ties.same((0, c.value), (other, d.value))
    inputs: list[Slot] = [None, *((0, name) for name in branches[0].inputs)]
    outputs = [(0, output.value) for output in branches[0].outputs]
    return ties.rule(operand_shapes, inputs, result_shapes, outputs)


def while_loop(
    operand_shapes: Shapes,
    result_shapes: Shapes,
    *,
    condition: Graph,
    body: Graph,
    n_condition_constants: int = 0,
    n_body_constants: int = 0,
) -> Rule:
    """A loop that runs `body` on the carry while `condition` holds, like `jax.lax.while_loop`.

    Args:
        operand_shapes: Constants of the condition, constants of the body, carry.
        result_shapes: Carry.
        condition: Maps its constants and the carry to a scalar.
        body: Maps its constants and the carry to the new carry.
        n_condition_constants: How many operands, the first ones, only the condition reads.
        n_body_constants: How many operands after these only the body reads.
    """
    n_constants = n_condition_constants + n_body_constants
    _same_length("carried results", body.outputs, result_shapes)
    _same_length("operands of the body", body.inputs, operand_shapes[n_condition_constants:])
    _same_length(
        "operands of the condition",
        condition.inputs,
        operand_shapes[:n_condition_constants] + operand_shapes[n_constants:],
    )
    ties = _Ties((condition, body))
    outputs = [(1, output.value) for output in body.outputs]
    inputs = [
        *((0, name) for name in condition.inputs[:n_condition_constants]),
        *((1, name) for name in body.inputs),
    ]
    for read, carried, replaced_by in zip(
        condition.inputs[n_condition_constants:], inputs[n_constants:], outputs, strict=True
    ):
        ties.same(carried, (0, read))
        ties.same(carried, replaced_by)
    return ties.rule(operand_shapes, inputs, result_shapes, outputs)


def _same_length(what: str, named: Sequence[object], shapes: Sequence[Shape]) -> None:
    if len(named) != len(shapes):
        raise RuleError(
            f"a body has an input or output for each of the {what}; "
            f"got {len(named)} for {len(shapes)} shapes"
        )


class _Ties:
    """Classes of tied dims and factors of some graphs, each with the size that can be split."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self._graphs = graphs
        self._parent: dict[Node, Node] = {}
        self._blocked: list[Node] = []
        for g, graph in enumerate(graphs):
            for index, operator in enumerate(graph.operators):
                for f, factor in enumerate(operator.rule.factors):
                    if factor.kind != "parallel":
                        self._blocked.append((g, "operator", index, f))
                for name, dims in zip(
                    operator.inputs + operator.outputs,
                    operator.rule.operands + operator.rule.results,
                    strict=True,
                ):
                    for d, dim in enumerate(dims):
                        for place, f in enumerate(dim):
                            if place:
                                self._blocked.append((g, "operator", index, f))
                            else:
                                self._tie((g, "value", name, d), (g, "operator", index, f))

    def same(self, a: tuple[int, str], b: tuple[int, str]) -> None:
        """Tie all dims of two values, which always have the same layout."""
        for d in range(len(self._shape(a))):
            self._tie((a[0], "value", a[1], d), (b[0], "value", b[1], d))

    def _shape(self, value: tuple[int, str]) -> Shape:
        return self._graphs[value[0]].value(value[1]).shape

    def _root(self, node: Node) -> Node:
        parent = self._parent.setdefault(node, node)
        while parent != node:
            self._parent[node] = self._parent[parent]  # path halving keeps the paths short
            node, parent = parent, self._parent[parent]
        return node

    def _tie(self, a: Node, b: Node) -> None:
        self._parent[self._root(a)] = self._root(b)

    def _sizes(self) -> dict[Node, int]:
        """The size of each class, by its root; 1 if the class cannot be split."""
        sizes: dict[Node, int] = {}
        for g, graph in enumerate(self._graphs):
            groups: list[list[tuple[Node, int]]] = [
                [((g, "value", value.name, d), n) for d, n in enumerate(value.shape) if n != 1]
                for value in graph.values
            ]
            groups += [
                [((g, "operator", i, f), factor.size) for f, factor in enumerate(op.rule.factors)]
                for i, op in enumerate(graph.operators)
            ]
            for group in groups:  # the dims of one value, or the factors of one operator
                met: set[Node] = set()
                for node, size in group:
                    root = self._root(node)
                    sizes[root] = 1 if root in met else math.gcd(size, sizes.get(root, 0))
                    met.add(root)
        for node in self._blocked:
            sizes[self._root(node)] = 1
        return sizes

    def rule(
        self,
        operand_shapes: Shapes,
        inputs: Sequence[Slot],
        result_shapes: Shapes,
        outputs: Sequence[Slot],
        input_is_sequence: Sequence[bool] | None = None,
        output_is_sequence: Sequence[bool] | None = None,
    ) -> Rule:
        """The rule of the control flow; a sequence has one more dim than its slot, in front."""
        sizes = self._sizes()
        factors = Factors()
        shared: dict[Node, Dim] = {}

        def dims(shape: Shape, slot: Slot, is_sequence: bool) -> Dims:
            if slot is None:
                return tuple(factors.whole(n) for n in shape)
            leading = (factors.whole(shape[0]),) if is_sequence else ()
            inner = []
            for d, n in enumerate(self._shape(slot)):
                root = self._root((slot[0], "value", slot[1], d))
                size = sizes.get(root, 1) if n > 1 else 1
                if size > 1 and root not in shared:
                    shared[root] = factors.parallel(size)
                inner.append((shared[root] if size > 1 else ()) + factors.whole(n // size))
            return (*leading, *inner)

        def tensors(
            shapes: Shapes, slots: Sequence[Slot], are_sequences: Sequence[bool] | None
        ) -> list[Dims]:
            flags = are_sequences or [False] * len(slots)
            return [dims(*tensor) for tensor in zip(shapes, slots, flags, strict=True)]

        return factors.rule(
            tensors(operand_shapes, inputs, input_is_sequence),
            tensors(result_shapes, outputs, output_is_sequence),
        )
