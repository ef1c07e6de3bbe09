"""Rules of control flow: a factor is a dim that can be split throughout the bodies that it runs.

The dims of a body's values and the factors of its operators are tied where splitting one means
splitting the other: a dim and the major factor of an operator that spans it, a loop's carry and the
value that replaces it, the same operand of two branches. A class of tied dims is one factor of the
control flow if every operator in the class can be split there on its own: none of its factors is
whole, or a minor factor of some dim, and no tensor or operator is in the class twice. The factor's
size is the greatest common divisor of all sizes in the class. Everything else is whole.

An operator may sum over a class, as the backward of a recurrence sums the gradient of a weight over
examples. A collective in the body would have to finish that sum, which a strategy of the control
flow, seen from outside, cannot express. So the partial sum has to pass through all that reads it:
it is added to a carry that begins as one, or leaves the loop as a result. The factor is a reduced
one then. Such a carry counts once (`summands`). Zeros are a partial sum, too (`ZEROS`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.base.checks import checked
from autoshard.errors import RuleError
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Operator
from autoshard.graph.rule import Dims, Rule
from autoshard.rules.factors import Dim, Factors, Shape, Shapes

ZEROS = "zeros"
"""The kind of an operator in a body that fills its result with zeros."""

Node = Hashable
"""A dim (graph, "value", name, dim), or a factor (graph, "operator", index, factor)."""
Name = tuple[int, str]
"""A value of a body: the graph's index, and the name of the value there."""
Slot = Name | None
"""The body's value that corresponds to an operand or result of the control flow."""


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """How control flow can be split, and what is split in its bodies."""

    rule: Rule
    dims: Mapping[Name, tuple[int | None, ...]]
    """For each value of a body and each of its dims: the factor of `rule` that splits it, which is
    its major factor; None if the dim stays whole."""

    summands: tuple[int, ...]
    """Operands to which a body adds partial sums if a reduced factor is split: each counts once."""


def rule_only(flow: Callable[..., ControlFlow]) -> Callable[..., Rule]:
    """The same function, which returns the rule only, as the table of rules has it."""

    @functools.wraps(flow)
    def rule(*shapes: Shapes, **attributes: Any) -> Rule:
        return flow(*shapes, **attributes).rule

    return rule


@checked
def control_flow(
    kind: str, operand_shapes: Shapes, result_shapes: Shapes, **attributes: Any
) -> ControlFlow:
    """The rule of control flow, and how its bodies run on parts.

    In a body, operators of three kinds mean something: `zeros` fills its result with zeros, and
    `add` or `add_any` adds its two operands. All others are known by their rules only.

    Args:
        kind: `scan`, `cond` or `while`.
        operand_shapes: Shapes of all operands, in order.
        result_shapes: Shapes of all results, in order.
        attributes: The attributes of that kind, as for `rule_of`.

    Raises:
        RuleError: There is no such kind, or the bodies do not fit the shapes.
    """
    if kind not in _FLOWS:
        raise RuleError(f"control flow is one of {sorted(_FLOWS)}; got {kind!r}")
    try:
        return _FLOWS[kind](operand_shapes, result_shapes, **attributes)
    except TypeError as error:
        raise RuleError(f"the rule of {kind!r} takes other attributes: {error}") from None


