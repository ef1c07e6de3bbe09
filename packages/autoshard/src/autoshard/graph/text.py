"""A graph as text, and back: a line for the phases, the inputs, each operator and the outputs."""

from __future__ import annotations

import re
from typing import cast, get_args

from autoshard.base.names import NAME, quote, unquote, unquote_all
from autoshard.errors import GraphError, RuleError
from autoshard.graph.graph_fields import GraphFields, Operator, Output, Phase, Role, Value
from autoshard.graph.rule import Rule


def text_of(graph: GraphFields) -> str:
    """All of a graph but the order of its values; see `Graph.parse` for an example."""
    rules: dict[int, str] = {}  # repeated layers share them, and they are long to write

    def values(names: tuple[str, ...]) -> str:
        return ", ".join(str(graph.value(name)) for name in names)

    def rule(of: Rule) -> str:
        if id(of) not in rules:
            rules[id(of)] = str(of)
        return rules[id(of)]

    phases = (
        quote(phase.name) + (f"*{phase.repeats}" if phase.repeats != 1 else "")
        for phase in graph.phases
    )
    lines = [f"phases: {', '.join(phases)}", f"inputs: {values(graph.inputs)}"]
    for operator in graph.operators:
        own_name = operator.outputs[:1] != (operator.name,)
        lines.append(
            f"{quote(graph.phases[operator.phase].name)}: {values(operator.outputs)} = "
            f"{quote(operator.kind)}({', '.join(map(quote, operator.inputs))})  "
            + (f"{quote(operator.name)}: " if own_name else "")
            + rule(operator.rule)
            + (f" flops={operator.flops!r}" if operator.flops else "")
        )
    outputs = (
        quote(output.value)
        + (f" -> {quote(output.alias)}" if output.alias is not None else "")
        + (" (whole)" if output.whole else "")
        for output in graph.outputs
    )
    lines.append(f"outputs: {', '.join(outputs)}")
    return "\n".join(lines)


def parse(
    text: str,
) -> tuple[
    tuple[Phase, ...],
    tuple[Value, ...],
    tuple[Operator, ...],
    tuple[str, ...],
    tuple[Output, ...],
]:
    """The fields of the graph that a text says, which may break the rules of `verify`.

    Raises:
        GraphError: a line is not in the notation.
    """
    lines = [line.strip() for line in text.strip().split("\n")]
    if len(lines) < 3:
        raise _unreadable("lines of phases, inputs, operators and outputs", text)
    phases = tuple(
        Phase(unquote(match["name"]), int(match["repeats"] or 1))
        for match in _entries(_PHASE, "phases", lines[0])
    )
    inputs = tuple(map(_parse_value, _entries(_VALUE, "inputs", lines[1])))
    outputs = tuple(
        Output(
            unquote(match["name"]),
            None if match["alias"] is None else unquote(match["alias"]),
            match["whole"] is not None,
        )
        for match in _entries(_OUTPUT, "outputs", lines[-1])
    )
    number = {phase.name: index for index, phase in enumerate(phases)}
    values, operators = list(inputs), []
    for line in lines[2:-1]:
        made, operator = _parse_operator(line, number)
        values += made
        operators.append(operator)
    return (
        phases,
        tuple(values),
        tuple(operators),
        tuple(value.name for value in inputs),
        outputs,
    )


_NUMBER = "[0-9]{1,19}"
_SHAPE = rf"(?:{_NUMBER}(?:,{_NUMBER})*)?"
_PHASE = re.compile(rf"(?P<name>{NAME})(?:\*(?P<repeats>{_NUMBER}))?")
_ROLE = "|".join(get_args(Role))
_VALUE_TEXT = rf"{NAME}: \w+\[{_SHAPE}\](?: (?:{_ROLE}))?"
_VALUE = re.compile(
    rf"(?P<name>{NAME}): (?P<dtype>\w+)\[(?P<shape>{_SHAPE})\](?: (?P<role>{_ROLE}))?"
)
_OUTPUT = re.compile(rf"(?P<name>{NAME})(?: -> (?P<alias>{NAME}))?(?P<whole> \(whole\))?")
_OPERATOR = re.compile(
    rf"(?P<phase>{NAME}): (?P<made>(?:{_VALUE_TEXT}(?:, )?)*) = "
    rf"(?P<kind>{NAME})\((?P<read>(?:{NAME}(?:, )?)*)\)  "
    rf"(?:(?P<name>{NAME}): )?(?P<rule>[^\"=]*\{{.*?)(?: flops=(?P<flops>\S+))?"
)


def _unreadable(expected: str, line: str) -> GraphError:
    return GraphError(f"a graph's text has {expected}, as str(graph) prints them; got {line!r}")


def _entries(pattern: re.Pattern[str], title: str, line: str) -> list[re.Match[str]]:
    """The matches of a pattern that a line consists of, after its title."""
    start, _, rest = line.partition(":")
    if start != title:
        raise _unreadable(f"a line of {title}", line)
    found, place, rest = [], 0, rest.strip()
    while place < len(rest):
        match = pattern.match(rest, place)
        if match is None or match.end() == place:
            raise _unreadable(f"{title} separated by commas", rest[place:])
        found.append(match)
        place = match.end() + 2 * rest.startswith(", ", match.end())
    return found


def _parse_value(match: re.Match[str]) -> Value:
    shape = tuple(map(int, match["shape"].split(","))) if match["shape"] else ()
    role = cast(Role, match["role"] or "intermediate")
    return Value(unquote(match["name"]), shape, match["dtype"], role)


def _parse_operator(line: str, phases: dict[str, int]) -> tuple[list[Value], Operator]:
    """The values that an operator makes, and the operator."""
    match = _OPERATOR.fullmatch(line)
    if match is None:
        raise _unreadable("operators as 'phase: y: float32[4] = kind(x)  name: rule'", line)
    if unquote(match["phase"]) not in phases:
        raise _unreadable(f"operators of the phases {list(phases)}", line)
    made = list(map(_parse_value, _VALUE.finditer(match["made"])))
    try:
        rule = Rule.parse(match["rule"])
    except RuleError as error:
        raise GraphError(f"the rule of an operator is no rule: {error}, in {line!r}") from None
    try:
        flops = float(match["flops"] or 0.0)
    except ValueError:
        raise GraphError(
            f"the flops of an operator are a number; got {match['flops']!r} in {line!r}"
        ) from None
    name = unquote(match["name"]) if match["name"] else made[0].name if made else ""
    operator = Operator(
        name,
        unquote(match["kind"]),
        unquote_all(match["read"]),
        tuple(value.name for value in made),
        rule,
        flops,
        phases[unquote(match["phase"])],
    )
    return made, operator
