import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from frontends.answer.plan import Plan
from frontends.plan.plan_fields import Stored
from frontends.report.text import memory_cells, plan_text, sum_collectives
from frontends.testing import plans
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Spec


def test_matches_golden_text(example_plan: Plan, check_golden: Callable[[str, str], None]) -> None:
    check_golden("plan.txt", str(example_plan))


@settings(max_examples=max(100, settings().max_examples // 5))
@given(plans(), st.integers(60, 130))
def test_no_line_is_wider_than_asked(plan: Plan, width: int) -> None:
    text = plan_text(plan, width)
    assert max(map(len, text.splitlines())) <= width
    assert "\u2026" not in text


@pytest.mark.parametrize("width", [80, 100, 130])
def test_nothing_is_cut(width: int, priced_plan: Plan) -> None:
    text = plan_text(priced_plan, width)
    cells = [c for i, s in enumerate(priced_plan.stages) if s.sharding
             for c in memory_cells(i, s.sharding)]  # fmt: skip
    memory = " ".join(text[text.index("Peak memory") :].split())
    assert all(cell in memory for cell in cells)
    assert "\u2026" not in text


@settings(max_examples=max(100, settings().max_examples // 5))
@given(plans())
def test_names_every_stage_and_every_device_range(plan: Plan) -> None:
    text = plan_text(plan, 400)
    table = text[text.index("Stages") : text.index("Layouts of what each")].splitlines()[3:]
    rows = [re.split(r"\s{2,}", line) for line in table if re.match(r"\d", line)]
    assert [int(row[0]) for row in rows] == list(range(len(plan.stages)))
    for row, stage in zip(rows, plan.stages, strict=True):
        ids = []
        for part in row[3].split(", "):
            first, _, last = part.partition("-")
            ids += range(int(first), int(last or first) + 1)
        assert tuple(ids) == tuple(stage.mesh.device_ids)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(plans())
def test_sums_hold_every_run_and_byte(plan: Plan) -> None:
    sums, parts = sum_collectives(plan), [c for s in plan.stages for c in s.collectives]
    assert sum(s.runs for s in sums) == sum(c.repeats for c in parts)
    assert sum(s.sent_bytes for s in sums) == sum(c.sent_bytes * c.repeats for c in parts)
    assert sum(s.time_s for s in sums) == pytest.approx(sum(c.time_s * c.repeats for c in parts))
    keys = [(s.stage, s.phase, s.kind, s.axes) for s in sums]
    assert len(keys) == len(set(keys))


@settings(max_examples=max(100, settings().max_examples // 5))
@given(plans())
def test_prints_names_as_they_are(plan: Plan) -> None:
    plan = replace(plan, cluster="a cluster of [red]many[/red] hosts")
    assert "Plan for cluster a cluster of [red]many[/red] hosts: " in plan_text(plan)


def test_does_not_depend_on_the_terminal(
    example_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = str(example_plan)
    for name, value in (("COLUMNS", "40"), ("FORCE_COLOR", "1"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    assert str(example_plan) == expected


def test_a_thousand_values_take_no_more_lines_than_ten(example_plan: Plan) -> None:
    def with_values(number: int) -> str:
        inputs = tuple(Stored(f"params[{i}]", Spec.parse("S0R")) for i in range(number))
        stage = replace(example_plan.stages[0], inputs=inputs)
        transfer = example_plan.transfers[1]
        sent = tuple(replace(transfer, value=f"add.{i}") for i in range(number))
        return str(replace(example_plan, stages=(stage, stage), transfers=sent))

    assert with_values(1000).count("\n") == with_values(10).count("\n")
    assert "1000 S0R" in with_values(1000)


def test_lists_memory_by_kind_of_a_priced_plan(priced_plan: Plan) -> None:
    text = plan_text(priced_plan)
    table = text[text.index("Peak memory of one device") :].split("\n\n")[0].splitlines()
    assert re.split(r"\s{2,}", table[1])[1:4] == ["in flight", "params", "optimizer"]
    assert [row.split()[0] for row in table[3:-1]] == ["0", "1"]
