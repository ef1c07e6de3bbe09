"""What a device holds at each moment of a sharding: the live bytes over time, by kind.

Time is counted in operators. A value is held as `lifetime` says, in the spec that it is made or
stored in. What a conversion makes is held from the first operator that reads it, or for whose
operand another conversion starts from it, to the last one; what is only passed on the way to
another copy, for the same operator, is not counted. A result that is stored back into an input
takes the input's place, and so do the copies that are made of it for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from shardspec import Spec

from autoshard.answer.sharding_fields import ShardingFields, is_sharding
from autoshard.graph.graph import Graph
from autoshard.graph.lifetime import Kind, phase_ends
from autoshard.space.options import Options
from autoshard.space.strategy_tables import largest_part


@dataclass(frozen=True, slots=True)
class Held:
    """One tensor on every device for some time."""

    value: str
    spec: Spec
    kind: Kind
    first: int
    """The operator from which on it is held."""
    last: int
    """Exclusive."""
    n_bytes: int
    """Of the device that holds most; all microbatches in flight together."""


def held(sharding: ShardingFields) -> tuple[Held, ...]:
    """Everything that a device holds in a step: inputs, results, then copies."""
    is_sharding(sharding)
    return (*_values(sharding), *_copies(sharding))


def live_bytes(sharding: ShardingFields, kind: Kind | None = None) -> tuple[int, ...]:
    """Bytes that a device holds while each operator runs.

    Args:
        sharding: Of a graph.
        kind: Only what is of this kind; everything if left out.
    """
    is_sharding(sharding)
    line = _Line(sharding.graph)
    for one in held(sharding):
        if kind is None or one.kind == kind:
            line.add(one.first, one.last, one.n_bytes)
    return line.totals()


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a device holds while each operator runs, whatever number of microbatches is in flight.

    It is found once for a sharding, and then tells the peak for each number.
    """

    alone: tuple[int, ...]
    """Bytes, per operator, with one microbatch in flight."""
    fixed: tuple[int, ...]
    """With several: all but what is held for each of them."""
    saved: tuple[int, ...]
    """And that, for one microbatch."""
    activation_bytes: int
    """Of all that forward saves for later phases, for one microbatch."""

    def peak_bytes(self, in_flight: int) -> int:
        """The most that a device holds at a time.

        Raises:
            OptionError: `in_flight` is not a positive number.
        """
        if Options(in_flight=in_flight).in_flight == 1:
            return max(self.alone)
        pairs = zip(self.fixed, self.saved, strict=True)
        return max(fixed + in_flight * saved for fixed, saved in pairs)


def footprint(sharding: ShardingFields) -> Footprint:
    """The bytes over time of a sharding; for its own number in flight, as `live_bytes` says."""
    is_sharding(sharding)
    graph = sharding.graph
    life, long = graph.lifetimes
    alone, fixed, saved = (_Line(graph) for _ in range(3))
    activations = 0
    for name, spec in _specs(sharding):
        n_bytes = _bytes(sharding, name, spec)
        alone.add(life[name].first, life[name].last, n_bytes)
        line = saved if long[name].copies > 1 else fixed
        line.add(long[name].first, long[name].last, n_bytes)
        activations += n_bytes if line is saved else 0
    for one in _copies(sharding):
        alone.add(one.first, one.last, one.n_bytes)
        fixed.add(one.first, one.last, one.n_bytes)
    return Footprint(alone.totals(), fixed.totals(), saved.totals(), activations)


def peak_bytes(sharding: ShardingFields) -> int:
    """The most that a device holds at a time."""
    return footprint(sharding).peak_bytes(sharding.options.in_flight)


class _Line:
    """Bytes over time, added up interval by interval."""

    def __init__(self, graph: Graph) -> None:
        self._end = max(len(graph.operators), 1)
        self._changes = [0] * (self._end + 1)

    def add(self, first: int, last: int, n_bytes: int) -> None:
        """Hold as many bytes from operator `first` to before `last`."""
        self._changes[first] += n_bytes
        self._changes[last] -= n_bytes

    def totals(self) -> tuple[int, ...]:
        """What is held while each operator runs."""
        return tuple(accumulate(self._changes[: self._end]))


def _specs(sharding: ShardingFields) -> Iterator[tuple[str, Spec]]:
    """What is stored or made, and how; results that take an input's place take no more."""
    graph = sharding.graph
    in_place = {output.value for output in graph.outputs if output.alias is not None}
    yield from sharding.input_specs
    for operator, strategy in zip(graph.operators, sharding.strategies, strict=True):
        for name, spec in zip(operator.outputs, strategy.result_specs, strict=True):
            if name not in in_place:
                yield name, spec


def _values(sharding: ShardingFields) -> Iterator[Held]:
    graph, in_flight = sharding.graph, sharding.options.in_flight
    life = graph.lifetimes_of(in_flight)
    kinds = graph.kinds
    for name, spec in _specs(sharding):
        its = life[name]
        n_bytes = its.copies * _bytes(sharding, name, spec)
        yield Held(name, spec, kinds[name], its.first, its.last, n_bytes)


def _copies(sharding: ShardingFields) -> Iterator[Held]:
    read = _needed(sharding)
    needed = {key: list(times) for key, times in read.items()}
    for c in reversed(sharding.conversions):
        if times := needed.get((c.phase, c.value, c.dst)):
            # what it starts from is needed when it is made, which is when it is needed first
            needed.setdefault((c.phase, c.value, c.src), []).append(min(times))
    for c in sharding.conversions:
        key = (c.phase, c.value, c.dst)
        if times := needed.get(key):
            first, last = min(times), max(times)
            if key in read or first < last:
                n_bytes = _bytes(sharding, c.value, c.dst)
                yield Held(c.value, c.dst, "copy", first, last + 1, n_bytes)


def _needed(sharding: ShardingFields) -> dict[tuple[int, str, Spec], list[int]]:
    """Per phase, value and spec the operators that read it so; outputs leave at a phase's end.

    Only of what is converted in the phase: nothing else has copies.
    """
    graph, ends = sharding.graph, phase_ends(sharding.graph)
    converted = {(c.phase, c.value) for c in sharding.conversions}
    found: dict[tuple[int, str, Spec], list[int]] = {}
    for index, (operator, strategy) in enumerate(
        zip(graph.operators, sharding.strategies, strict=True)
    ):
        for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True):
            if (operator.phase, name) in converted:
                found.setdefault((operator.phase, name, spec), []).append(index)
    for output, spec in zip(graph.outputs, sharding.output_specs, strict=True):
        if output.alias is None:
            phase = graph.phase_of_output(output)
            if (phase, output.value) in converted:
                found.setdefault((phase, output.value, spec), []).append(max(ends[phase] - 1, 0))
    return found


def _bytes(sharding: ShardingFields, name: str, spec: Spec) -> int:
    value = sharding.graph.value(name)
    return value.itemsize * largest_part(spec, value.shape, sharding.mesh.shape)
