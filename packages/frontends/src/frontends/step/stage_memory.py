"""The memory of a stage by kind over time, from the live ranges of autoshard.answer.memory.

As a phase runs as one program, live ranges differ from those that autoshard assumes:

- A program's operands stay until it ends. So a value from an earlier phase, or from another stage,
  is held until the phase that reads it last is over. Forward and backward are one program
  (`chunks`) if one microbatch is in flight and backward receives nothing that forward does not.
- A sum over microbatches is held all the time; one microbatch's addend is held beside it until it
  is added.
- New state that is computed in another layout than that of the old is held until it is converted.
- A value that is saved for backward in the layout in which it is made (`saved_layouts`) is the same
  memory.
- XLA fuses chains of elementwise operators in apply; see `fusion`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

import autoshard
from autoshard import Footprint, Held, Sharding, Strategy
from shardspec import Layout, Spec

from frontends.step.fusion import fused_in_apply
from frontends.step.step import APPLY, BACKWARD, FORWARD, IDENTITY

KINDS: Mapping[str, str] = {
    "parameter": "params",
    "optimizer_state": "optimizer",
    "input": "inputs",
    "activation": "activations",
    "gradient": "gradients",
    "temporary": "temporary",
    "copy": "copies",
}
"""By autoshard's kind of memory, what plans and reports call it."""


def held(sharding: Sharding) -> Iterator[Held]:
    """Everything that a device holds in a step, each for as long as a program holds it."""
    programs, every = _Programs(sharding), list(autoshard.held(sharding))
    for one in every:
        yield from programs.hold(one, sharding.options.in_flight)
    yield from programs.updates(every)


class _Programs:
    """How long the programs of a sharding's phases hold values."""

    def __init__(self, sharding: Sharding) -> None:
        self._sharding, self._graph = sharding, sharding.graph
        graph = self._graph
        phases = [operator.phase for operator in graph.operators]
        received = {name for name in graph.inputs if graph.value(name).role == "activation"}
        in_forward, in_backward = (
            {name for op in graph.operators if op.phase == phase for name in op.inputs}
            for phase in (FORWARD, BACKWARD)
        )
        waits = not received.isdisjoint(in_backward - in_forward)
        together = [BACKWARD if phase == FORWARD else phase for phase in phases]
        self._program_of = {False: phases, True: phases if waits else together}
        """The program of each operator; the key is whether only one microbatch is in flight."""

        self._read_last = {name: at for at, op in enumerate(graph.operators) for name in op.inputs}
        self._read_here = {
            name: at
            for at, op in enumerate(graph.operators)
            for name in op.inputs
            if name in graph.producers and phases[graph.producers[name][0]] == op.phase
        }
        converted = {c.value for c in sharding.conversions if c.phase == APPLY}
        self._fused = fused_in_apply(graph, converted)
        self._saved_at = {
            op.inputs[0]: at
            for at, (op, how) in enumerate(zip(graph.operators, sharding.strategies, strict=True))
            if op.kind == IDENTITY and op.phase == FORWARD and self._is_made_as(op.inputs[0], how)
        }
        """By value that is saved as it is made: the operator that saves it."""

    def _is_made_as(self, name: str, how: Strategy) -> bool:
        """Whether a value is made in the layout in which an identity reads it."""
        if name not in self._graph.producers:
            return False
        index, result = self._graph.producers[name]
        return self._sharding.strategies[index].result_specs[result] == how.operand_specs[0]

    def hold(self, one: Held, in_flight: int) -> Iterator[Held]:
        """The live ranges that one of autoshard's becomes when phases run as programs."""
        if one.value in self._fused:
            return
        saved_at = self._saved_at.get(one.value)
        if saved_at is not None and one.last == saved_at + 1:  # nothing reads it after that
            if in_flight > 1:  # then all that is saved counts from the start
                return
            one = replace(one, last=saved_at)
        programs, producers = self._program_of[in_flight == 1], self._graph.producers
        if one.first < one.last <= len(programs) and programs[one.first] < programs[one.last - 1]:
            yield replace(one, last=bisect_right(programs, programs[one.last - 1]))
        else:
            yield one
        produced = producers[one.value][0] if one.value in producers else 0
        # With several in flight, activations are counted for each of them, which is enough.
        is_alone = one.kind == "activation" and in_flight == 1
        if one.first < produced and (one.kind == "gradient" or is_alone):
            until = self._read_here.get(one.value, produced) + 1
            yield replace(one, kind="temporary", first=produced, last=until)

    def updates(self, every: Iterable[Held]) -> Iterator[Held]:
        """New state that is computed in another layout than that of the old state.

        It is converted at once. A layout on the way is held on if others are converted from it.

        Args:
            every: What autoshard counts, which is not counted again.
        """
        graph, sharding = self._graph, self._sharding
        produced_as = {
            name: spec
            for op, strategy in zip(graph.operators, sharding.strategies, strict=True)
            for name, spec in zip(op.outputs, strategy.result_specs, strict=True)
        }
        read_as = {
            (name, spec): at
            for at, (op, strategy) in enumerate(
                zip(graph.operators, sharding.strategies, strict=True)
            )
            for name, spec in zip(op.inputs, strategy.operand_specs, strict=True)
        }
        converted: dict[str, dict[Spec, Spec]] = {}
        for c in sharding.conversions:
            if c.phase == APPLY:
                converted.setdefault(c.value, {})[c.dst] = c.src
        counted = {(one.value, one.spec): one.first for one in every if one.kind == "copy"}
        for output, spec in zip(graph.outputs, sharding.output_specs, strict=True):
            value, name = graph.value(output.value), output.value
            if output.alias is None or produced_as[name] == spec:
                continue
            produced = graph.producers[name][0]
            source_of = converted.get(name, {})
            way = [spec]
            while way[-1] in source_of:
                way.append(source_of[way[-1]])
            read_later = {src for dst, src in source_of.items() if dst not in way}
            for layout in way[1:]:
                last = read_as.get((name, layout), produced)
                if layout in read_later:
                    last = max(last, self._read_last.get(name, produced))
                until = max(produced, min(last + 1, counted.get((name, layout), last + 1)))
                n_bytes = Layout(value.shape, sharding.mesh, layout).local_bytes(value.itemsize)
                yield Held(name, layout, "temporary", produced, until, n_bytes)


