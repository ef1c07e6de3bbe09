"""A sharding as a table: its operators and conversions, with their seconds and bytes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from shardspec.amounts import bytes_text, columns, seconds_text

from autoshard.answer.costs import ConversionCost, OperatorCost, entries
from autoshard.answer.sharding_fields import ShardingFields
from autoshard.space.phrases import specs_text

_WORTH = 4
"""The lines that collapsing a repetition has to save: it adds a line itself, and hides some."""


def table(sharding: ShardingFields) -> str:
    """The whole sharding as text.

    First a summary; then the spec of each input; then, for each phase, its operators, with the
    specs of their operands and results, the seconds of all runs in a step, and the bytes that a
    device holds of the results. A conversion is listed before the first operator that needs it,
    with the bytes that a device receives. Repeated layers are shown once.
    """
    graph = sharding.graph
    lines = [*summary(sharding), ""]
    stored = [
        (name, f"{value.dtype}[{','.join(map(str, value.shape))}]", value.role, str(spec))
        for name, spec in sharding.input_specs
        for value in [graph.value(name)]
    ]
    rows = [("input", "", "", "stored as"), *stored]
    lines += collapsed(columns(rows), [None, *(row[1:] for row in stored)])
    every = entries(sharding)
    for number, phase in enumerate(graph.phases):
        of_phase = [entry for entry in every if entry.phase == number]
        if not of_phase:
            continue
        again = "" if phase.repeats == 1 else f" (runs {phase.repeats} times)"
        header = (f"{phase.name}{again}", "", "", "seconds", "bytes")
        lines.append("")
        lines += collapsed(
            columns([header, *map(_row, of_phase)], right=(3, 4)),
            [None, *map(_likeness, of_phase)],
        )
    return "\n".join(lines)


def summary(sharding: ShardingFields) -> list[str]:
    """The lines on size, time, proof and memory of a sharding, and on its alternatives."""
    compute, communication = sum(sharding.compute_s), sum(sharding.communication_s)
    axes = ", ".join(
        f"{name}={size}"
        for name, size in zip(sharding.mesh.axis_names, sharding.mesh.shape, strict=True)
    )
    limit = sharding.options.memory_bytes
    within = "" if limit is None else f", of {bytes_text(limit)} allowed"
    apart = ""
    if hidden := sum(sharding.hidden_s):
        apart += f" of which {seconds_text(hidden)} are hidden"
    if saved := sum(sharding.bucketed_s):
        apart += f" (buckets save {seconds_text(saved)})"
    return [
        f"{_count(len(sharding.graph.operators), 'operator')} on "
        f"{_count(sharding.mesh.size, 'device')} ({axes}) of {sharding.cluster.name}",
        f"{seconds_text(sharding.objective_s)} a step: compute {seconds_text(compute)}, "
        f"communication {seconds_text(communication)}{apart}; {proof(sharding)}",
        f"at most {bytes_text(sharding.peak_bytes)} a device{within}",
        *(f"compared with {other.name}: {other.reason}" for other in sharding.alternatives),
    ]


def proof(sharding: ShardingFields) -> str:
    """What the lower bound proves, as text, and for which shardings."""
    lower = sharding.lower_bound_s
    said = "no sharding takes less"
    if sharding.objective_s > lower * (1 + 1e-9):
        said = f"none takes less than {seconds_text(lower)}"
    if lower <= 0.0 < sharding.objective_s:
        return "nothing is proved"
    return said if sharding.is_bound_of_all else f"{said}, of those with few copies of a value"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _row(entry: OperatorCost | ConversionCost) -> tuple[str, ...]:
    if isinstance(entry, OperatorCost):
        name, what, how = entry.operator.name, entry.operator.kind, specs_text(entry.strategy)
    else:
        conversion = entry.conversion
        name, what = f"  {conversion.value}", entry.step.kind.replace("_", "-")
        how = f"{conversion.src} -> {conversion.dst}"
    return (name, what, how, seconds_text(entry.seconds), bytes_text(entry.n_bytes))


def _likeness(entry: OperatorCost | ConversionCost) -> Hashable:
    """A key that is equal for entries that differ only in names."""
    return (*_row(entry)[1:], isinstance(entry, ConversionCost))


def collapsed(lines: Sequence[str], likenesses: Sequence[Hashable]) -> list[str]:
    r"""The lines, in which a run that repeats the one before it is replaced by a count.

    Args:
        lines: The lines.
        likenesses: A key for each line; lines with equal keys count as equal.

    Examples:
        >>> print("\n".join(collapsed(["a 1", "b 1", "c 1", "d 1", "e 1", "f 2"], "111112")))
        a 1
        ... the line above, 4 times more, the last time from e on
        f 2
    """
    shown: list[str] = []
    start = 0
    while start < len(lines):
        period, times = repetition(likenesses, start)
        if period * (times - 1) < _WORTH:
            shown.append(lines[start])
            start += 1
            continue
        stop = start + period
        shown += collapsed(lines[start:stop], likenesses[start:stop])
        first, last = (lines[at].split()[0] for at in (start, stop + period * (times - 2)))
        since = f"the {period} lines from {first} on" if period > 1 else "the line above"
        again = "once more," if times == 2 else f"{times - 1} times more, the last time"
        shown.append(f"... {since}, {again} from {last} on")
        start += period * times
    return shown


def repetition(items: Sequence[Hashable], start: int) -> tuple[int, int]:
    """The run from `start` on whose immediate repetition saves most lines: its length, how often.

    Examples:
        >>> repetition("xabcabcabcy", 1), repetition("xyz", 0)
        ((3, 3), (1, 1))
    """
    best = (1, 1)
    for period in range(1, (len(items) - start) // 2 + 1):
        if items[start] != items[start + period]:
            continue
        stop = start + period
        while stop < len(items) and items[stop] == items[stop - period]:
            stop += 1
        times = (stop - start) // period
        if period * (times - 1) > best[0] * (best[1] - 1):
            best = (period, times)
    return best