def scan(
    operand_shapes: Shapes, result_shapes: Shapes, *, body: Graph, n_constants: int, n_carry: int
) -> ControlFlow:
    """A loop over the leading dim of its last operands, like `jax.lax.scan`.

    If its body does no more with the carry than add to it, or if there is none, that dim can be
    split, too: the iterations do not depend on each other.

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
    inputs: list[Slot] = [(0, name) for name in body.inputs]
    outputs: list[Slot] = [(0, output.value) for output in body.outputs]
    first = n_constants + n_carry
    for before, after in zip(body.inputs[n_constants:first], body.outputs[:n_carry], strict=True):
        ties.carry((0, before), (0, after.value))
    totals = body.inputs[n_constants:first] if _only_adds(body, n_constants, n_carry) else None
    return ties.flow(
        operand_shapes,
        inputs,
        result_shapes,
        outputs,
        [i >= first for i in range(len(inputs))],
        [i >= n_carry for i in range(len(outputs))],
        totals,
    )


def _only_adds(body: Graph, n_constants: int, n_carry: int) -> bool:
    """Whether each new carry of a body is the old one plus what depends on no carry."""
    of_carry = {name: i for i, name in enumerate(body.inputs[n_constants : n_constants + n_carry])}
    for op in body.operators:
        read = [of_carry[name] for name in op.inputs if name in of_carry]
        if read and (len(read) > 1 or op.kind not in _ADDS or not op.rule.linear):
            return False
        of_carry.update((name, read[0]) for name in op.outputs if read)
    made = [of_carry.get(output.value) for output in body.outputs]
    return made == [*range(n_carry), *[None] * (len(made) - n_carry)]


_ADDS = ("add", "add_any")
"""Kinds of operators that add their operands. Without a linear rule, one of these is a number."""


def cond(
    operand_shapes: Shapes, result_shapes: Shapes, *, branches: Sequence[Graph]
) -> ControlFlow:
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
    outputs: list[Slot] = [(0, output.value) for output in branches[0].outputs]
    return ties.flow(operand_shapes, inputs, result_shapes, outputs)


def while_loop(
    operand_shapes: Shapes,
    result_shapes: Shapes,
    *,
    condition: Graph,
    body: Graph,
    n_condition_constants: int = 0,
    n_body_constants: int = 0,
) -> ControlFlow:
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
    outputs: list[Slot] = [(1, output.value) for output in body.outputs]
    inputs: list[Slot] = [
        *((0, name) for name in condition.inputs[:n_condition_constants]),
        *((1, name) for name in body.inputs),
    ]
    for read, carried, replaced_by in zip(
        condition.inputs[n_condition_constants:],
        body.inputs[n_body_constants:],
        body.outputs,
        strict=True,
    ):
        ties.same((1, carried), (0, read))
        ties.carry((1, carried), (1, replaced_by.value))
    return ties.flow(operand_shapes, inputs, result_shapes, outputs)


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
        self._summed: list[Node] = []
        self._equal: list[tuple[Name, Name]] = []
        """Values that are partial sums together."""
        self._carried: set[Name] = set()
        for g, graph in enumerate(graphs):
            for index, operator in enumerate(graph.operators):
                for f, factor in enumerate(operator.rule.factors):
                    if factor.kind == "reduce" and factor.reduction == "sum":
                        self._summed.append((g, "operator", index, f))
                    elif factor.kind != "parallel":
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

    def same(self, a: Name, b: Name) -> None:
        """Tie all dims of two values, which always have the same layout."""
        self._equal.append((a, b))
        for d in range(len(self._shape(a))):
            self._tie((a[0], "value", a[1], d), (b[0], "value", b[1], d))

    def carry(self, before: Name, after: Name) -> None:
        """Tie a loop's carry and what replaces it."""
        self._carried.add(before)
        self.same(before, after)

    def _shape(self, value: Name) -> Shape:
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

    def _partial(self, root: Node) -> set[Name] | None:
        """The values that are partial sums if a class is split; None if one would have to end."""
        own = {
            (g, index): {
                f
                for f in range(len(op.rule.factors))
                if self._root((g, "operator", index, f)) == root
            }
            for g, graph in enumerate(self._graphs)
            for index, op in enumerate(graph.operators)
        }
        partial: set[Name] = set()
        while True:
            before = len(partial)
            for a, b in self._equal:
                if a in partial or b in partial:
                    partial |= {a, b}
            for (g, index), factors in own.items():
                op = self._graphs[g].operators[index]
                read = tuple(i for i, v in enumerate(op.inputs) if (g, v) in partial)
                if read and read not in op.rule.linear:
                    more = None if factors else self._completing(op, g, partial, own)
                    if more is None:
                        return None
                    partial |= more
                elif read and factors:
                    return None
                elif read or any(op.rule.factors[f].kind == "reduce" for f in factors):
                    partial |= {
                        (g, name)
                        for name, dims in zip(op.outputs, op.rule.results, strict=True)
                        if not any(factors.intersection(dim) for dim in dims)
                    }
                elif op.kind != ZEROS and any((g, name) in partial for name in op.outputs):
                    return None
            if len(partial) == before:
                return partial

    def _completing(
        self,
        op: Operator,
        g: int,
        partial: set[Name],
        own: Mapping[tuple[int, int], Collection[int]],
    ) -> set[Name] | None:
        """Carries and zeros that have to be partial sums for an operator to pass on others."""
        made = {name: i for i, o in enumerate(self._graphs[g].operators) for name in o.outputs}

        def of_value(name: str) -> set[Name] | None:
            if (g, name) in partial:
                return set()
            if (g, name) in self._carried:
                return {(g, name)}
            if name not in made or own[g, made[name]]:
                return None
            maker = self._graphs[g].operators[made[name]]
            return {(g, name)} if maker.kind == ZEROS else of_operator(maker, set())

        def of_operator(op: Operator, read: set[int]) -> set[Name] | None:
            for group in op.rule.linear:
                found = [of_value(op.inputs[i]) for i in group]
                if read <= set(group) and all(one is not None for one in found):
                    return {name for one in found for name in one or ()}
            return None

        return of_operator(op, {i for i, v in enumerate(op.inputs) if (g, v) in partial})

    def flow(
        self,
        operand_shapes: Shapes,
        inputs: Sequence[Slot],
        result_shapes: Shapes,
        outputs: Sequence[Slot],
        input_is_sequence: Sequence[bool] | None = None,
        output_is_sequence: Sequence[bool] | None = None,
        totals: Sequence[str] | None = None,
    ) -> ControlFlow:
        """The control flow's rule; a sequence has one more dim than its slot, in front.

        That dim can be split if all carries are `totals`, to which the iterations only add.
        """
        sizes = self._sizes()
        summed = {self._root(node) for node in self._summed}
        accumulated: set[Name] = set()
        for root in [root for root in summed if sizes.get(root, 1) > 1]:
            partial = self._partial(root)
            if partial is None or not self._is_reduced(root, partial, inputs, outputs):
                sizes[root] = 1
            else:
                accumulated |= partial
        factors = Factors()
        shared: dict[Node, Dim] = {}
        steps: list[Dim] = []
        can_split = totals is not None and any(
            (input_is_sequence if totals else output_is_sequence) or ()
        )
        kept = {
            self._root((slot[0], "value", slot[1], d))
            for slot in outputs
            if slot is not None
            for d in range(len(self._shape(slot)))
        }

        def dims(shape: Shape, slot: Slot, is_sequence: bool) -> Dims:
            if slot is None:
                return tuple(factors.whole(n) for n in shape)
            leading: tuple[Dim, ...] = ()
            if is_sequence and not (can_split and shape[0]):
                leading = (factors.whole(shape[0]),)
            elif is_sequence:
                if not steps:
                    steps.append((factors.reduced if totals else factors.parallel)(shape[0]))
                leading = (steps[0],)
            inner = []
            for d, n in enumerate(self._shape(slot)):
                root = self._root((slot[0], "value", slot[1], d))
                size = sizes.get(root, 1) if n > 1 and (root in kept or root in summed) else 1
                if size > 1 and root not in shared:
                    make = factors.reduced if root in summed else factors.parallel
                    shared[root] = make(size)
                inner.append((shared[root] if size > 1 else ()) + factors.whole(n // size))
            return (*leading, *inner)

        def tensors(
            shapes: Shapes, slots: Sequence[Slot], are_sequences: Sequence[bool] | None
        ) -> list[Dims]:
            flags = are_sequences or [False] * len(slots)
            return [dims(*tensor) for tensor in zip(shapes, slots, flags, strict=True)]

        rule = factors.rule(
            tensors(operand_shapes, inputs, input_is_sequence),
            tensors(result_shapes, outputs, output_is_sequence),
        )
        split = {
            (g, value.name): tuple(
                shared[root][0] if n > 1 and root in shared else None
                for root, n in zip(self._roots(g, value.name), value.shape, strict=True)
            )
            for g, graph in enumerate(self._graphs)
            for value in graph.values
        }
        if can_split:
            accumulated |= {(0, name) for name in totals or ()}
        summands = tuple(
            i for i, slot in enumerate(inputs) if slot in self._carried and slot in accumulated
        )
        return ControlFlow(rule, split, summands)

    def _roots(self, g: int, name: str) -> list[Node]:
        return [self._root((g, "value", name, d)) for d in range(len(self._shape((g, name))))]

    def _is_reduced(
        self, root: Node, partial: set[Name], inputs: Sequence[Slot], outputs: Sequence[Slot]
    ) -> bool:
        """Whether some operand has a class, and each result that lacks it is a partial sum."""

        def has(slot: Slot) -> bool:
            return slot is not None and root in self._roots(*slot)

        read = {slot for slot in inputs if slot in partial}
        return (
            any(map(has, inputs))
            and all(has(slot) or slot in partial for slot in outputs)
            and read <= self._carried
        )


_FLOWS: dict[str, Callable[..., ControlFlow]] = {"scan": scan, "cond": cond, "while": while_loop}
