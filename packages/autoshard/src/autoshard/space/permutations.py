"""The messages that devices send to each other while an operator runs.

Two ways of running an operator need them; which one a strategy has follows from its rule, so that
whoever runs it knows it, too.

- A *ring*: an axis splits two factors, and the parts of the second go round along the axis. Results
  that have the second factor go round as well, and collect what every device adds to them (ring
  attention, Liu et al., arXiv 2310.01889).
- *Opposite halves*: an axis splits a factor that rises, as rows under a causal mask. The last
  device would have almost twice the work of the mean. So every device runs half of another factor,
  such as half of its heads, over the opposite part, and all have the same work. What has the rising
  factor is sent there and back, half of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from costmodel import MeshLinks, step_time
from shardspec import Layout, Mesh, Spec, Step

from autoshard.base.arrays import Array, frozen
from autoshard.base.checks import checked
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Operator, Value
from autoshard.graph.rule import Dims, Rule
from autoshard.space.strategy import Strategy, split_factors

SUMMED_ITEMSIZE = 4
"""Bytes that an element of a result has at least while it goes round: sums of 16-bit numbers are
kept in float32."""


@dataclass(frozen=True, slots=True)
class Permutation(Step):
    """Each device of a group sends its shard to one other, and gets that of one.

    The shard is of the same layout before and afterwards, so no conversion does this.
    """

    to_opposite: bool = False
    """Whether the last device along the axes sends to the first one, the last but one to the
    second, and so on; if not, each sends to the next, and the last one to the first."""

    @property
    def group_size(self) -> int:
        """Number of devices in a group: two, if they send to each other."""
        return 2 if self.to_opposite else self.src.mesh.axis_size(self.axes)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each group: each sends to the next, and the last one to the first."""
        groups = self.src.mesh.groups(self.axes)
        return opposite_pairs(groups) if self.to_opposite else groups

    def total_bytes(self, itemsize: int) -> int:
        """Bytes that all devices together receive."""
        return self.src.mesh.size * self.received_bytes(itemsize)

    def received_bytes(self, itemsize: int) -> int:
        """Bytes that each device receives."""
        return self.dst.local_bytes(itemsize)

    def sent_bytes(self, itemsize: int) -> int:
        """Bytes that each device sends."""
        return self.dst.local_bytes(itemsize)


