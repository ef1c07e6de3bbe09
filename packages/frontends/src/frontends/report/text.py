"""A plan as tables of text: stages, layouts, memory, collectives, transfers, other plans.

The tables show totals: how many values have a layout, how many collectives of a kind a phase runs.
Single values and operators are in the plan's JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from operator import itemgetter

from autoshard import Sharding
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text
from shardspec import Mesh
from shardspec.amounts import bytes_text, seconds_text

from frontends.layers.recompute import share_again
from frontends.plan.plan_fields import REMATS, Alternative, PlanFields, Remat, Stage, Transfer
from frontends.step.stage_memory import KINDS, fullest_moment
from frontends.step.step import PHASE_NAMES

WIDTH = 110
"""Width, in columns, of a plan that is not printed to a terminal."""

_SHOWN = 4
"""The most layouts of an argument, and transfers from stage to stage in one phase, that are shown
singly."""

_STAGES_NOTE = "forward and backward: of one microbatch; memory: peak of one device"
_MEMORY_NOTE = "by the live ranges of values; all microbatches in flight together"
_COLLECTIVES_NOTE = "devices: size of the group; sent: bytes, by one device"
_LAYOUTS_NOTE = "S0R: dim 0 is split over mesh axis 0, dim 1 is whole; S01: over both axes"


def plan_text(plan: PlanFields, width: int = WIDTH) -> str:
    """The plan as plain text, no line longer than `width` columns."""
    file = StringIO()
    # Without environment variables, so that the terminal's do not change the text.
    console = Console(
        file=file, width=width, color_system=None, force_jupyter=False, emoji=False, _environ={}
    )
    console.print(plan_tables(plan))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def plan_tables(plan: PlanFields) -> RenderableType:
    """The plan as a renderable of rich, as wide as its console."""
    parts: list[RenderableType] = [
        stage_table(plan),
        Group(_layouts(plan), Text(_LAYOUTS_NOTE, "dim")),
    ]
    if any(stage.sharding is not None for stage in plan.stages):
        parts.append(Group(_memory(plan), Text(_MEMORY_NOTE, "dim")))
    if rows := sum_collectives(plan):
        parts.append(Group(_collectives(plan, rows), Text(_COLLECTIVES_NOTE, "dim")))
    if plan.transfers:
        parts.append(_transfers(plan))
    if plan.alternatives:
        parts.append(_alternatives(plan))
    if plan.unsharded:
        kinds = ", ".join(plan.unsharded)
        parts.append(
            Text(f"Warning: no sharding rule for {kinds}; every device runs these whole", "yellow")
        )
    spaced = [row for part in parts for row in ("", part)]
    return Group(*spaced[1:])


def stage_table(plan: PlanFields) -> RenderableType:
    """The beginning of `plan_tables`: the step, and its stages."""
    notes = (Text(note, "dim") for note in (_STAGES_NOTE, describe_copies(plan)) if note)
    return Group(_header(plan), "", _stages(plan), *notes)


@dataclass(frozen=True, slots=True)
class CollectiveSum:
    """All collectives of one kind that a stage runs in one phase over the same axes."""

    stage: int
    phase: int
    kind: str
    axes: tuple[int, ...]
    group_size: int
    runs: int
    """Number of runs in a step; the following fields are per step, too."""

    sent_bytes: int
    """Bytes that one device sends."""

    time_s: float


def sum_collectives(plan: PlanFields) -> tuple[CollectiveSum, ...]:
    """The plan's collectives, summed over values and microbatches; in the order of execution."""
    groups: dict[tuple[int, int, str, tuple[int, ...], int], list[tuple[int, int, float]]] = {}
    for index, stage in enumerate(plan.stages):
        for c in stage.collectives:
            key = (index, c.phase, c.kind, c.axes, c.group_size)
            figures = (c.repeats, c.sent_bytes * c.repeats, c.time_s * c.repeats)
            groups.setdefault(key, []).append(figures)
    sums = []
    for key in sorted(groups):
        runs, sent, times = zip(*groups[key], strict=True)
        sums.append(CollectiveSum(*key, sum(runs), sum(sent), sum(times)))
    return tuple(sums)


