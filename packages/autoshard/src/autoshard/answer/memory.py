"""The bytes that a device holds at each moment of a sharding, by kind.

Time is counted in operators. A value is held as long as `lifetime` says, in the spec in which it is
computed or stored. The result of a conversion is held from the first operator that reads it, or
that reads a copy converted from it, to the last such operator. An intermediate spec that is only
passed through on the way to another copy, for one operator, does not count. A result that is stored
back into an input takes the memory of the input, and so do the copies that are made of it for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from shardspec import Spec

from autoshard.answer.costs import held_bytes
from autoshard.answer.sharding_fields import ShardingFields, is_sharding
from autoshard.graph.graph import Graph
from autoshard.graph.lifetime import Kind, phase_ends
from autoshard.space.options import Options


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that every device holds, or holds a shard of, for some time."""

    value: str
    spec: Spec
    kind: Kind
    first: int
    """The index of the first operator during which it is held."""
    last: int
    """Exclusive."""
    n_bytes: int
    """Bytes on the device that holds most, for all microbatches in flight together."""


def held(sharding: ShardingFields) -> tuple[Held, ...]:
    """Everything that a device holds in a step: inputs, results, then copies."""
    is_sharding(sharding)
    return (*_values(sharding), *_copies(sharding))


def live_bytes(sharding: ShardingFields, kind: Kind | None = None) -> tuple[int, ...]:
    """Bytes that a device holds while each operator runs.

    Args:
        sharding: The sharding.
        kind: Count only memory of this kind; by default all of it.
    """
    is_sharding(sharding)
    line = _Line(sharding.graph)
    for one in held(sharding):
        if kind is None or one.kind == kind:
            line.add(one.first, one.last, one.n_bytes)
    return line.totals()


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes that a device holds while each operator runs, for any number of microbatches.

    It is computed once for a sharding and gives the peak for each number in flight.
    """

    alone: tuple[int, ...]
    """For each operator, the bytes with one microbatch in flight."""
    fixed: tuple[int, ...]
    """For each operator, with several in flight: the bytes that do not depend on their number."""
    saved: tuple[int, ...]
    """For each operator, with several in flight: the bytes that are held for each of them."""
    activation_bytes: int
    """Bytes of all that forward saves for later phases, for one microbatch."""

    def peak_bytes(self, in_flight: int) -> int:
        """The most bytes that a device holds at a time.

        Raises:
            OptionError: `in_flight` is not a positive number.
        """
        if Options(in_flight=in_flight).in_flight == 1:
            return max(self.alone)
        pairs = zip(self.fixed, self.saved, strict=True)
        return max(fixed + in_flight * saved for fixed, saved in pairs)


def footprint(sharding: ShardingFields) -> Footprint:
    """The footprint of a sharding; for its own number in flight, it agrees with `live_bytes`."""
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
    """The most bytes that a device holds at a time."""
    return footprint(sharding).peak_bytes(sharding.options.in_flight)


class _Line:
    """Bytes over time, as the sum of intervals."""

    def __init__(self, graph: Graph) -> None:
        self._end = max(len(graph.operators), 1)
        self._changes = [0] * (self._end + 1)

    def add(self, first: int, last: int, n_bytes: int) -> None:
        """Add bytes that are held during the operators [first, last)."""
        self._changes[first] += n_bytes
        self._changes[last] -= n_bytes

    def totals(self) -> tuple[int, ...]:
        """The bytes that are held while each operator runs."""
        return tuple(accumulate(self._changes[: self._end]))


def _specs(sharding: ShardingFields) -> Iterator[tuple[str, Spec]]:
    """All values that take memory, with their specs: inputs, and results not stored back in one."""
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
        lifetime = life[name]
        n_bytes = lifetime.copies * _bytes(sharding, name, spec)
        yield Held(name, spec, kinds[name], lifetime.first, lifetime.last, n_bytes)


def _copies(sharding: ShardingFields) -> Iterator[Held]:
    read = _needed(sharding)
    needed = {key: list(times) for key, times in read.items()}
    for c in reversed(sharding.conversions):
        if times := needed.get((c.phase, c.value, c.dst)):
            # a conversion runs, and needs its source, when its result is needed first
            needed.setdefault((c.phase, c.value, c.src), []).append(min(times))
    for c in sharding.conversions:
        key = (c.phase, c.value, c.dst)
        if times := needed.get(key):
            first, last = min(times), max(times)
            if key in read or first < last:
                n_bytes = _bytes(sharding, c.value, c.dst)
                yield Held(c.value, c.dst, "copy", first, last + 1, n_bytes)


def _needed(sharding: ShardingFields) -> dict[tuple[int, str, Spec], list[int]]:
    """For each phase, value and spec, the operators that read it; outputs leave at a phase's end.

    Only values that are converted in the phase are included, since nothing else has copies.
    """
    graph, ends = sharding.graph, phase_ends(sharding.graph)
    converted = {(c.phase, c.value) for c in sharding.conversions}
    times: dict[tuple[int, str, Spec], list[int]] = {}
    for index, (operator, strategy) in enumerate(
        zip(graph.operators, sharding.strategies, strict=True)
    ):
        for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True):
            if (operator.phase, name) in converted:
                times.setdefault((operator.phase, name, spec), []).append(index)
    for output, spec in zip(graph.outputs, sharding.output_specs, strict=True):
        if output.alias is None:
            phase = graph.phase_of_output(output)
            if (phase, output.value) in converted:
                times.setdefault((phase, output.value, spec), []).append(max(ends[phase] - 1, 0))
    return times


def _bytes(sharding: ShardingFields, name: str, spec: Spec) -> int:
    return held_bytes(sharding.graph.value(name), spec, sharding.mesh)