@checked
def opposite_pairs(groups: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The pairs of opposite devices in groups; one in the middle is alone.

    Examples:
        >>> opposite_pairs(((0, 1, 2, 3), (4, 5, 6)))
        ((0, 3), (1, 2), (4, 6), (5,))
    """
    return tuple(
        tuple(dict.fromkeys((group[i], group[-1 - i])))
        for group in groups
        for i in range((len(group) + 1) // 2)
    )


@dataclass(frozen=True, slots=True)
class SentValue:
    """One operand or result of an operator, or half of it, that all devices send on."""

    tensor: int
    """Its number among the operands and then the results."""
    axes: tuple[int, ...]
    """The axes that groups run over."""
    half: int | None
    """The dim of which half is sent, to the opposite device; `None` for all, to the next one."""
    times: int
    """How often it is sent in one run."""
    is_sum: bool
    """Whether it is a sum that is not yet complete."""

    def step(self, value: Value, spec: Spec, mesh: Mesh) -> Permutation:
        """What is sent of a value in this layout, as a step."""
        shape = list(value.shape)
        if self.half is not None:
            shape[self.half] //= 2
        layout = Layout(tuple(shape), mesh, spec, "padded")
        how = self.axes, None, None, None, layout, layout
        return Permutation("collective_permute", *how, to_opposite=self.half is not None)

    def itemsize(self, value: Value) -> int:
        """Bytes of an element while it is sent."""
        return max(value.itemsize, SUMMED_ITEMSIZE) if self.is_sum else value.itemsize


def halved_factor(rule: Rule, strategy: Strategy, mesh_shape: tuple[int, ...]) -> int | None:
    """The factor of which a device runs half over the opposite part of one that rises.

    The first one, in the rule's order, of which a device has an even part. In every dim of a tensor
    that has the rising factor, no loop of more than one index may be outside of it, so that a half
    is one block. `None` if nothing that rises is split, if no factor can be halved, or if shards
    are strided.
    """
    specs = strategy.operand_specs + strategy.result_specs
    if not rule.sends or not all(spec.is_plain for spec in specs):
        return None
    axes = split_factors(rule, strategy.mapping)
    local = [
        -(-factor.size // math.prod(mesh_shape[axis] for axis in axes.get(index, ())))
        for index, factor in enumerate(rule.factors)
    ]
    rising = [f for f in axes if rule.factors[f].rises and local[f] < rule.factors[f].size]
    if len(rising) != 1:
        return None
    tensors = [dims for dims in rule.operands + rule.results if _has(dims, rising[0])]
    for index, factor in enumerate(rule.factors):
        if not factor.halves or local[index] == 0:
            continue
        if local[index] % 2 or factor.size % local[index]:
            continue
        outside = [
            other for dims in tensors for dim in dims if index in dim
            for other in dim[: dim.index(index)]
        ]  # fmt: skip
        if all(_has(dims, index) for dims in tensors) and all(local[f] == 1 for f in outside):
            return index
    return None


def messages(rule: Rule, strategy: Strategy, mesh_shape: tuple[int, ...]) -> tuple[SentValue, ...]:
    """All messages of one run of an operator."""
    if not rule.sends:
        return ()
    tensors = list(enumerate(rule.operands + rule.results))
    found: list[SentValue] = []
    for ring, (_, turning) in enumerate(rule.rings):
        on = tuple(a for a, target in enumerate(strategy.mapping) if target == ("ring", ring))
        n = math.prod(mesh_shape[axis] for axis in on)
        for number, dims in tensors if on else ():
            if _has(dims, turning):
                # An operand is where it was after n turns, the last of which nobody needs.
                is_sum = number >= len(rule.operands)
                found.append(SentValue(number, on, None, n if is_sum else n - 1, is_sum))
    half = halved_factor(rule, strategy, mesh_shape)
    if half is not None:
        axes = split_factors(rule, strategy.mapping)
        (rising,) = (factor for factor in axes if rule.factors[factor].rises)
        for number, dims in tensors:
            if _has(dims, rising):
                (dim,) = (place for place, factors in enumerate(dims) if half in factors)
                found.append(SentValue(number, axes[rising], dim, 1, False))
    return tuple(found)


def messages_of(
    graph: Graph, operator: Operator, strategy: Strategy, mesh: Mesh
) -> Iterator[tuple[Value, Permutation, int, int]]:
    """Each message of one run: the value, the step, bytes of an element, and how often it is sent.

    Results that nothing reads are not sent, and what several operands have in common is sent once:
    a compiler leaves that out, too.
    """
    names, specs = operator.inputs + operator.outputs, strategy.operand_specs
    specs += strategy.result_specs
    sent = set[tuple[object, ...]]()
    for of in messages(operator.rule, strategy, mesh.shape):
        name, spec = names[of.tensor], specs[of.tensor]
        what = name, spec, of.axes, of.half
        if name not in graph.unread and what not in sent:
            value = graph.value(name)
            yield value, of.step(value, spec, mesh), of.itemsize(value), of.times
        sent.add(what)


def message_seconds(
    graph: Graph,
    operator: Operator,
    strategies: Sequence[Strategy],
    mesh: Mesh,
    links: MeshLinks,
) -> Array:
    """For each strategy, the seconds of its messages in one run, one after the other.

    Args:
        graph: The graph.
        operator: One of its operators.
        strategies: Its strategies.
        mesh: The mesh.
        links: From `Cluster.links` for the mesh.
    """
    return frozen(
        np.array(
            [
                sum(
                    times * step_time(step, itemsize, links)
                    for _, step, itemsize, times in messages_of(graph, operator, strategy, mesh)
                )
                for strategy in strategies
            ],
            dtype=np.float64,
        )
    )


def _has(dims: Dims, factor: int) -> bool:
    return any(factor in dim for dim in dims)
