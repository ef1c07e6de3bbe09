"""Prices every way to run one operator, or to store one input, while everything else stays.

The other operators keep their strategies and the other inputs their specs; only the conversions of
the values concerned are planned again. So every candidate is a sharding that could be run, and the
difference between two candidates is that between the times of these shardings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from shardspec import Spec

from autoshard.answer.costs import converter, held_bytes, work
from autoshard.answer.sharding_fields import ShardingFields
from autoshard.graph.graph_fields import Value
from autoshard.space.baseline import baseline_inputs
from autoshard.space.conversion import Conversion, spec_set
from autoshard.space.conversions import convert
from autoshard.space.strategy import Strategy
from autoshard.space.strategy_tables import stored_specs_of, table_of

_COPIES = 2
"""The most intermediate copies of the sharding that conversions may start from here, too: `convert`
tries each order of each set of them."""
Reads = tuple[tuple[int, int, Spec], ...]
"""The readers of a value, each with phase and spec: an operator's index, or -1 - i for output i."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way, while everything else stays. Seconds are of all runs in a step."""

    how: Strategy | Spec
    """The strategy of the operator, or the spec in which the input is stored."""
    compute_s: float
    before_s: float
    """Conversions of an operator's operands, or of the value that is stored back into an input."""
    after_s: float
    """Conversions of an operator's results, or of an input, for all their readers."""
    n_bytes: int
    """Bytes that a device holds of the results, or of the input."""
    conversions: tuple[Conversion, ...]
    """All conversions of the values concerned."""

    @property
    def seconds(self) -> float:
        """Compute and conversions together; infinite if a conversion is impossible."""
        return self.compute_s + self.before_s + self.after_s


def candidates(sharding: ShardingFields, place: int | str) -> tuple[Candidate, ...]:
    """All ways to run an operator, given by its index, or to store an input, given by its name."""
    if isinstance(place, int):
        return _of_operator(sharding, place)
    return _of_input(sharding, place)


def replaced(sharding: ShardingFields, place: int | str, candidate: Candidate) -> ShardingFields:
    """The sharding of a candidate; only its memory is right, its times are those of before."""
    graph, how = sharding.graph, candidate.how
    if isinstance(place, int) and isinstance(how, Strategy):
        concerned = {*graph.operators[place].inputs, *graph.operators[place].outputs}
        before, after = sharding.strategies[:place], sharding.strategies[place + 1 :]
        sharding = replace(sharding, strategies=(*before, how, *after))
    elif isinstance(place, str) and isinstance(how, Spec):
        concerned = {place, *(output.value for output in graph.outputs if output.alias == place)}
        stored = tuple((name, how if name == place else of) for name, of in sharding.input_specs)
        leaving = tuple(
            how if output.alias == place else spec
            for output, spec in zip(graph.outputs, sharding.output_specs, strict=True)
        )
        sharding = replace(sharding, input_specs=stored, output_specs=leaving)
    else:
        raise TypeError(f"an operator has a strategy, an input a spec; got {place!r} and {how}")
    others = (one for one in sharding.conversions if one.value not in concerned)
    return replace(sharding, conversions=(*others, *candidate.conversions))


def _of_operator(sharding: ShardingFields, index: int) -> tuple[Candidate, ...]:
    """All ways to run an operator, in the order of its strategies."""
    graph = sharding.graph
    operator, values = graph.operators[index], _Values(sharding)
    others = {name: values.reads_without(name, index) for name in dict.fromkeys(operator.inputs)}

    @cache
    def before(name: str, asked: tuple[Spec, ...]) -> tuple[tuple[Conversion, ...], float]:
        """All conversions of an operand, and the seconds that this operator adds to them."""
        reads = others[name] + tuple((index, operator.phase, spec) for spec in asked)
        made = values.made[name]
        conversions, seconds = values.served(name, made, reads)
        return conversions, seconds - values.served(name, made, others[name])[1]

    def candidate(strategy: Strategy) -> Candidate:
        asked: dict[str, tuple[Spec, ...]] = {}
        for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True):
            asked[name] = (*asked.get(name, ()), spec)
        operands = [before(name, specs) for name, specs in asked.items()]
        results = [
            values.served(name, spec, values.reads[name])
            for name, spec in zip(operator.outputs, strategy.result_specs, strict=True)
        ]
        entry = work(sharding, operator, strategy)
        return Candidate(
            strategy,
            entry.seconds,
            sum(seconds for _, seconds in operands),
            sum(seconds for _, seconds in results),
            entry.n_bytes,
            tuple(one for conversions, _ in operands + results for one in conversions),
        )

    table = table_of(graph, operator, sharding.mesh.shape, sharding.options)
    return tuple(map(candidate, table.strategies))


