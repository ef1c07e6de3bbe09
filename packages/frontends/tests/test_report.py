import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from frontends.plan import Collective, Plan, Stage, Stored, Transfer
from frontends.report import format_bytes, format_seconds, plan_text, sum_collectives
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Spec
from shardspec.testing import meshes, specs

NAMES = ("params['blocks'][0]['up']", "params['head']", "opt_state[0].count", "batch[0]", "add.7")
SECONDS = st.floats(0, 1e4)
BYTES = st.integers(0, 1 << 45)


@st.composite
def stages(draw: st.DrawFn, layer: int) -> Stage:
    mesh = draw(meshes(max_ndim=2))
    inputs = tuple(Stored(n, draw(specs(mesh, draw(st.integers(0, 3))))) for n in NAMES)
    axes = st.sets(st.integers(0, mesh.ndim - 1), min_size=1).map(lambda s: tuple(sorted(s)))
    collective = st.builds(
        Collective,
        phase=st.integers(0, 2),
        value=st.sampled_from(NAMES),
        kind=st.sampled_from(("all_gather", "all_to_all", "reduce_scatter", "all_reduce")),
        axes=axes,
        group_size=st.just(2),
        n_bytes=BYTES,
        sent_bytes=BYTES,
        repeats=st.integers(1, 64),
        time_s=SECONDS,
    )
    return Stage(
        layer,
        layer + draw(st.integers(0, 3)),
        mesh,
        inputs,
        (),
        (),
        (),
        tuple(draw(st.lists(collective, max_size=4))),
        draw(SECONDS),
        draw(SECONDS),
        draw(SECONDS),
        draw(BYTES),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    planned = tuple(draw(stages(i)) for i in range(draw(st.integers(1, 3))))
    index = st.integers(0, len(planned) - 1)
    transfer = st.builds(
        Transfer,
        value=st.sampled_from(NAMES),
        phase=st.sampled_from(("state", "forward", "backward", "apply")),
        source=index,
        destination=index,
        src_spec=st.just(Spec.parse("S0RR")),
        dst_spec=st.just(Spec.parse("RS01R")),
        n_bytes=BYTES,
        time_s=SECONDS,
    )
    return Plan(
        "fingerprint",
        draw(st.sampled_from(("two-hosts", "a cluster of [red]many[/red] hosts"))),
        draw(BYTES),
        draw(st.integers(1, 64)),
        "1f1b",
        planned,
        tuple(draw(st.lists(transfer, max_size=9))),
        draw(SECONDS),
        draw(SECONDS),
        draw(st.sampled_from(((), ("sort",)))),
        (),
    )


def test_matches_golden_text(example_plan: Plan, check_golden: Callable[[str, str], None]) -> None:
    check_golden("plan.txt", str(example_plan))


@given(plans(), st.integers(60, 130))
def test_no_line_is_wider_than_asked(plan: Plan, width: int) -> None:
    assert max(map(len, plan_text(plan, width).splitlines())) <= width


@given(plans())
def test_names_every_stage_and_every_device_range(plan: Plan) -> None:
    text = plan_text(plan, 400)
    table = text[text.index("Stages") : text.index("What is sharded how")].splitlines()[3:]
    rows = [re.split(r"\s{2,}", line) for line in table if re.match(r"\d", line)]
    assert [int(row[0]) for row in rows] == list(range(len(plan.stages)))
    for row, stage in zip(rows, plan.stages, strict=True):
        ids = []
        for part in row[3].split(", "):
            first, _, last = part.partition("-")
            ids += range(int(first), int(last or first) + 1)
        assert tuple(ids) == tuple(stage.mesh.device_ids)


@given(plans())
def test_sums_hold_every_run_and_byte(plan: Plan) -> None:
    sums, parts = sum_collectives(plan), [c for s in plan.stages for c in s.collectives]
    assert sum(s.runs for s in sums) == sum(c.repeats for c in parts)
    assert sum(s.sent_bytes for s in sums) == sum(c.sent_bytes * c.repeats for c in parts)
    assert sum(s.time_s for s in sums) == pytest.approx(sum(c.time_s * c.repeats for c in parts))
    keys = [(s.stage, s.phase, s.kind, s.axes) for s in sums]
    assert len(keys) == len(set(keys))


@given(plans())
def test_prints_names_as_they_are(plan: Plan) -> None:
    assert f"Plan for cluster {plan.cluster}: " in plan_text(plan)


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


@given(st.integers(0, 1 << 50))
def test_bytes_keep_three_digits(n_bytes: int) -> None:
    number, unit = format_bytes(n_bytes).split()
    exact = float(number) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    assert exact == pytest.approx(n_bytes, rel=5e-3)
    assert len(number) <= 5 or unit == "TiB"


@given(st.floats(1e-6, 1e6))
def test_seconds_keep_three_digits(seconds: float) -> None:
    number, unit = format_seconds(seconds).split()
    exact = float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    assert exact == pytest.approx(seconds, rel=5.1e-3)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0.00 us"), (0.9996e-3, "1.00 ms"), (75.0, "75.0 s")]
)
def test_seconds_round_into_the_next_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
