"""A plan, or two, as one HTML page of text, tables and charts, without external resources.

The page is HTML and well-formed XML at once. It can be read without its script, which adds tools:
a pipeline to zoom into, and a search for the layout of a tensor. Long lists are cut; the plan's
JSON has all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path

from pipesched import PipeschedError
from shardspec.amounts import bytes_text, seconds_text

from frontends.errors import OutputError, PlanError
from frontends.plan.plan_fields import PlanFields, Stage
from frontends.program.predict import timeline_of
from frontends.report.diff import KINDS as CHANGES
from frontends.report.diff import Difference, difference_words
from frontends.report.page_data import page_data
from frontends.report.svg import safe
from frontends.report.svg_charts import (
    ACTION_COLOURS,
    COLLECTIVE_COLOURS,
    MEMORY_COLOURS,
    SHARDING_COLOURS,
    draw_bytes,
    draw_devices,
    draw_held,
    draw_memory,
    draw_operators,
    draw_timeline,
    legend,
)
from frontends.report.text import (
    alternative_cells,
    collective_cells,
    describe_copies,
    describe_devices,
    describe_inputs,
    describe_layers,
    describe_mesh,
    first_pass_text,
    memory_cells,
    padding_text,
    remat_text,
    runs_per_step,
    stage_cells,
    sum_collectives,
)
from frontends.step.stage_memory import KINDS
from frontends.step.step import PHASE_NAMES

_ROWS = 300
"""The most rows of a table, if nothing else is said; those that are left out are counted."""

_OPEN = 40
"""The most rows of a table that is open at first; a longer one is folded."""

_FOLDER = resources.files("frontends.report")
_STYLE = (_FOLDER / "page.css").read_text(encoding="utf-8")
_SCRIPT = (_FOLDER / "page.js").read_text(encoding="utf-8")


def write_page(plan: PlanFields, path: str | Path) -> None:
    """Write the page of a plan to a file; `OutputError` if it cannot be written."""
    _write(plan_html(plan), path)


def write_comparison(difference: Difference, path: str | Path) -> None:
    """Write the page of two plans to a file; `OutputError` if it cannot be written."""
    _write(comparison_html(difference), path)


def _write(page: str, path: str | Path) -> None:
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"a page is written to a file; {path}: {error.strerror}") from error


def plan_html(plan: PlanFields) -> str:
    """The page of a plan, also of one in an old format or without prices."""
    sections = (
        _section("stages", "Stages", *_stages(plan)),
        _section("timeline", "Pipeline", *_timeline(plan)),
        _section("tensors", "Layout of a tensor", _tensors(plan)),
        _section("operators", "Operators by sharding", *_operators(plan)),
        _section("memory", "Memory", *_memory(plan)),
        _section("collectives", "Collectives inside the stages", *_collectives(plan)),
        _section("transfers", "Transfers between stages", *_transfers(plan)),
        _section("layouts", "Layouts of what each stage reads", *_layouts(plan)),
        _section("alternatives", "Plans that were not taken", *_alternatives(plan)),
    )
    title = f"Plan for cluster {plan.cluster}"
    return _page(title, (_heading(title), *_header(plan), *sections), (plan,))


def comparison_html(difference: Difference) -> str:
    """The page of two plans, side by side in a wide window, and of what differs."""
    both = (difference.before, difference.after)

    def beside(name: str, title: str, make: Callable[[PlanFields, int], Iterable[str]]) -> str:
        sides = "".join(
            f"<div><h3>{word}</h3>{chr(10).join(part for part in make(plan, number) if part)}</div>"
            for number, (word, plan) in enumerate(zip(("Before", "After"), both, strict=True))
        )
        return _section(name, title, f'<div class="sides">{sides}</div>')

    clusters = " and ".join(dict.fromkeys(f"cluster {plan.cluster}" for plan in both))
    sections = (
        _paragraph(difference_words(difference), "facts"),
        beside("plans", "The plans", lambda plan, _: _header(plan)),
        beside("stages", "Stages", lambda plan, _: _stages(plan)),
        beside("timeline", "Pipeline", _timeline),
        beside("memory", "Memory", lambda plan, _: _memory(plan)),
        beside("tensors", "Layout of a tensor", lambda plan, n: (_tensors(plan, n),)),
        beside("collectives", "Collectives inside the stages", lambda plan, _: _collectives(plan)),
        _section("changes", "What differs", *_changes(difference)),
    )
    title = f"Two plans for {clusters}"
    return _page(title, (_heading(title), *sections), both, "two")


def _page(title: str, parts: Iterable[str], plans: Sequence[PlanFields], kind: str = "one") -> str:
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml">\n<head>'
        f'<meta charset="utf-8"/><title>{safe(title)}</title><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"/><style>{_STYLE}</style></head>\n'
        f'<body class="{kind}">\n{body}\n'
        f'<script type="application/json" id="plan-data">{page_data(plans)}</script>\n'
        f"<script>//<![CDATA[\n{_SCRIPT}//]]></script>\n</body>\n</html>\n"
    )


def _heading(title: str) -> str:
    return f"<h1>{safe(title)}</h1>"


def _section(name: str, title: str, *parts: str) -> str:
    body = "\n".join(part for part in parts if part) or _paragraph("None.")
    return f'<section id="{name}">\n<h2>{title}</h2>\n{body}\n</section>\n'


def _paragraph(words: str, style: str = "note") -> str:
    return f'<p class="{style}">{safe(words)}</p>'


def _table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Iterable[str] = (),
    *,
    summary: str = "",
    most: int = _ROWS,
) -> str:
    """A table, folded if it is long or has a summary; `numbers` are columns that hold numbers."""
    styles = ["number" if name in set(numbers) else "name" for name in header]
    kept = list(rows)
    if not kept:
        return ""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="{style}">{safe(cell)}</{tag}>'
            for style, cell in zip(styles, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in kept[:most])
    more = _paragraph(f"and {len(kept) - most:,} more") if len(kept) > most else ""
    head = f"<thead><tr>{cells('th', header)}</tr></thead>"
    table = f"<table>{head}\n<tbody>{body}</tbody></table>{more}"
    if not summary and len(kept) <= _OPEN:
        return table
    return f"<details><summary>{safe(summary or f'{len(kept):,} rows')}</summary>{table}</details>"


def _header(plan: PlanFields) -> Iterable[str]:
    peak, limit = plan.fullest_device
    bound = ""
    if plan.lower_bound_s > 0:
        ratio = plan.step_s / plan.lower_bound_s
        bound = f", {ratio:.2f} times the bound {seconds_text(plan.lower_bound_s)}"
    facts = (
        f"{seconds_text(plan.step_s)} a step predicted{bound}. Stages: {len(plan.stages)}, "
        f"devices: {plan.n_devices}, microbatches: {plan.microbatches}, schedule "
        f"{plan.schedule_name}; made by {plan.strategy}. Fullest device {bytes_text(peak)} of "
        f"{bytes_text(limit)}."
    )
    if plan.remat != "none":
        facts += f" {remat_text(plan)}."
    if plan.padded_to:
        facts += f" {padding_text(plan)}."
    if plan.first_pass_s:
        facts += f" {first_pass_text(plan)}."
    if plan.options:
        facts += f" Asked for: {', '.join(f'{name}={value}' for name, value in plan.options)}."
    yield _paragraph(facts, "facts")
    if plan.unsharded:
        kinds = ", ".join(plan.unsharded)
        words = f"No sharding rule for {kinds}; every device runs these whole."
        yield _paragraph(words, "warning")


def _title(plan: PlanFields, index: int) -> str:
    stage = plan.stages[index]
    words = (
        f"Stage {index}: layers {describe_layers(stage)}, mesh {describe_mesh(stage.mesh)}, "
        f"devices {describe_devices(stage.mesh.device_ids)}"
    )
    return f"<h3>{safe(words)}</h3>"


def _stages(plan: PlanFields) -> Iterable[str]:
    header = ("stage", "layers", "mesh", "devices", "forward", "backward", "apply", "memory")
    rows = [stage_cells(plan, index) for index in range(len(plan.stages))]
    yield _table(header, rows, header[4:])
    copies = f" {words[0].upper()}{words[1:]}." if (words := describe_copies(plan)) else ""
    note = f"Forward and backward: of one microbatch. Fill of a device: peak memory.{copies}"
    yield _paragraph(note)
    yield draw_devices(plan)


def _timeline(plan: PlanFields, number: int = 0) -> Iterable[str]:
    """The pipeline; `number` is the place of the plan on its page."""
    try:
        timeline = timeline_of(plan)
    except (PlanError, PipeschedError) as error:
        yield _paragraph(f"This plan's schedule cannot be simulated: {error}", "warning")
        return
    yield _paragraph(
        f"Simulated with predicted times; forward and backward take "
        f"{seconds_text(timeline.makespan_s)}, devices idle {timeline.bubble_ratio:.1%} of it."
    )
    seen = {event.action.kind for event in timeline.events}
    colours = {name: colour for kind, (name, colour) in ACTION_COLOURS.items() if kind in seen}
    windows = draw_timeline(plan, timeline)
    note = "The start and the end of the step; between them, the pattern repeats."
    still = [legend(colours), *([_paragraph(note)] if len(windows) > 1 else ()), *windows]
    yield f'<div>{"".join(still)}</div><div class="tool" data-timeline="{number}"></div>'
    if held := draw_held(plan, timeline):
        yield "<h3>Memory of a device over the step, against its limit</h3>"
        yield legend({KINDS[kind]: colour for kind, colour in MEMORY_COLOURS.items()})
        yield held + _paragraph("Red is the limit, unless it is far beyond what is held.")


def _tensors(plan: PlanFields, number: int = 0) -> str:
    """Where the script puts its search; `number` is the place of the plan on its page."""
    kept = any(stage.sharding is not None for stage in plan.stages)
    words = (
        "With scripts, a search is here: who holds which part of any tensor."
        if kept
        else "This plan keeps no shardings, so the shapes of tensors are not known."
    )
    return f'<div class="tool" data-tensors="{number}">{_paragraph(words)}</div>'


def _changes(difference: Difference) -> Iterable[str]:
    """A table for each kind of change."""
    for kind in CHANGES:
        rows = [(c.what, c.before, c.after) for c in difference.changes if c.kind == kind]
        title = f"{kind.capitalize()}: {len(rows):,} different"
        if rows:
            yield f"<h3>{safe(title)}</h3>" + _table(("what", "before", "after"), rows)


def _operators(plan: PlanFields) -> Iterable[str]:
    if not any(stage.placements for stage in plan.stages):
        return
    yield _paragraph("What each mesh axis does to the first result of each operator, in order.")
    yield legend(SHARDING_COLOURS)
    share = -(-len(plan.stages) // 4)  # of what a page may take
    for index, stage in enumerate(plan.stages):
        if drawing := draw_operators(stage, max(60, 500 // share)):
            yield _title(plan, index) + drawing + _kinds(stage, max(20, 200 // share))


def _kinds(stage: Stage, rows_shown: int) -> str:
    """A table of operators by phase, kind and layouts, the most frequent ones first."""
    kinds = {}
    if stage.sharding is not None:
        kinds = {op.name: op.kind for op in stage.sharding.graph.operators}
    counts = Counter(
        (
            PHASE_NAMES[p.phase],
            kinds.get(p.operator, p.operator),
            ", ".join(map(str, p.operands)),
            ", ".join(map(str, p.results)),
        )
        for p in stage.placements
    )
    header = ("phase", "operator", "reads", "makes", "number")
    rows = [(*how, f"{number:,}") for how, number in counts.most_common()]
    return _table(
        header,
        rows,
        ("number",),
        summary=f"{len(stage.placements):,} operators",
        most=rows_shown,
    )


def _memory(plan: PlanFields) -> Iterable[str]:
    priced = [(i, s, s.sharding) for i, s in enumerate(plan.stages) if s.sharding is not None]
    if not priced:
        yield _paragraph("This plan keeps no shardings, so memory over time is not known.")
        return
    header = ("stage", "in flight", *KINDS.values(), "sum")
    rows = [memory_cells(index, sharding) for index, _, sharding in priced]
    yield _paragraph("Peak memory of one device, all microbatches in flight together:")
    yield _table(header, rows, header[1:])
    yield legend({KINDS[kind]: colour for kind, colour in MEMORY_COLOURS.items()})
    for index, stage, _ in priced:
        yield _title(plan, index) + draw_memory(stage, plan.memory_limit(index))


def _collectives(plan: PlanFields) -> Iterable[str]:
    sums = sum_collectives(plan)
    if not sums:
        return
    yield legend(COLLECTIVE_COLOURS)
    yield draw_bytes(plan)
    header = ("stage", "phase", "kind", "axes", "devices", "runs", "sent", "time")
    yield _table(header, [collective_cells(plan, row) for row in sums], header[4:])
    yield _paragraph("Per step. Devices: size of the group; sent: bytes, by one device.")


def _transfers(plan: PlanFields) -> Iterable[str]:
    header = ("from", "to", "phase", "value", "as", "arrives as", "runs", "bytes", "time")
    rows = []
    for t in sorted(plan.transfers, key=lambda t: (-t.n_bytes * runs_per_step(plan, t), t.value)):
        runs = runs_per_step(plan, t)
        sizes = (f"{runs:,}", bytes_text(runs * t.n_bytes), seconds_text(runs * t.time_s))
        ends = (str(t.source), str(t.destination))
        rows.append((*ends, t.phase, t.value, str(t.src_spec), str(t.dst_spec), *sizes))
    yield _table(header, rows, header[6:])


def _layouts(plan: PlanFields) -> Iterable[str]:
    for index, stage in enumerate(plan.stages):
        yield _title(plan, index)
        yield _table(("argument", "values and their layouts"), describe_inputs(plan, index))
        rows = [(stored.value, str(stored.spec)) for stored in stage.inputs]
        yield _table(("value", "layout"), rows, summary=f"{len(rows):,} values")


def _alternatives(plan: PlanFields) -> Iterable[str]:
    header = ("plan", "step", "memory", "why")
    yield _table(header, map(alternative_cells, plan.alternatives), header[1:3])