def runs_per_step(plan: PlanFields, transfer: Transfer) -> int:
    """How many times a transfer is sent in one step."""
    if transfer.phase not in ("forward", "backward"):
        return 1
    return plan.microbatches_of(transfer.source)


def describe_inputs(plan: PlanFields, index: int) -> tuple[tuple[str, str], ...]:
    """The layouts of a stage's inputs: for each argument of the step, the number of values in each.

    For example ("params", "12 RR, 6 RS0"). Values that other stages send are called "received".
    """
    received = {t.value for t in plan.transfers if t.destination == index and t.phase != "state"}
    counts: dict[str, Counter[str]] = {}
    for stored in plan.stages[index].inputs:
        argument = re.split(r"[.\[]", stored.value, maxsplit=1)[0]
        name = "received" if stored.value in received else argument
        counts.setdefault(name, Counter())[str(stored.spec)] += 1
    return tuple((name, _most_common(specs)) for name, specs in counts.items())


def describe_mesh(mesh: Mesh) -> str:
    """Shape and axis names of a mesh: `2x4 (x, y)`."""
    return f"{'x'.join(map(str, mesh.shape))} ({', '.join(mesh.axis_names)})"


_AGAIN: Mapping[Remat, str] = {
    "none": "nothing",
    "cheap": "cheap results",
    "dots": "cheap results and products with batch dims",
    "all": "all results of layers",
}


def remat_text(plan: PlanFields) -> str:
    """What backward computes again, in words."""
    share = f"{share_again(plan):.1%} of the compute"
    if not plan.remat_of_layers:
        return f"Backward computes {_AGAIN[plan.remat]} again, remat={plan.remat}: {share}"
    parts = (f"{_AGAIN[kind]} in layers {layers}" for kind, layers in _by_remat(plan))
    return f"Backward computes again {'; '.join(parts)}: {share}"


def describe_remat(plan: PlanFields) -> str:
    """What the plan's layers compute again: `dots`, or `all in layers 0-3, dots in layers 4-7`."""
    parts = (f"{kind} in layers {layers}" for kind, layers in _by_remat(plan))
    return ", ".join(parts) or plan.remat


def _by_remat(plan: PlanFields) -> Iterator[tuple[Remat, str]]:
    """What layers compute again, the most first, and which layers: `0-3, 6`."""
    for remat in reversed(REMATS):
        if remat in plan.remat_of_layers:
            yield remat, _layers_with(remat, plan)


def _layers_with(remat: Remat, plan: PlanFields) -> str:
    """The layers that compute something again, as ranges: `0-3, 6-9`."""
    ranges: list[str] = []
    for kind, group in groupby(enumerate(plan.remat_of_layers), key=itemgetter(1)):
        layers = [layer for layer, _ in group]
        if kind == remat:
            ranges.append(_range_text(layers[0], layers[-1]))
    return ", ".join(ranges)


def padding_text(plan: PlanFields) -> str:
    """To what size microbatches are padded, in words."""
    return f"Microbatches are padded to {plan.padded_to} examples, so that devices divide them"


def first_pass_text(plan: PlanFields) -> str:
    """What a plan in two passes does first, as a sentence without its stop."""
    return (
        f"A first pass of {seconds_text(plan.first_pass_s)} computes the features of all "
        "microbatches, as the loss compares examples"
    )


def describe_layers(stage: Stage) -> str:
    """The layers of a stage: `2-5`."""
    return _range_text(stage.first_layer, stage.last_layer)


def _range_text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def describe_copies(plan: PlanFields) -> str:
    """A sentence that says which stages are replicas of others; empty if none is."""
    begins = [index for index, stage in enumerate(plan.stages) if stage.first_layer == 0]
    if len(begins) < 2:
        return ""
    n = begins[1]
    return (
        f"stages {n}-{len(plan.stages) - 1} are replicas of 0-{n - 1} and run other microbatches; "
        "they receive the weights when the step begins, and send back the sums of gradients"
    )


