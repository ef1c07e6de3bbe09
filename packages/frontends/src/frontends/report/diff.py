"""The differences between two plans, and between their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.text import Text
from shardspec.amounts import bytes_text, seconds_text

from frontends.plan.plan_fields import PlanFields, Stage
from frontends.report.text import (
    WIDTH,
    add_row,
    describe_devices,
    describe_layers,
    describe_mesh,
    describe_remat,
    make_table,
    runs_per_step,
)
from frontends.step.step import PHASE_NAMES

_SHOWN = 12
"""The most rows that are printed of a kind of change; `Difference.changes` has all."""

_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two plans."""

    kind: str
    """One of `KINDS`."""

    what: str
    """What differs: the name of an operator or a value, a stage, ..."""

    before: str
    """`-` if the first plan does not have it."""

    after: str
    """`-` if the second plan does not have it."""


KINDS = (
    "plan",
    "stage",
    "stored value",
    "operator",
    "conversion",
    "collectives",
    "transfer",
    "priced plan",
)
"""The kinds of changes, in the order in which they are listed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between two plans; prints as tables."""

    before: PlanFields
    after: PlanFields
    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        file = StringIO()
        console = Console(
            file=file, width=WIDTH, color_system=None, force_jupyter=False, emoji=False, _environ={}
        )
        console.print(difference_tables(self))
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    @property
    def seconds(self) -> float:
        """How much longer a step of `after` takes; negative if it is faster."""
        return self.after.step_s - self.before.step_s


def diff(before: PlanFields, after: PlanFields) -> Difference:
    """The differences of `after` from `before`.

    Operators and values are compared by name. So, for plans of one step, the differences are those
    in how it runs; plans of different steps can be compared as far as names agree.
    """
    old_facts, new_facts = _facts(before), _facts(after)
    changes = tuple(
        Change(kind, what, old, new)
        for kind in KINDS
        for what, old, new in _changed(old_facts[kind], new_facts[kind])
    )
    return Difference(before, after, changes)


def difference_words(difference: Difference) -> str:
    """How much longer a step of the second plan takes, as a sentence."""
    if not difference:
        return "Nothing is different"
    before, after = difference.before, difference.after
    more = difference.seconds
    ratio = f", {after.step_s / before.step_s:.3f} times" if before.step_s else ""
    word = "more" if more > 0 else "less"
    by = f"{seconds_text(abs(more))} {word}{ratio}" if more else "as long"
    seconds = " to ".join(seconds_text(plan.step_s) for plan in (before, after))
    return f"A step takes {by}: {seconds}"


def difference_tables(difference: Difference) -> RenderableType:
    """The differences as a renderable of rich, as wide as its console."""
    if not difference:
        return Text(difference_words(difference))
    parts: list[RenderableType] = [Text(difference_words(difference), "bold")]
    for kind in KINDS:
        changes = [change for change in difference.changes if change.kind == kind]
        if not changes:
            continue
        table = make_table(f"{kind.capitalize()}: {len(changes):,} different", "what")
        for column in ("before", "after"):
            table.add_column(column, overflow="fold")
        table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
        for what, old, new, count in _grouped(changes)[:_SHOWN]:
            add_row(table, f"{what} and {count - 1:,} more" if count > 1 else what, old, new)
        parts += ["", table]
        if rest := _grouped(changes)[_SHOWN:]:
            parts.append(Text(f"... and {sum(row[3] for row in rest):,} more", "dim"))
    return Group(*parts)