def footprint(sharding: Sharding) -> Footprint:
    """The bytes while each operator runs, for any number of microbatches in flight."""
    alone_of, several_of = sharding.graph.lifetimes
    programs = _Programs(sharding)
    alone: list[Held] = []
    saved: list[Held] = []
    two = replace(sharding, options=replace(sharding.options, in_flight=2))
    every = list(autoshard.held(two))
    always = list(programs.updates(every))
    for one in every:
        if one.kind in ("activation", "input") and several_of[one.value].copies > 1:
            saved += programs.hold(one, 2)
            life, n_bytes = alone_of[one.value], one.n_bytes // 2
            single = replace(one, first=life.first, last=life.last, n_bytes=n_bytes)
            alone += programs.hold(single, 1)
        else:
            always += programs.hold(one, 2)
    size = len(sharding.graph.operators)
    return Footprint(
        alone=_over_time((*always, *alone), size),
        fixed=_over_time(always, size),
        saved=tuple(n_bytes // 2 for n_bytes in _over_time(saved, size)),
        activation_bytes=sum(one.n_bytes for one in saved) // 2,
    )


def _over_time(all_held: Iterable[Held], size: int) -> tuple[int, ...]:
    changes = [0] * (max(size, 1) + 1)
    for one in all_held:
        changes[one.first] += one.n_bytes
        changes[one.last] -= one.n_bytes
    return tuple(accumulate(changes[:-1]))


def memory_curves(sharding: Sharding) -> dict[str, tuple[int, ...]]:
    """By kind, the bytes that a device holds while each operator runs."""
    of_kind: dict[str, list[Held]] = {kind: [] for kind in KINDS}
    for one in held(sharding):
        of_kind[one.kind].append(one)
    size = len(sharding.graph.operators)
    return {kind: _over_time(all_held, size) for kind, all_held in of_kind.items()}


def fullest_moment(sharding: Sharding) -> dict[str, int]:
    """Bytes by kind at the moment of peak memory."""
    curves = memory_curves(sharding)
    totals = [sum(moment) for moment in zip(*curves.values(), strict=True)]
    fullest = max(range(len(totals)), key=totals.__getitem__)
    return {kind: curve[fullest] for kind, curve in curves.items()}


def peak_bytes(sharding: Sharding) -> int:
    """The peak memory of a device."""
    return max(_over_time(held(sharding), len(sharding.graph.operators)))