def describe_devices(ids: Iterable[int]) -> str:
    """Device ids, runs of them shortened: `0-3, 8`."""
    runs: list[list[int]] = []
    for device in ids:
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def stage_cells(plan: PlanFields, index: int) -> tuple[str, ...]:
    """The row of a stage: number, layers, mesh, devices, forward, backward, apply, memory."""
    stage = plan.stages[index]
    memory = bytes_text(stage.memory_bytes)
    if plan.memory_limits:
        memory += f" of {bytes_text(plan.memory_limit(index))}"
    return (
        str(index),
        describe_layers(stage),
        describe_mesh(stage.mesh),
        describe_devices(stage.mesh.device_ids) + _kind(stage),
        *map(seconds_text, (stage.forward_s, stage.backward_s, stage.apply_s)),
        memory,
    )


def _kind(stage: Stage) -> str:
    """What the devices of a stage are, in brackets, if the cluster has several kinds."""
    if stage.sharding is None:
        return ""
    cluster = stage.sharding.cluster
    kinds = {host.device for host in cluster.hosts}
    return f" ({cluster.slowest(stage.mesh).name})" if len(kinds) > 1 else ""


def memory_cells(index: int, sharding: Sharding) -> tuple[str, ...]:
    """The row of a stage's peak memory: number, microbatches in flight, bytes by kind, sum."""
    held = fullest_moment(sharding)
    sizes = [*(held[kind] for kind in KINDS), sum(held.values())]
    return (str(index), str(sharding.options.in_flight), *map(bytes_text, sizes))


def collective_cells(plan: PlanFields, row: CollectiveSum) -> tuple[str, ...]:
    """The row of collectives: stage, phase, kind, axes, devices, runs, sent, time."""
    names = plan.stages[row.stage].mesh.axis_names
    return (
        str(row.stage),
        PHASE_NAMES[row.phase],
        row.kind.replace("_", "-"),
        ", ".join(names[axis] for axis in row.axes),
        str(row.group_size),
        f"{row.runs:,}",
        bytes_text(row.sent_bytes),
        seconds_text(row.time_s),
    )


def alternative_cells(other: Alternative) -> tuple[str, ...]:
    """The row of a plan that was not chosen: name, step, memory, reason."""
    return (
        other.name,
        "cannot run" if other.step_s is None else seconds_text(other.step_s),
        "" if other.memory_bytes is None else bytes_text(other.memory_bytes),
        other.reason,
    )


def _most_common(counts: Counter[str]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    n_shown = _n_shown(len(ordered))
    shown = [f"{count} {spec}" for spec, count in ordered[:n_shown]]
    if rest := ordered[n_shown:]:
        shown.append(f"{sum(count for _, count in rest)} others")
    return ", ".join(shown)


def _n_shown(number: int) -> int:
    """How many of `number` items are shown singly: all, if only one would be summed up."""
    return number if number <= _SHOWN + 1 else _SHOWN


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _header(plan: PlanFields) -> Text:
    text = Text()
    text.append(f"Plan for cluster {plan.cluster}: ", "bold")
    text.append(
        f"{_count(len(plan.stages), 'stage')} on {_count(plan.n_devices, 'device')}, "
        f"{_count(plan.microbatches, 'microbatch').replace('hs', 'hes')}, "
        f"schedule {plan.schedule_name}; by {plan.strategy}\n"
    )
    text.append(f"Predicted step {seconds_text(plan.step_s)}", "bold")
    if plan.lower_bound_s > 0:
        ratio = plan.step_s / plan.lower_bound_s
        text.append(f", {ratio:.2f} times the bound {seconds_text(plan.lower_bound_s)}")
    peak, limit = plan.fullest_device
    text.append(f"\nFullest device {bytes_text(peak)} of {bytes_text(limit)}")
    if plan.remat != "none":
        text.append(f"\n{remat_text(plan)}")
    if plan.padded_to:
        text.append(f"\n{padding_text(plan)}")
    if plan.first_pass_s:
        text.append(f"\n{first_pass_text(plan)}")
    if plan.options:
        asked = ", ".join(f"{name}={value}" for name, value in plan.options)
        text.append(f"\nAsked for: {asked}")
    return text


def make_table(title: str, *columns: str, numbers: Sequence[str] = (), wrapped: str = "") -> Table:
    """An empty table: columns of text, of numbers, and a last one of longer text.

    Where there is too little room, the widest columns are folded; nothing is cut.
    """
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        header_style="",
    )
    for name in columns:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, overflow="fold", justify="right")
    if wrapped:
        table.add_column(wrapped, overflow="fold")
    return table


