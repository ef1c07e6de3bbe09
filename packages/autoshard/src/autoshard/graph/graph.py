"""The program that is sharded, with properties that are derived once and kept with the graph."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from autoshard.base import record
from autoshard.base.arrays import shown
from autoshard.base.checks import of_class
from autoshard.errors import GraphError
from autoshard.graph.dim_divisors import Pieces, pieces_of_dims
from autoshard.graph.fields import field_misfits
from autoshard.graph.graph_fields import GraphFields
from autoshard.graph.lifetime import Kind, Lifetime, kinds_of, lifetimes, saved_activations
from autoshard.graph.outline import Outline
from autoshard.graph.repeats import repeated_operators
from autoshard.graph.rule import Rule
from autoshard.graph.text import parse, text_of

_MOST_BYTES = 2**62
"""The size of a value: more than any machine holds, and small enough that a sum of a few fits in
64 bits."""


@dataclass(frozen=True)
class Graph(GraphFields):
    """A program: operators in topological order, phase after phase."""

    @cached_property
    def lifetimes(self) -> tuple[dict[str, Lifetime], dict[str, Lifetime]]:
        """The lifetime of each value with one microbatch in flight, and with two."""
        return lifetimes(self, 1, self.saved), lifetimes(self, 2, self.saved)

    def lifetimes_of(self, in_flight: int) -> dict[str, Lifetime]:
        """The lifetime of each value with this many microbatches in flight."""
        if in_flight <= 2:
            return self.lifetimes[in_flight - 1]
        return lifetimes(self, in_flight, self.saved)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """See `kinds_of`."""
        return kinds_of(self, self.saved)

    @cached_property
    def outlines(self) -> dict[tuple[int, bool], Outline]:
        """A cache of `outline_of`, by its arguments."""
        return {}

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """See `saved_activations`."""
        return saved_activations(self)

    @cached_property
    def repeats(self) -> tuple[int, ...]:
        """For each operator the first one that it repeats, which may be itself."""
        return repeated_operators(self)

    @cached_property
    def misfit(self) -> str | None:
        """The first rule of `verify` that the graph breaks, as a sentence; `None` if none."""
        return next(chain(field_misfits(self), _problems(self)), None)

    @cached_property
    def pieces(self) -> dict[str, tuple[Pieces, ...]]:
        """For each value and dim, the numbers of pieces that a strided shard may have in it."""
        return pieces_of_dims(self)

    def __str__(self) -> str:
        return text_of(self)

    @classmethod
    def parse(cls, text: str) -> Graph:
        """The graph that prints as `text`.

        `parse(str(graph)) == graph` for all well-formed graphs, except for the order of `values`:
        a parsed graph has the inputs first, then the results of the operators.

        Raises:
            GraphError: a line is not in the notation, or the graph is not well-formed.

        Examples:
            >>> graph = Graph.parse('''phases: forward*2
            ... inputs: x: float32[4,8] batch
            ... forward: y: float32[4] = reduce_sum(x)  sum: (a,b)->(a) {a=4, b=8 sum} linear {0}
            ... outputs: y (whole)''')
            >>> graph.operators[0].name, graph.phases[0].repeats, graph.outputs[0].whole
            ('sum', 2, True)
        """
        if not isinstance(text, str):
            raise GraphError(
                f"a graph is parsed from its text, as str(graph) prints it; got {text!r}"
            )
        graph = cls(*parse(text))
        verify(graph)
        return graph

    def to_json(self) -> str:
        """The graph as JSON, which `from_json` reads back to an equal one."""
        return record.write("graph", self, (Rule,))

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Read a graph from the JSON that `to_json` writes, and verify it.

        Raises:
            RecordError: the text is not such JSON.
            GraphError: the graph is not well-formed.
        """
        graph = record.read("graph", cls, text, (Rule,))
        verify(graph)
        return graph


def verify(graph: Graph) -> None:
    """Check everything that the rest of the package takes for granted about a graph.

    Raises:
        GraphError: `graph` is not a `Graph`, a field holds a value of the wrong type or range,
            names are unknown or not unique, a value is read before it is computed, the phases are
            not in order, shapes do not match a rule, or an alias does not fit its input.
    """
    if not isinstance(graph, Graph):
        raise GraphError(
            f"a graph is a Graph, as a GraphBuilder or Graph.parse makes it; got {shown(graph)}"
        )
    if graph.misfit is not None:
        raise GraphError(graph.misfit)


