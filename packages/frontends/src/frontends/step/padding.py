"""Pad the examples of a microbatch, so that devices that do not divide their number share them.

64 examples over 6 devices would all be computed on every device. In a program of 66 examples, each
device computes 11. The two that are added are copies of the last ones, so all that is computed of
them is as finite as that of the others. No result may depend on them:

- An operator that treats examples alike runs on more of them ("grows").
- Where it sums over examples, it reads zeros in place of those that were added. An operator of
  backward that begins with a number, such as the gradient of the loss by itself, gives them a
  gradient of zero; what is linear in that is zero, too. So most sums need no more zeros.
- Any other operator, such as a sort of the examples, runs on the examples without those added.

Arguments that hold the batch get the copies before they are cut into microbatches. What is added
is at the end of a dim. This module decides what happens to each operator;
`frontends.jax.trace.pad` and `frontends.torch.trace.pad` do it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from autoshard import Graph, Operator, Rule

from frontends.step.examples import dims_of_examples, with_dims
from frontends.step.step import APPLY, BACKWARD, IDENTITY

Shape = tuple[int, ...]

_MOST_ADDED = 0.25
"""The largest part of a microbatch's examples that may be added [chosen]."""

_ALIKE = frozenset({"iota", "broadcast_in_dim", "full", "expand"})
"""Operators that may make more examples than they read: all are alike, or numbered from 0."""

_PRODUCTS = frozenset({"mul", "dot_general", "mm", "bmm", "matmul", "and", "bitwise_and"})
"""Operators in which a zero makes the result zero, whatever finite number the other operand is."""

_FINITE, _ZERO, _ANY = range(3)
"""What is known of the examples that were added: finite numbers, zeros, or nothing."""


@dataclass(frozen=True, slots=True)
class Padding:
    """What happens to the operators of a microbatch of which the examples are padded."""

    examples: int
    padded_to: int
    dim: Mapping[str, int]
    """By value that holds examples: the dim along which it does."""

    grown: frozenset[str]
    """Operators that run on more examples."""

    zeroed_operands: Mapping[str, tuple[int, ...]]
    """By operator that grows: the operands in which the examples that were added are zeros."""

    zeroed_results: frozenset[str]
    """Operators whose results are set to zero in the examples that were added."""

    def size(self, n: int) -> int:
        """The size that a dim of examples of size `n` has with padding."""
        return n * self.padded_to // self.examples

    def shape(self, name: str, shape: Shape) -> Shape:
        """The shape of a value with padding."""
        if name not in self.dim:
            return shape
        at = self.dim[name]
        return (*shape[:at], self.size(shape[at]), *shape[at + 1 :])

    def rows(self, n: int, microbatches: int) -> list[int]:
        """The rows of a batch that microbatches with padding have, one after the other.

        Args:
            n: The number of rows of an argument that holds the batch.
            microbatches: Into how many parts the batch is cut.
        """
        of_each = n // microbatches
        added = self.size(of_each) - of_each
        ends = range(of_each, n + 1, of_each)
        return [k for end in ends for k in (*range(end - of_each, end), *range(end - added, end))]


