"""`explain`: why an operator runs, or an input is stored, as it does, as a table and sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches

from shardspec import Mesh, Spec
from shardspec.amounts import bytes_text, columns, seconds_text

from autoshard.answer.costs import ConversionCost, move
from autoshard.answer.memory import peak_bytes
from autoshard.answer.sharding_fields import ShardingFields, is_sharding
from autoshard.answer.what_if import Candidate, candidates, replaced
from autoshard.errors import GraphError
from autoshard.space.conversion import Conversion
from autoshard.space.phrases import formula, specs_text, strategy_text
from autoshard.space.strategy import Strategy

_SHOWN = 8
"""The most other candidates in a table; further ones are only counted."""
_ALIKE = 1e-9
"""The fraction of a price by which two may differ from rounding, as `session.CLOSED`."""
_WORTH_SAYING = 0.01
"""A difference is mentioned if it is more than this fraction of the whole."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """All candidates for one operator or input; prints as a table and the reason for the choice."""

    title: str
    taken: Candidate
    others: tuple[Candidate, ...]
    """Ordered by seconds, then by bytes."""
    reason: str
    """Why the first of the others was not taken."""
    conversions: tuple[ConversionCost, ...]
    """The conversions of an operator's operands in the sharding, in order."""
    _mesh: Mesh

    def __str__(self) -> str:
        header: tuple[str, ...] = ("axes", "specs", "compute", "operands", "results")
        if isinstance(self.taken.how, Spec):
            header = ("stored as", "update", "readers")
        right = range(header.index("update" if "update" in header else "compute"), len(header) + 2)
        header += ("in all", "bytes", "")
        possible = [other for other in self.others if math.isfinite(other.seconds)]
        shown = possible[:_SHOWN]
        rows = [header, self._row(self.taken), *map(self._row, shown)]
        lines = [self.title, "", *columns(rows, right)]
        if left := possible[_SHOWN:]:
            lines.append(f"... and {len(left)} more, from {seconds_text(left[0].seconds)} on")
        if impossible := len(self.others) - len(possible):
            lines.append(f"... and {impossible} that no conversion leads to")
        if self.conversions:
            lines += ["", f"Its operands take {', '.join(map(_move_text, self.conversions))}."]
        return "\n".join([*lines, "", self.reason])

    def _row(self, candidate: Candidate) -> tuple[str, ...]:
        how = candidate.how
        seconds = [candidate.before_s, candidate.after_s, candidate.seconds]
        first = [str(how)]
        if not isinstance(how, Spec):
            first = [strategy_text(how, self._mesh), specs_text(how)]
            seconds.insert(0, candidate.compute_s)
        more = _difference(candidate.seconds, self.taken.seconds)
        note = "taken" if candidate is self.taken else _more(more)
        return (*first, *map(seconds_text, seconds), bytes_text(candidate.n_bytes), note)


def explain(sharding: ShardingFields, name: str) -> Explanation:
    """Every way to run an operator or to store an input, with its price, and why one was taken.

    Conversions count in full, including the part that `overlap` hides or that buckets save.

    Args:
        sharding: The sharding to explain.
        name: An operator, an input, or a value, which means the operator that computes it.

    Raises:
        GraphError: the graph has nothing of this name.
    """
    is_sharding(sharding)
    graph = sharding.graph
    if not isinstance(name, str):
        raise GraphError(f"explain takes the name of an operator or value; got {name!r}")
    index = next((i for i, operator in enumerate(graph.operators) if operator.name == name), None)
    if index is None and name in graph.producers:
        index, _ = graph.producers[name]
    if index is not None:
        operator = graph.operators[index]
        call = f"{', '.join(operator.outputs)} = {operator.kind}({', '.join(operator.inputs)})"
        title = f"{operator.name}: {call}, {formula(operator.rule)}"
        return _explained(sharding, title, index, sharding.strategies[index])
    if name in graph.inputs:
        title = str(graph.value(name))
        return _explained(sharding, title, name, dict(sharding.input_specs)[name])
    names = [*(operator.name for operator in graph.operators), *graph.by_name]
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"its inputs are {', '.join(graph.inputs)}"
    raise GraphError(f"no operator or value of the graph is called {name!r}; {hint}")


