"""Charts for a plan's page: devices, operators by sharding, bytes, memory and the pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import pipesched
from shardspec import Spec, SubAxis
from shardspec.amounts import bytes_text, seconds_text

from frontends.plan.plan_fields import PlanFields, ShardedOperator, Stage
from frontends.plan.schedule import copy_at
from frontends.report.svg import WIDTH, area, line, rect, svg, text
from frontends.report.text import sum_collectives
from frontends.step.stage_memory import KINDS, fullest_moment, memory_curves
from frontends.step.step import PHASE_NAMES

NOTHING, SUMS = "whole", "partial sums"
DIM_COLOURS = ("#2166ac", "#4daf4a", "#ff7f00", "#984ea3", "#a65628")
"""Colours of the dims of results; a sixth dim has that of the first."""

SHARDING_COLOURS = {NOTHING: "#dddddd", SUMS: "#b2182b"} | {
    f"splits dim {dim}": colour for dim, colour in enumerate(DIM_COLOURS)
}
COLLECTIVE_COLOURS = {  # of Okabe and Ito, which the colour-blind can tell apart
    "all_gather": "#56b4e9",
    "all_to_all": "#cc79a7",
    "reduce_scatter": "#009e73",
    "all_reduce": "#e69f00",
    "collective_permute": "#0072b2",
}
MEMORY_COLOURS = dict(
    zip(
        KINDS,
        ("#4477aa", "#66ccee", "#bbbbbb", "#228833", "#ccbb44", "#ee6677", "#aa3377"),
        strict=True,
    )
)
ACTION_COLOURS = {
    pipesched.Kind.FORWARD: ("forward", "#9ecae1"),
    pipesched.Kind.BACKWARD: ("backward", "#4292c6"),
    pipesched.Kind.INPUT_GRADIENT: ("input gradient", "#6baed6"),
    pipesched.Kind.WEIGHT_GRADIENT: ("weight gradient", "#fdae6b"),
}
_LABELS = 90.0
"""Width of the labels before the rows of a chart."""

_LINE = "#555555"
_HELD, _LIMIT = "#9ecae1", "#b2182b"
_CELL, _GAP = 46.0, 12.0
"""Width of a device, and of the gap between two rows of a mesh."""

_MOST_IN_A_ROW = 64
"""The most devices that are drawn in a row, so that each can be seen."""

_POINTED_AT = 2.0
"""Runs of operators that are wider than this say what they are when pointed at."""

_POINTS = 400
"""The most points of a curve; of more, the highest of each bucket is drawn."""

_FAR = 4
"""The limit is not drawn if it exceeds the peak by this factor: the curve would be too flat."""

_MOST_EVENTS = 1000
"""The most events of a timeline that is drawn whole; of a longer one, start and end are drawn."""


def draw_devices(plan: PlanFields) -> str:
    """The devices of every stage, filled as far as their memory is at the peak.

    Devices without a gap are a row of the stage's mesh; rows are side by side if there is room.
    """
    shapes: list[str] = []
    y = 0.0
    for index, stage in enumerate(plan.stages):
        shapes.append(text(0, y + 17, f"stage {index}"))
        limit = plan.memory_limit(index)
        of = f"{bytes_text(stage.memory_bytes)} of {bytes_text(limit)}"
        filled = min(1.0, stage.memory_bytes / limit) if limit else 0.0
        columns = min(stage.mesh.shape[-1] if stage.mesh.ndim else 1, _MOST_IN_A_ROW)
        cell = min(_CELL, (WIDTH - _LABELS) / columns)
        rows_in_line = max(1, int((WIDTH - _LABELS + _GAP) / (columns * cell + _GAP)))
        for place, device in enumerate(stage.mesh.device_ids):
            row, column = divmod(place, columns)
            line_, row = divmod(row, rows_in_line)
            x = _LABELS + row * (columns * cell + _GAP) + column * cell
            top, width = y + line_ * 28 + 1, cell * 0.95
            title = f"device {device}: {of}"
            shapes.append(rect(x, top, width, 24, "#ffffff", title=title, stroke=_LINE))
            shapes.append(rect(x, top, width * filled, 24, _HELD, title=title))
            if _fits(str(device), width, 11):
                words = str(device)
                shapes.append(text(x + width / 2, top + 16, words, anchor="middle", size=11))
        y += 28.0 * -(-stage.mesh.size // (columns * rows_in_line))
    return svg(y + 2, f"{plan.n_devices} devices and their memory", shapes)


def _fits(words: str, width: float, size: float = 12.0) -> bool:
    """Whether digits fit into a box; in common fonts they are at most 0.65 of their height wide."""
    return len(words) * 0.65 * size + 2 <= width


def draw_operators(stage: Stage, columns: int = 500) -> str:
    """What each mesh axis does to the first result of each operator (after Alpa, figure 12).

    A row is an axis; a column is an operator, or several if there are more than `columns`. The
    colour is the dim that the axis splits.
    """
    number, height = len(stage.placements), 20.0 * max(stage.mesh.ndim, 1)
    if not number:
        return ""
    bucket = -(-number // columns)
    step = (WIDTH - _LABELS) / -(-number // bucket)
    shapes = []
    for axis, name in enumerate(stage.mesh.axis_names):
        size = stage.mesh.shape[axis]
        shapes.append(text(0, axis * 20 + 14, f"axis {name} ({size})"))
        roles = [_role(p.results, axis) for p in stage.placements]
        drawn = [  # the role of most operators of a column
            Counter(roles[i : i + bucket]).most_common(1)[0][0] for i in range(0, number, bucket)
        ]
        place = 0
        for role, group in groupby(drawn):
            n_columns = len(list(group))
            run = stage.placements[place * bucket : (place + n_columns) * bucket]
            x, width = _LABELS + place * step, n_columns * step
            title = _run_title(run, role) if width > _POINTED_AT else ""
            colour = SHARDING_COLOURS[role]
            shapes.append(rect(x, axis * 20 + 1, width, 17, colour, title=title))
            place += n_columns
    shapes += _phases(stage, height)
    return svg(height + 18, "operators in order of execution, coloured by sharding", shapes)


def _run_title(run: Sequence[ShardedOperator], role: str) -> str:
    ends = run[0].operator if len(run) == 1 else f"{run[0].operator} to {run[-1].operator}"
    specs = [*dict.fromkeys(str(p.results[0]) for p in run if p.results)]
    return f"{ends}: {role}; {', '.join(specs[:4])}{', ...' if len(specs) > 4 else ''}"


def _role(results: Sequence[Spec], axis: int) -> str:
    if not results:
        return NOTHING
    spec = results[0]
    if any(_axis_of(partial.axis) == axis for partial in spec.partial):
        return SUMS
    for dim in range(spec.ndim):
        if any(_axis_of(entry) == axis for entry in spec.sharding_of(dim)):
            return f"splits dim {dim % len(DIM_COLOURS)}"
    return NOTHING


def _axis_of(entry: int | SubAxis) -> int:
    return entry if isinstance(entry, int) else entry.axis


def _phases(stage: Stage, height: float) -> Iterator[str]:
    """A line where each phase starts, and its name below."""
    step, place = (WIDTH - _LABELS) / max(1, len(stage.placements)), 0
    for phase, group in groupby(stage.placements, key=lambda p: p.phase):
        n = len(list(group))
        x = _LABELS + place * step
        yield line(x, 0, x, height + 16, _LINE)
        if n * step > 50:
            yield text(x + 4, height + 13, PHASE_NAMES[phase], size=11)
        place += n


def draw_bytes(plan: PlanFields) -> str:
    """The bytes that a device of each stage sends in collectives in a step, by kind."""
    rows: list[dict[str, int]] = [{} for _ in plan.stages]
    for row in sum_collectives(plan):
        rows[row.stage][row.kind] = rows[row.stage].get(row.kind, 0) + row.sent_bytes
    largest = max(sum(row.values()) for row in rows) or 1
    shapes = []
    for index, parts in enumerate(rows):
        x, y = _LABELS, index * 24.0
        shapes.append(text(0, y + 16, f"stage {index}"))
        for kind, colour in COLLECTIVE_COLOURS.items():
            if kind in parts:
                width = (WIDTH - _LABELS - 90) * parts[kind] / largest
                title = f"{kind.replace('_', '-')}: {bytes_text(parts[kind])}"
                shapes.append(rect(x, y + 2, width, 18, colour, title=title))
                x += width
        shapes.append(text(x + 6, y + 16, bytes_text(sum(parts.values()))))
    return svg(24.0 * len(rows), "bytes that a device sends in collectives in a step", shapes)


def draw_memory(stage: Stage, limit_bytes: int) -> str:
    """The memory of a device while each operator runs, by kind, and the limit."""
    if stage.sharding is None:
        return ""
    curves = memory_curves(stage.sharding)
    moments = list(zip(*curves.values(), strict=True))
    bucket = -(-len(moments) // _POINTS)
    kept = [
        max(range(i, min(i + bucket, len(moments))), key=lambda m: sum(moments[m]))
        for i in range(0, len(moments), bucket)
    ]
    peak = max(map(sum, moments)) or 1
    height, shapes = 130.0, []
    scale, top = _scale(peak, limit_bytes, height)
    width = (WIDTH - _LABELS) / len(kept)
    below = [0.0] * len(kept)
    for position, kind in enumerate(curves):
        above = [b + moments[m][position] for b, m in zip(below, kept, strict=True)]
        if above != below:
            points = _steps(above, width, height, scale)
            points += reversed(_steps(below, width, height, scale))
            most = max(moments[m][position] for m in kept)
            title = f"{KINDS[kind]}: at most {bytes_text(most)}"
            shapes.append(area(points, MEMORY_COLOURS[kind], title=title))
        below = above
    shapes += [*top, *_phases(stage, height)]
    return svg(height + 18, f"memory of a device over its operators; peak {peak} bytes", shapes)


def _steps(
    values: Sequence[float], width: float, height: float, scale: float
) -> list[tuple[float, float]]:
    """The corners of a step function; each value has the same width."""
    corners: list[tuple[float, float]] = []
    place = 0
    for value, run in groupby(values):
        y, n = height - value * scale, len(list(run))
        corners += [(_LABELS + place * width, y), (_LABELS + (place + n) * width, y)]
        place += n
    return corners


def _scale(peak: float, limit: float, height: float) -> tuple[float, list[str]]:
    """Units of height for each byte, and the shapes that show limit and peak."""
    if 0 < limit <= _FAR * peak:
        scale = (height - 16) / max(peak, limit)
        y = height - limit * scale
        words = [text(0, y + 4, bytes_text(limit)), line(_LABELS, y, WIDTH, y, _LIMIT)]
    else:
        scale = (height - 16) / peak
        words = [text(0, 12, f"limit {bytes_text(limit)}", size=11)]
        words.append(text(0, 26, "is above this", size=11))
    words.append(text(0, height, f"peak {bytes_text(peak)}", size=11))
    return scale, words


def draw_timeline(plan: PlanFields, timeline: pipesched.Timeline) -> list[str]:
    """The actions of each rank over time: of the whole step, or of its start and its end."""
    number = len(timeline.events)
    end = timeline.makespan_s or 1.0
    if number <= _MOST_EVENTS:
        return [_draw_window(plan, timeline, 0.0, end)]
    part = end * _MOST_EVENTS / 2 / number
    return [_draw_window(plan, timeline, *span) for span in ((0.0, part), (end - part, end))]


def _draw_window(plan: PlanFields, timeline: pipesched.Timeline, start: float, stop: float) -> str:
    n_ranks = len(timeline.schedule.ranks)
    scale, row = (WIDTH - _LABELS) / (stop - start), 26.0
    shapes = [text(0, rank * row + 16, f"rank {rank}") for rank in range(n_ranks)]
    for event in timeline.events:
        action = event.action
        if action.edge is not None or event.stop_s < start or event.start_s > stop:
            continue
        name, colour = ACTION_COLOURS.get(action.kind, (str(action.kind), "#cccccc"))
        x = _LABELS + (max(event.start_s, start) - start) * scale
        width = (min(event.stop_s, stop) - max(event.start_s, start)) * scale
        times = f"{seconds_text(event.start_s)} to {seconds_text(event.stop_s)}"
        title = f"{name} of microbatch {action.microbatch}, stage {action.stage}: {times}"
        shapes.append(rect(x, event.rank * row + 2, width, 20, colour, title=title))
        words = str(action.microbatch)
        if action.microbatch is not None and _fits(words, width):
            shapes.append(text(x + width / 2, event.rank * row + 16, words, anchor="middle"))
    y = n_ranks * row + 14
    shapes.append(text(_LABELS, y, seconds_text(start)))
    shapes.append(text(WIDTH, y, seconds_text(stop), anchor="end"))
    return svg(y + 6, f"pipeline from {start:g} to {stop:g} seconds", shapes)


def draw_held(plan: PlanFields, timeline: pipesched.Timeline) -> str:
    """The memory of a device of each stage over the step, by kind, and the limit.

    Activations, on top, come and go with the microbatches in flight; of all else, the bytes at the
    stage's fullest moment are drawn for the whole step.
    """
    end, row = timeline.makespan_s or 1.0, 64.0
    stages: list[dict[str, list[tuple[float, float]]]] = []  # times and bytes by kind
    for index, stage in enumerate(plan.stages):
        if stage.sharding is None:
            return ""
        bytes_of, one = fullest_moment(stage.sharding), stage.sharding.activation_bytes
        always = max(0, bytes_of.pop("activation") - stage.sharding.options.in_flight * one)
        curves = {kind: [(0.0, float(held))] for kind, held in bytes_of.items() if held}
        held = _fewer(_in_flight(timeline, index))
        curves["activation"] = [(at, float(always + number * one)) for at, number in held]
        stages.append(curves)
    highest = plan.memory_limit_bytes
    peaks = [sum(max(n for _, n in curve) for curve in curves.values()) for curves in stages]
    peak = max(peaks) or 1
    most = max(highest, peak) if highest <= _FAR * peak else peak
    height = (row - 8) / most
    shapes = []
    for index, curves in enumerate(stages):
        base = (index + 1) * row - 4
        shapes.append(text(0, base - 12, f"stage {index}"))
        below = 0.0
        for kind, curve in curves.items():
            outline = [(_LABELS, below), *_corners(curve, below, end), (WIDTH, below)]
            points = [(x, base - n_bytes * height) for x, n_bytes in outline]
            largest = max(n_bytes for _, n_bytes in curve)
            title = f"stage {index}, {KINDS[kind]}: at most {bytes_text(round(largest))}"
            if largest:
                shapes.append(area(points, MEMORY_COLOURS[kind], title=title))
            below += largest
        limit = plan.memory_limit(index)
        if limit <= most:
            y = base - limit * height
            shapes.append(line(_LABELS, y, WIDTH, y, _LIMIT))
    return svg(row * len(plan.stages) + 4, "memory of a device of each stage over a step", shapes)


def _fewer(curve: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """The highest of each bucket of a step function that has more points than are drawn."""
    bucket = -(-len(curve) // _POINTS)
    starts = range(0, len(curve), bucket)
    return [(curve[i][0], max(n for _, n in curve[i : i + bucket])) for i in starts]


def _corners(
    curve: Sequence[tuple[float, float]], below: float, end: float
) -> Iterator[tuple[float, float]]:
    """The corners of a step function of time, as places on the picture and values."""
    for (at, value), (then, _) in zip(curve, [*curve[1:], (end, 0)], strict=True):
        for time in (at, then):
            yield _LABELS + (WIDTH - _LABELS) * time / end, below + value


def _in_flight(timeline: pipesched.Timeline, stage: int) -> list[tuple[float, int]]:
    """The number of microbatches that a stage holds, with the time from which it does."""
    ends = (pipesched.Kind.BACKWARD, pipesched.Kind.INPUT_GRADIENT)
    changes: list[tuple[float, int]] = []
    for event in timeline.events:
        action = event.action
        if (
            copy_at(timeline.schedule, action.stage, action.microbatch) == stage
            and action.edge is None
        ):
            if action.kind is pipesched.Kind.FORWARD:
                changes.append((event.start_s, 1))
            elif action.kind in ends:
                changes.append((event.stop_s, -1))
    held, curve = 0, [(0.0, 0)]
    for at, change in sorted(changes):
        held += change
        curve.append((at, held))
    return curve


def legend(colours: Mapping[str, str]) -> str:
    """A legend of names and their colours, as one line of a page."""
    items = (
        f'<span><i style="background:{colour}"></i>{name.replace("_", "-")}</span>'
        for name, colour in colours.items()
    )
    return f'<p class="legend">{"".join(items)}</p>'