def _of_input(sharding: ShardingFields, name: str) -> tuple[Candidate, ...]:
    """All ways to store an input that the options allow."""
    graph, mesh, options = sharding.graph, sharding.mesh, sharding.options
    value, values = graph.value(name), _Values(sharding)
    specs = stored_specs_of(graph, name, mesh.shape, options)
    if options.restrict is not None:
        specs = baseline_inputs(graph, mesh, options.restrict).get(name, specs)
    if values.made[name] not in specs:  # a pin overrides the baseline
        specs = (values.made[name], *specs)
    updates = [
        (output.value, -1 - place)
        for place, output in enumerate(graph.outputs)
        if output.alias == name and output.value != name
    ]

    def candidate(spec: Spec) -> Candidate:
        conversions, after = values.served(name, spec, values.reads[name])
        before = 0.0
        for made, reader in updates:
            others = values.reads_without(made, reader)
            phase = next(of for who, of, _ in values.reads[made] if who == reader)
            more, seconds = values.served(made, values.made[made], (*others, (reader, phase, spec)))
            before += seconds - values.served(made, values.made[made], others)[1]
            conversions += more
        return Candidate(spec, 0.0, before, after, held_bytes(value, spec, mesh), conversions)

    return tuple(map(candidate, specs))


class _Values:
    """The specs in which the values of a sharding are computed and read."""

    def __init__(self, sharding: ShardingFields) -> None:
        self.sharding = sharding
        graph = sharding.graph
        self.made = dict(sharding.input_specs)
        reads: dict[str, list[tuple[int, int, Spec]]] = {name: [] for name in graph.by_name}
        for index, operator in enumerate(graph.operators):
            strategy = sharding.strategies[index]
            for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True):
                reads[name].append((index, operator.phase, spec))
            self.made.update(zip(operator.outputs, strategy.result_specs, strict=True))
        for place, output in enumerate(graph.outputs):
            spec = sharding.output_specs[place]
            reads[output.value].append((-1 - place, graph.phase_of_output(output), spec))
        self.reads: dict[str, Reads] = {name: tuple(of) for name, of in reads.items()}
        self.converter = converter(sharding)
        self.copies: dict[tuple[str, int], list[Spec]] = {}
        for one in sharding.conversions:
            self.copies.setdefault((one.value, one.phase), []).append(one.dst)

    def reads_without(self, name: str, reader: int) -> Reads:
        """The readers of a value except one."""
        return tuple(read for read in self.reads[name] if read[0] != reader)

    def served(self, name: str, made: Spec, reads: Reads) -> tuple[tuple[Conversion, ...], float]:
        """The conversions of a value from `made` to its reads, and their seconds in a step."""
        graph, value = self.sharding.graph, self.sharding.graph.value(name)
        asked: dict[int, list[Spec]] = {}
        for reader, phase, spec in reads:
            asked.setdefault(phase, []).append(self._leaving(value, made, reader, spec))
        conversions: list[Conversion] = []
        total = 0.0
        for phase, specs in asked.items():
            known = self.copies.get((name, phase), ())
            copies = [spec for spec in known if spec not in specs][:_COPIES]
            hops, seconds = convert(self.converter, value, made, specs, copies)
            if seconds > 0.0 and name in graph.constants:
                seconds = math.inf  # as in `from_graph`: constants are never sent
            conversions += (Conversion(phase, name, src, dst) for src, dst in hops)
            total += seconds * graph.phases[phase].repeats
        return tuple(conversions), total

    def _leaving(self, value: Value, made: Spec, reader: int, spec: Spec) -> Spec:
        """The spec that a reader needs; an output that may have any layout takes the cheapest."""
        if reader >= 0:
            return spec
        output = self.sharding.graph.outputs[-1 - reader]
        if output.alias is not None or output.whole:
            return spec
        if not made.is_partial:
            return made
        shape, options = self.sharding.mesh.shape, self.sharding.options
        specs = stored_specs_of(self.sharding.graph, value.name, shape, options)
        seconds = self.converter.seconds(value, spec_set((made,)), spec_set(specs))[0]
        return specs[int(seconds.argmin())]