def _explained(
    sharding: ShardingFields, title: str, place: int | str, how: Strategy | Spec
) -> Explanation:
    every = candidates(sharding, place)
    taken = next(candidate for candidate in every if candidate.how == how)
    others = sorted(
        (candidate for candidate in every if candidate is not taken),
        key=lambda candidate: (candidate.seconds, candidate.n_bytes),
    )
    if others and math.isfinite(others[0].seconds):
        peak = peak_bytes(replaced(sharding, place, others[0]))
        reason = _reason(sharding, taken, others[0], peak)
    else:
        reason = "There is no other way."
    moves = tuple(move(sharding, one) for one in _of_operands(sharding, place))
    return Explanation(title, taken, tuple(others), reason, moves, sharding.mesh)


def _of_operands(sharding: ShardingFields, place: int | str) -> list[Conversion]:
    """The conversions that an operator's operands go through; none for an input."""
    if isinstance(place, str):
        return []
    operator, strategy = sharding.graph.operators[place], sharding.strategies[place]
    wanted = set(zip(operator.inputs, strategy.operand_specs, strict=True))
    conversions: list[Conversion] = []
    for one in reversed(sharding.conversions):
        if one.phase == operator.phase and (one.value, one.dst) in wanted:
            wanted.add((one.value, one.src))
            conversions.append(one)
    return conversions[::-1]


def _move_text(of: ConversionCost) -> str:
    kind, ends = of.step.kind.replace("_", "-"), f"{of.conversion.src} -> {of.conversion.dst}"
    kind = f"{'an' if kind[0] in 'ae' else 'a'} {kind}"
    return f"{kind} of {of.value.name}, {ends} ({seconds_text(of.seconds)})"


def _reason(sharding: ShardingFields, taken: Candidate, other: Candidate, peak: int) -> str:
    """Why the next best candidate was not taken, in words.

    Args:
        sharding: The sharding.
        taken: The candidate that was taken.
        other: The next best.
        peak: The most bytes that a device would hold with the next best.
    """
    more = _difference(other.seconds, taken.seconds)
    name = _name(other.how, sharding.mesh)
    limit = sharding.options.memory_bytes
    holds = f"a device would hold {bytes_text(peak)} at its peak"
    if more == 0.0:
        first = f"The next best, {name}, would take as long"
    else:
        first = f"The next best, {name}, would take {_more(more)}{_parts(taken, other)}"
    if limit is not None and peak > limit:
        return f"{first}; but {holds}, {bytes_text(peak - limit)} above the limit."
    if more < 0.0:
        return f"{first}; the search did not come to it ({_proof(sharding)})."
    if abs(peak - sharding.peak_bytes) > _WORTH_SAYING * sharding.peak_bytes:
        return f"{first}; {holds} instead of {bytes_text(sharding.peak_bytes)}."
    return f"{first}."


def _parts(taken: Candidate, other: Candidate) -> str:
    """The parts of the difference between two candidates, largest first, as text."""
    where = (
        ("to update it", "for its readers")
        if isinstance(taken.how, Spec)
        else ("for its operands", "for its results")
    )
    differences = [
        (other.compute_s - taken.compute_s, "compute"),
        (other.before_s - taken.before_s, f"conversions {where[0]}"),
        (other.after_s - taken.after_s, f"conversions {where[1]}"),
    ]
    least = _WORTH_SAYING * abs(other.seconds - taken.seconds)
    parts = sorted((part for part in differences if abs(part[0]) > least), key=lambda p: -abs(p[0]))
    if len(parts) == 1:
        return f", of {parts[0][1]}"
    return ": " + ", ".join(f"{_more(seconds)} of {what}" for seconds, what in parts)


def _difference(seconds: float, of_taken: float) -> float:
    """How much longer a candidate takes than the taken one; 0 if that may be rounding."""
    more = seconds - of_taken
    return 0.0 if abs(more) <= _ALIKE * of_taken else more


def _more(seconds: float) -> str:
    if seconds == 0.0:
        return "as long"
    return f"{seconds_text(abs(seconds))} {'more' if seconds > 0 else 'less'}"


def _proof(sharding: ShardingFields) -> str:
    if sharding.lower_bound_s <= 0.0:
        return "nothing is proved of the others"
    few = "" if sharding.is_bound_of_all else ", with few copies of a value,"
    return f"nothing{few} takes less than {seconds_text(sharding.lower_bound_s)} a step"


def _name(how: Strategy | Spec, mesh: Mesh) -> str:
    return str(how) if isinstance(how, Spec) else strategy_text(how, mesh)