def padded_size(examples: int, n_devices: int) -> int:
    """To how many examples a microbatch is padded so that as many devices as possible share them.

    Examples:
        >>> padded_size(64, 6), padded_size(8, 6), padded_size(8, 16)  # 9 for 3 devices
        (66, 9, 8)
    """
    for n in range(n_devices, 1, -1):
        size = -(-examples // n) * n
        if n_devices % n == 0 and size <= (1 + _MOST_ADDED) * examples:
            return size
    return examples


def padding_of(
    graph: Graph,
    examples: int,
    padded_to: int,
    zeros: Collection[str],
    runs: Callable[[Operator, Sequence[Shape], Sequence[Shape]], bool],
) -> Padding:
    """Decide what happens to each operator of a microbatch that is padded.

    Args:
        graph: The step with the shapes of a microbatch, with rules for microbatches.
        examples: The number of examples of a microbatch; leaves of the batch have multiples of it.
        padded_to: Their number with those that are added.
        zeros: Values that are filled with zeros.
        runs: Whether an operator that treats examples alike makes results of some shapes from
            operands of some shapes; attributes of an operator may allow none but its own shapes.
    """

    def is_scaled(n: int) -> bool:
        return n * padded_to % examples == 0

    dim = dims_of_examples(graph, is_scaled)
    known = dict.fromkeys(zeros, _ZERO)
    grown: set[str] = set()
    operands: dict[str, tuple[int, ...]] = {}
    results: set[str] = set()
    plain = Padding(examples, padded_to, dim, frozenset(), {}, frozenset())
    for op in graph.operators:
        if op.phase == APPLY or dim.keys().isdisjoint((*op.inputs, *op.outputs)):
            continue
        factor = _factor(op, dim, is_scaled)
        shapes = [
            [plain.shape(name, graph.value(name).shape) for name in names]
            for names in (op.inputs, op.outputs)
        ]
        if factor is None or op.kind == IDENTITY or not runs(op, shapes[0], shapes[1]):
            continue
        states = [known.get(name, _FINITE) if name in dim else None for name in op.inputs]
        if op.rule.factors[factor].kind == "reduce":
            zeroed = _to_zero(graph, op, states)
            if zeroed is None:
                continue
            if zeroed:
                operands[op.name] = zeroed
                for index in zeroed:
                    states[index] = _ZERO
        grown.add(op.name)
        made = [name for name in op.outputs if name in dim and name not in zeros]
        state = _state(op.rule, op.kind, states)
        if state == _ANY and all(graph.value(name).dtype == "bool" for name in made):
            state = _FINITE
        if made and state == _FINITE and _begins_backward(graph, op, dim):
            results.add(op.name)
            state = _ZERO
        known.update(dict.fromkeys(made, state))
    return Padding(examples, padded_to, dim, frozenset(grown), operands, frozenset(results))


def _factor(op: Operator, dim: Mapping[str, int], is_scaled: Callable[[int], bool]) -> int | None:
    """The factor of an operator that runs over examples; None if the operator cannot grow."""
    factors = {next(iter(dims[dim[name]]), None) for name, dims in with_dims(op) if name in dim}
    if len(factors) != 1:
        return None
    (number,) = factors
    if number is None:
        return None
    factor = op.rule.factors[number]
    if factor.kind == "whole" or factor.reduction != "sum" or not is_scaled(factor.size):
        return None
    for name, dims in with_dims(op):
        at = [d for d, of in enumerate(dims) if number in of]
        if at != ([dim[name]] if name in dim else []) or any(dims[d][0] != number for d in at):
            return None
    if dim.keys().isdisjoint(op.inputs) and op.kind not in _ALIKE:
        return None
    return number


def _to_zero(graph: Graph, op: Operator, states: Sequence[int | None]) -> tuple[int, ...] | None:
    """The operands of a sum over examples that must be zeroed; None if zeros do not help.

    The operator is linear in some of its operands together, so a part of it in which these are zero
    adds nothing, if the others are finite.

    Args:
        graph: The step.
        op: The operator.
        states: What is known of each operand; None for one without examples.
    """
    wild = {i for i, state in enumerate(states) if state == _ANY}
    choices = []
    for group in op.rule.linear:
        needed = {i for i in group if states[i] is not None}
        if needed:
            zeroed = wild | {i for i in needed if states[i] != _ZERO}
            n_bytes = sum(graph.value(op.inputs[i]).n_bytes for i in zeroed)
            choices.append((n_bytes, tuple(sorted(zeroed))))
    return min(choices)[1] if choices else None


def _state(rule: Rule, kind: str, states: Sequence[int | None]) -> int:
    """What is known of the results of an operator, given the same of its operands."""
    zeros = {i for i, state in enumerate(states) if state == _ZERO}
    if _ANY in states:
        return _ANY
    for group in rule.linear:
        if zeros.issuperset(group) and (kind in _PRODUCTS or zeros <= set(group)):
            return _ZERO
    linear = {i for group in rule.linear for i in group}
    return _FINITE if zeros <= linear else _ANY


def _begins_backward(graph: Graph, op: Operator, dim: Mapping[str, int]) -> bool:
    """Whether gradients of single examples begin here, in an operator that reads a number."""

    def is_of_backward(name: str) -> bool:
        made = graph.producers.get(name)
        return made is not None and graph.operators[made[0]].phase == BACKWARD

    if op.phase != BACKWARD:
        return False
    with_examples = [name for name in op.inputs if name in dim]
    others = [name for name in op.inputs if name not in dim]
    if any(map(is_of_backward, with_examples)):
        return False
    return not op.inputs or any(map(is_of_backward, others))
