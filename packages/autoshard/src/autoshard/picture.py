"""A sharding as a picture: what each mesh axis does, seconds, and memory, operator by operator.

After Alpa, figures 12 and 13, which colour each tensor by the devices that it is spread over. Here
a column is an operator, and each row of the first panel is a mesh axis: it splits some dim of the
result, or reduces, or does nothing. The panels below show the seconds of compute and of the
collectives before each operator, and the bytes that a device holds, against the limit. The extra
`plot` is imported when the function is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, get_args

from shardspec.report.figure import new_figure, save_figure, wrong_name

from autoshard.answer.costs import OperatorCost, entries
from autoshard.answer.memory import live_bytes
from autoshard.answer.sharding_fields import ShardingFields, is_sharding
from autoshard.answer.table import summary
from autoshard.errors import MissingExtraError, PictureError
from autoshard.graph.lifetime import Kind

_NOTHING, _SUMS, _CARRIES = "nothing", "reduces: results are partial", "carries partial sums"
_COLOURS = {_NOTHING: "#dddddd", _SUMS: "#b2182b", _CARRIES: "#f4a582"}
_DIMS = ("#2166ac", "#4daf4a", "#ff7f00", "#984ea3", "#a65628")
"""Colours of the dims of results; the sixth dim has the colour of the first."""
_NAMED = 24
"""The most operators whose names are shown; there is no room for more."""
_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def picture(sharding: ShardingFields, path: str | Path) -> None:
    """Write a picture of a sharding to a PNG or SVG file.

    Raises:
        MissingExtraError: matplotlib is not installed.
        PictureError: the suffix of the path is neither .png nor .svg.
        OSError: the file cannot be written.
    """
    is_sharding(sharding)
    if problem := wrong_name(path):
        raise PictureError(problem)
    try:
        figure = new_figure(12, 7)
    except ImportError as error:
        raise MissingExtraError("a picture", "plot") from error

    graph = sharding.graph
    axes, seconds, held = figure.subplots(
        3, sharex=True, height_ratios=(0.4 + 0.3 * sharding.mesh.ndim, 2, 2)
    )
    _draw_axes(axes, sharding)
    _draw_seconds(seconds, sharding)
    _draw_held(held, sharding)
    starts = Counter(operator.phase for operator in graph.operators)
    start = 0
    for number, phase in enumerate(graph.phases):
        if starts[number]:
            again = f" ({phase.repeats} times)" if phase.repeats > 1 else ""
            axes.annotate(f"{phase.name}{again}", (start, 1.02), xycoords=("data", "axes fraction"))
            for panel in (axes, seconds, held):
                panel.axvline(start, color="black", linewidth=0.6)
        start += starts[number]
    held.set(xlabel="operators, in order of execution", xlim=(0, max(len(graph.operators), 1)))
    if len(graph.operators) <= _NAMED:
        places = [index + 0.5 for index in range(len(graph.operators))]
        held.set_xticks(places, [operator.name for operator in graph.operators], rotation=30)
    figure.suptitle("\n".join(summary(sharding)[:3]), fontsize="medium")
    save_figure(figure, path, "autoshard", dpi=120)


def axis_roles(sharding: ShardingFields) -> list[list[str]]:
    """What each mesh axis does in each operator: rows are axes, columns are operators.

    An axis splits dim d of the first result (`splits dim d`), or splits a loop that is reduced, or
    carries partial sums of operands and results, or does nothing: all devices along it do the same
    work.
    """
    rows = []
    for axis in range(sharding.mesh.ndim):
        row = []
        for strategy in sharding.strategies:
            target, spec = strategy.mapping[axis], strategy.result_specs[0]
            dims = [dim for dim in range(spec.ndim) if axis in spec.sharding_of(dim)]
            if target is None:
                row.append(_NOTHING)
            elif dims:
                row.append(f"splits dim {dims[0]}")
            else:
                carries = isinstance(target, tuple) and target[0] == "partial"
                row.append(_CARRIES if carries else _SUMS)
        rows.append(row)
    return rows


def _draw_axes(panel: Any, sharding: ShardingFields) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    rows = axis_roles(sharding)
    n_dims = max((len(value.shape) for value in sharding.graph.values), default=0)
    dims = {f"splits dim {d}": of for d, of in enumerate(islice(cycle(_DIMS), n_dims))}
    colours = {**_COLOURS, **dims}
    if sharding.strategies:
        panel.imshow(
            [[to_rgb(colours[role]) for role in row] for row in rows],
            aspect="auto",
            interpolation="nearest",
            extent=(0, len(sharding.strategies), len(rows), 0),
        )
    names = sharding.mesh.axis_names
    panel.set_yticks([row + 0.5 for row in range(len(rows))], names)
    panel.tick_params(axis="y", length=0)
    for row in range(1, len(rows)):
        panel.axhline(row, color="white", linewidth=2)
    used = {role for row in rows for role in row}
    patches = [Patch(color=colour, label=role) for role, colour in colours.items() if role in used]
    _legend(panel, patches)


def _draw_seconds(panel: Any, sharding: ShardingFields) -> None:
    n = len(sharding.graph.operators)
    compute, moved = [0.0] * n, dict[str, list[float]]()
    index = 0
    for entry in entries(sharding):
        if isinstance(entry, OperatorCost):
            compute[index] = entry.seconds
            index += 1
        elif n:  # conversions after the last operator are drawn at that operator
            kind = entry.step.kind.replace("_", "-")
            moved.setdefault(kind, [0.0] * n)[min(index, n - 1)] += entry.seconds
    total = [sum(of) for of in zip(compute, *moved.values(), strict=True)]
    unit, name = _scale(max(total, default=0.0), _SCALES)
    parts = {"compute": compute, **{kind: moved[kind] for kind in sorted(moved)}}
    _stack(panel, {kind: of for kind, of in parts.items() if any(of)}, unit)
    panel.set_ylabel(f"{name}, all runs in a step")
    _legend(panel)


def _draw_held(panel: Any, sharding: ShardingFields) -> None:
    by_kind = {kind: live_bytes(sharding, kind) for kind in get_args(Kind)}
    limit = sharding.options.memory_bytes
    unit, name = _scale(max(sharding.peak_bytes, limit or 0), _UNITS)
    _stack(panel, {kind.replace("_", " "): of for kind, of in by_kind.items() if any(of)}, unit)
    if limit is not None:
        panel.axhline(limit / unit, color="black", linestyle="--", label="limit")
    panel.set_ylabel(f"{name} a device")
    _legend(panel)


def _stack(panel: Any, parts: Mapping[str, Sequence[float]], unit: float) -> None:
    """Draw stacked areas, with one step for each operator."""
    if parts:
        steps = [[one / unit for one in (*of, of[-1])] for of in parts.values()]
        many = len(steps[0]) > _NAMED  # rasterised even in an SVG: 5,000 steps would be megabytes
        panel.stackplot(
            range(len(steps[0])), steps, step="post", labels=list(parts), rasterized=many
        )


def _scale(largest: float, scales: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next((scale for scale in scales if largest >= scale[0]), scales[-1])


def _legend(panel: Any, patches: Sequence[Any] = ()) -> None:
    handles = patches or panel.get_legend_handles_labels()[0]
    if handles:
        panel.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            fontsize="small",
            frameon=False,
        )