def _grouped(changes: Sequence[Change]) -> list[tuple[str, str, str, int]]:
    """Rows of changes; all that have the same `before` and `after` are one, with their number."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        groups.setdefault((change.before, change.after), []).append(change.what)
    return [(names[0], *ends, len(names)) for ends, names in groups.items()]


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    for what in dict.fromkeys((*before, *after)):
        old, new = before.get(what, _NOTHING), after.get(what, _NOTHING)
        if old != new:
            yield what, old, new


def _facts(plan: PlanFields) -> dict[str, dict[str, str]]:
    """Everything that a plan says as text, by kind of change and by what it is about."""
    stored: dict[str, list[str]] = {}
    operators: dict[str, list[str]] = {}
    conversions: dict[str, list[str]] = {}
    for index, stage in enumerate(plan.stages):
        for side, values in (("", stage.inputs), ("new ", stage.outputs)):
            for value in values:
                stored.setdefault(side + value.value, []).append(f"{value.spec} on stage {index}")
        for p in stage.placements:
            specs = f"{_specs(p.operands)} -> {_specs(p.results)}"
            operators.setdefault(p.operator, []).append(f"{specs} on stage {index}")
        for c in stage.conversions:
            what = f"{c.value} in {PHASE_NAMES[c.phase]}"
            conversions.setdefault(what, []).append(f"{c.src} to {c.dst} on stage {index}")
    return {
        "plan": _of_plan(plan),
        "stage": {f"stage {i}": _stage_text(stage) for i, stage in enumerate(plan.stages)},
        "stored value": _joined(stored),
        "operator": _joined(operators),
        "conversion": _joined(conversions),
        "collectives": _joined(_collectives(plan)),
        "transfer": _joined(_transfers(plan)),
        "priced plan": _joined(_alternatives(plan)),
    }


def _of_plan(plan: PlanFields) -> dict[str, str]:
    return {
        "step": plan.step,
        "cluster": plan.cluster,
        "memory limit": bytes_text(plan.memory_limit_bytes),
        "memory limit by stage": ", ".join(map(bytes_text, plan.memory_limits)) or "all the same",
        "microbatches": str(plan.microbatches),
        "schedule": plan.schedule,
        "strategy": plan.strategy,
        "computed again": describe_remat(plan),
        "padded to": str(plan.padded_to or "nothing"),
        "first pass": seconds_text(plan.first_pass_s) if plan.first_pass_s else "none",
        "stages": str(len(plan.stages)),
        "predicted step": seconds_text(plan.step_s),
        "lower bound": seconds_text(plan.lower_bound_s),
        "run whole": ", ".join(plan.unsharded) or "nothing",
    }


def _stage_text(stage: Stage) -> str:
    times = (stage.forward_s, stage.backward_s, stage.apply_s)
    return (
        f"layers {describe_layers(stage)}, mesh {describe_mesh(stage.mesh)}, devices "
        f"{describe_devices(stage.mesh.device_ids)}, {' + '.join(map(seconds_text, times))}, "
        f"{bytes_text(stage.memory_bytes)}"
    )


def _collectives(plan: PlanFields) -> dict[str, list[str]]:
    """By kind, axes, phase and stage: the runs, the bytes that a device sends, and the time."""
    runs: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    for index, stage in enumerate(plan.stages):
        for c in stage.collectives:
            axes = ", ".join(stage.mesh.axis_names[axis] for axis in c.axes)
            what = f"{c.kind.replace('_', '-')} over {axes} in {PHASE_NAMES[c.phase]}"
            what = f"{what} of stage {index}"
            runs[what] += c.repeats
            sent[what] += c.sent_bytes * c.repeats
            seconds[what] = seconds.get(what, 0.0) + c.time_s * c.repeats
    return {
        what: [f"{runs[what]:,} runs, {bytes_text(sent[what])}, {seconds_text(seconds[what])}"]
        for what in runs
    }


def _transfers(plan: PlanFields) -> dict[str, list[str]]:
    transfers: dict[str, list[str]] = {}
    for t in plan.transfers:
        text = (
            f"{t.source} to {t.destination} as {t.src_spec} to {t.dst_spec}, "
            f"{bytes_text(t.n_bytes)} in {seconds_text(t.time_s)}, {runs_per_step(plan, t)} x"
        )
        transfers.setdefault(f"{t.value} ({t.phase})", []).append(text)
    return transfers


def _alternatives(plan: PlanFields) -> dict[str, list[str]]:
    alternatives: dict[str, list[str]] = {}
    for other in plan.alternatives:
        step = "cannot run" if other.step_s is None else seconds_text(other.step_s)
        alternatives.setdefault(other.name, []).append(f"{step} ({other.reason})")
    return alternatives


def _joined(facts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {what: "; ".join(texts) for what, texts in facts.items()}


def _specs(specs: Sequence[object]) -> str:
    return ", ".join(map(str, specs))
