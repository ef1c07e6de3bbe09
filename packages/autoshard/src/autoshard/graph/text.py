"""Graphs as text, and back: one line each for the phases, inputs, every operator, and outputs."""

from __future__ import annotations

import re
from typing import cast, get_args

from autoshard.base.names import NAME, quote, unquote, unquote_all
from autoshard.errors import GraphError, RuleError
from autoshard.graph.graph_fields import Accesses, GraphFields, Operator, Output, Phase, Role, Value
from autoshard.graph.rule import Rule


def text_of(graph: GraphFields) -> str:
    """All of a graph but the order of its values; see `Graph.parse` for an example."""
    rules: dict[int, str] = {}  # a cache: repeated layers share rules, which are slow to print

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
        is_named = operator.outputs[:1] != (operator.name,)
        lines.append(
            f"{quote(graph.phases[operator.phase].name)}: {values(operator.outputs)} = "
            f"{quote(operator.kind)}({', '.join(map(quote, operator.inputs))})  "
            + (f"{quote(operator.name)}: " if is_named else "")
            + rule(operator.rule)
            + (f" flops={operator.flops!r}" if operator.flops else "")
            + _accesses_text(operator.accesses)
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
    """The fields of the graph that `text_of` wrote; they may break the rules of `verify`.

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
        results, operator = _parse_operator(line, number)
        values += results
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
    rf"(?P<phase>{NAME}): (?P<made>(?:{_VALUE_TEXT}(?:, {_VALUE_TEXT})*)?) = "
    rf"(?P<kind>{NAME})\((?P<read>(?:{NAME}(?:, {NAME})*)?)\)  "
    rf"(?:(?P<name>{NAME}): )?(?P<rule>[^\"=]*\{{.*?)(?: flops=(?P<flops>\S+))?"
    r"(?: accesses=(?P<times>[^\s;]*);(?P<launches>\S+))?"
)


def _unreadable(expected: str, line: str) -> GraphError:
    return GraphError(f"a graph's text has {expected}, as str(graph) prints them; got {line!r}")


def _entries(pattern: re.Pattern[str], title: str, line: str) -> list[re.Match[str]]:
    """The matches of a pattern in a line "title: match, match, ..."."""
    start, _, rest = line.partition(":")
    if start != title:
        raise _unreadable(f"a line of {title}", line)
    matches, position, rest = [], 0, rest.strip()
    while position < len(rest):
        match = pattern.match(rest, position)
        if match is None or match.end() == position:
            raise _unreadable(f"{title} separated by commas", rest[position:])
        matches.append(match)
        position = match.end() + 2 * rest.startswith(", ", match.end())
    return matches


def _parse_value(match: re.Match[str]) -> Value:
    shape = tuple(map(int, match["shape"].split(","))) if match["shape"] else ()
    role = cast(Role, match["role"] or "intermediate")
    return Value(unquote(match["name"]), shape, match["dtype"], role)


def _parse_operator(line: str, phases: dict[str, int]) -> tuple[list[Value], Operator]:
    """The operator on a line, after the values that are its results."""
    match = _OPERATOR.fullmatch(line)
    if match is None:
        raise _unreadable("operators as 'phase: y: float32[4] = kind(x)  name: rule'", line)
    if unquote(match["phase"]) not in phases:
        raise _unreadable(f"operators of the phases {list(phases)}", line)
    results = list(map(_parse_value, _VALUE.finditer(match["made"])))
    try:
        rule = Rule.parse(match["rule"])
    except RuleError as error:
        raise GraphError(f"the rule of an operator is not valid: {error}, in {line!r}") from None
    try:
        flops = float(match["flops"] or 0.0)
    except ValueError:
        raise GraphError(
            f"the flops of an operator are a number; got {match['flops']!r} in {line!r}"
        ) from None
    name = unquote(match["name"]) if match["name"] else results[0].name if results else ""
    operator = Operator(
        name,
        unquote(match["kind"]),
        unquote_all(match["read"]),
        tuple(value.name for value in results),
        rule,
        flops,
        phases[unquote(match["phase"])],
        _parse_accesses(match["times"], match["launches"], line),
    )
    return results, operator


def _accesses_text(accesses: Accesses | None) -> str:
    """` accesses=1.0,0.0;1.0` for an operand that is read, a result that is not, and a launch."""
    if accesses is None:
        return ""
    return f" accesses={','.join(map(repr, accesses.times))};{accesses.launches!r}"


def _parse_accesses(times: str | None, launches: str | None, line: str) -> Accesses | None:
    if times is None or launches is None:
        return None
    try:
        return Accesses(tuple(map(float, times.split(","))) if times else (), float(launches))
    except ValueError:
        raise GraphError(
            f"the accesses of an operator are numbers 'times,times;launches'; got "
            f"'{times};{launches}' in {line!r}"
        ) from None