def add_row(table: Table, *cells: str) -> None:
    """Add a row; its cells are `Text`, as rich takes brackets in plain strings for markup."""
    table.add_row(*map(Text, cells))


def _stages(plan: PlanFields) -> Table:
    table = make_table(
        "Stages",
        "stage",
        "layers",
        "mesh",
        "devices",
        numbers=("forward", "backward", "apply", "memory"),
    )
    for index in range(len(plan.stages)):
        add_row(table, *stage_cells(plan, index))
    return table


def _layouts(plan: PlanFields) -> Table:
    table = make_table(
        "Layouts of what each stage reads", "stage", "argument", wrapped="values and their layout"
    )
    for index in range(len(plan.stages)):
        for argument, layouts in describe_inputs(plan, index):
            add_row(table, str(index), argument, layouts)
    return table


def _memory(plan: PlanFields) -> RenderableType:
    """A column for each kind or, where there is too little room, all kinds in one."""
    title = "Peak memory of one device, by kind"
    wide = make_table(title, "stage", numbers=("in flight", *KINDS.values(), "sum"))
    narrow = make_table(title, "stage", numbers=("in flight", "sum"), wrapped="kinds")
    for index, stage in enumerate(plan.stages):
        if stage.sharding is not None:
            number, in_flight, *sizes, total = memory_cells(index, stage.sharding)
            add_row(wide, number, in_flight, *sizes, total)
            parts = (f"{kind} {size}" for kind, size in zip(KINDS.values(), sizes, strict=True))
            add_row(narrow, number, in_flight, total, ", ".join(parts))
    return _WideOrNarrow(wide, narrow)


@dataclass(frozen=True, slots=True)
class _WideOrNarrow:
    """A table, or another one if the console is too narrow for it."""

    wide: Table
    narrow: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = self.wide.__rich_measure__(console, options.update(width=10_000)).maximum
        yield self.wide if needed <= options.max_width else self.narrow


def _collectives(plan: PlanFields, rows: Sequence[CollectiveSum]) -> Table:
    table = make_table(
        "Collectives inside the stages, per step",
        "stage",
        "phase",
        "kind",
        "axes",
        numbers=("devices", "runs", "sent", "time"),
    )
    for row in rows:
        add_row(table, *collective_cells(plan, row))
    return table


def _transfers(plan: PlanFields) -> Table:
    table = make_table(
        "Transfers between stages, per step",
        "stages",
        "phase",
        numbers=("runs", "bytes", "time"),
        wrapped="value and layout",
    )
    groups: dict[tuple[int, int, str], list[Transfer]] = {}
    for transfer in plan.transfers:
        key = (transfer.source, transfer.destination, transfer.phase)
        groups.setdefault(key, []).append(transfer)
    for (source, destination, phase), group in groups.items():
        ordered = sorted(group, key=lambda t: (-t.n_bytes, t.value))
        n_shown = _n_shown(len(group))
        parts = [[transfer] for transfer in ordered[:n_shown]]
        if rest := ordered[n_shown:]:
            parts.append(rest)
        for part in parts:
            first = part[0]
            what = f"{first.value}: {first.src_spec} to {first.dst_spec}"
            if len(part) > 1:
                what = f"{len(part)} smaller values"
            runs = [runs_per_step(plan, t) for t in part]
            add_row(
                table,
                f"{source} to {destination}",
                phase,
                f"{sum(runs):,}",
                bytes_text(sum(t.n_bytes * n for t, n in zip(part, runs, strict=True))),
                seconds_text(sum(t.time_s * n for t, n in zip(part, runs, strict=True))),
                what,
            )
    return table


def _alternatives(plan: PlanFields) -> Table:
    table = make_table("Not taken", "plan", numbers=("step", "memory"), wrapped="why")
    for other in plan.alternatives:
        add_row(table, *alternative_cells(other))
    return table