def _problems(graph: Graph) -> Iterator[str]:
    """Yield each broken rule as a sentence, in order; later ones may follow from the first."""
    if len(graph.by_name) != len(graph.values):
        every = [value.name for value in graph.values]
        twice = next(name for name in every if every.count(name) > 1)
        yield f"the names of values are unique; {twice!r} occurs twice"
    for what, every in (
        ("phases", [phase.name for phase in graph.phases]),
        ("operators", [operator.name for operator in graph.operators]),
    ):
        if len(set(every)) != len(every):
            twice = next(name for name in every if every.count(name) > 1)
            yield f"the names of {what} are unique; {twice!r} occurs twice"
    for value in graph.values:
        if any(size < 0 for size in value.shape) or value.n_bytes > _MOST_BYTES:
            yield f"a value has dims >= 0 and at most {_MOST_BYTES} bytes; got '{value}'"
    for phase in graph.phases:
        if phase.repeats < 1:
            yield f"a phase runs at least once a step; {phase.name!r} has repeats={phase.repeats}"
    known: set[str] = set()
    for name in graph.inputs:
        if name not in graph.by_name or name in known:
            yield f"the inputs are distinct values of the graph; got {name!r}"
        known.add(name)
    last_phase = 0
    for operator in graph.operators:
        if not last_phase <= operator.phase < len(graph.phases):
            yield (
                "operators are ordered by phase, and their phases are in range; "
                f"operator {operator.name!r} has phase {operator.phase} after phase {last_phase} "
                f"of {len(graph.phases)}"
            )
        last_phase = operator.phase
        if not operator.outputs:
            yield f"an operator has at least one output; {operator.name!r} has none"
        for name in operator.inputs:
            if name not in known:
                yield f"operator {operator.name!r} reads {name!r} before it is made"
        for name in operator.outputs:
            if name not in graph.by_name or name in known:
                yield f"operator {operator.name!r} makes {name!r}, which is unknown or already made"
            known.add(name)
        for role, names, expected in (
            ("operand", operator.inputs, operator.rule.operand_shapes),
            ("result", operator.outputs, operator.rule.result_shapes),
        ):
            shapes = tuple(graph.by_name[name].shape for name in names)
            if shapes != expected:
                yield (
                    f"the rule of operator {operator.name!r} is for {role} shapes {expected}; "
                    f"its values have {shapes}"
                )
        n_values = len(operator.inputs) + len(operator.outputs)
        if operator.accesses is not None and len(operator.accesses.times) != n_values:
            yield (
                "the accesses of an operator have a number for each operand and result; operator "
                f"{operator.name!r} has {n_values} of these and {len(operator.accesses.times)} "
                "numbers"
            )
    if unmade := [name for name in graph.by_name if name not in known]:
        yield f"every value is an input or made by an operator; {unmade[0]!r} is neither"
    aliases: set[str] = set()
    for output in graph.outputs:
        if output.value not in known:
            yield f"the outputs are values of the graph; got {output.value!r}"
        if output.alias is None:
            continue
        if output.whole:
            yield f"output {output.value!r} is whole or an alias, not both"
        if output.alias not in graph.inputs or output.alias in aliases:
            yield f"an alias is an input that no other output has; got {output.alias!r}"
        aliases.add(output.alias)
        made, stored = graph.by_name[output.value], graph.by_name[output.alias]
        if (made.shape, made.dtype) != (stored.shape, stored.dtype):
            yield f"an alias has its input's shape and dtype; got '{made}' for '{stored}'"


@dataclass(frozen=True, slots=True)
class _Written:
    """An object that prints as a given text: caches the repr of a rule that is used many times."""

    text: str

    def __repr__(self) -> str:
        return self.text


def structural_hash(graph: Graph) -> str:
    """A digest of all that decides how a graph is sharded; graphs that differ only in names agree.

    Returns:
        SHA-256 in hexadecimal.
    """
    of_class(GraphError, "graph", graph, Graph, "as GraphBuilder and Graph.parse make it")
    number: dict[str, int] = {}
    for name in graph.inputs:
        number[name] = len(number)
    for operator in graph.operators:
        for name in operator.outputs:
            number[name] = len(number)
    ordered = sorted(number, key=number.__getitem__)
    rules = {id(op.rule): op.rule for op in graph.operators}
    written = {key: _Written(repr(rule)) for key, rule in rules.items()}
    description = (
        tuple(phase.repeats for phase in graph.phases),
        tuple((graph.value(n).shape, graph.value(n).dtype, graph.value(n).role) for n in ordered),
        len(graph.inputs),
        tuple(
            (
                *(op.kind, tuple(number[n] for n in op.inputs), written[id(op.rule)]),
                *(op.flops, op.phase),
                *(() if op.accesses is None else (op.accesses,)),
            )
            for op in graph.operators
        ),
        tuple(
            (number[o.value], None if o.alias is None else number[o.alias], o.whole)
            for o in graph.outputs
        ),
    )
    return hashlib.sha256(repr(description).encode()).hexdigest()
