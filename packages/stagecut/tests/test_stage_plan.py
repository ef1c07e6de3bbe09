import json
from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from stagecut import (
    HostKind,
    InfeasibleStagesError,
    InvalidInputError,
    Places,
    RecordError,
    StageCost,
    plan_stages,
)
from stagecut.base.held_microbatches import SCHEDULES
from stagecut.plan.stage_plan import StagePlan
from stagecut.testing import slicing_problems


@st.composite
def stage_plans(draw):
    """Plans for any of `slicing_problems` that has one."""
    problem = draw(slicing_problems(max_layers=4, shapes=((1, 1), (1, 4), (2, 2), (3, 1))))
    try:
        return plan_stages(
            problem.n_layers,
            problem.cluster_shape,
            problem.n_microbatches,
            problem.cost,
            problem.memory_bytes,
            schedule=draw(st.sampled_from(sorted(SCHEDULES))),
            boundary_s=problem.boundary_s,
            flops=[1.0] * problem.n_layers,
            title=draw(st.text("ab", max_size=5)),
        )
    except InfeasibleStagesError:
        reject()


def small():
    def cost(first, last, submesh):
        layers = last - first + 1
        time_s = 0.01 * layers * (1 + 0.1 * submesh[1]) / submesh[1]
        return StageCost(time_s, layers << 30, 1 << 28, 0.001, 1 << 20, option=(submesh[1], 1))

    return plan_stages(
        6, (1, 4), 8, cost, 4 << 30, flops=(1, 1, 1, 2, 2, 2), boundary_s=lambda layer: 1e-4,
        title="six layers", manual={"mine": [(0, 4, (1, 2)), (5, 5, (1, 2))]}, alternatives=True,
    )  # fmt: skip


def test_prints_as_a_table(check_golden):
    check_golden("plan.txt", str(small()))


def test_explains_a_stage(check_golden):
    check_golden("explain.txt", small().explain(1))


def test_draws_itself(check_golden):
    check_golden("draw.txt", small().draw())


def test_draws_itself_in_ascii():
    text = small().draw(width=40, ascii=True)
    assert text.isascii()
    assert len(text.splitlines()) == len(small().draw(width=40).splitlines())


@given(stage_plans())
def test_a_drawing_has_a_bar_of_its_width_for_each_stage(plan):
    lines = [line for line in plan.draw(width=30).splitlines() if line.startswith("stage")]
    assert len(lines) == 2 * len(plan.stages)
    assert all(len(line[line.index("|") + 1 :].split("|")[0]) == 30 for line in lines)


@given(stage_plans())
def test_idle_time_and_work_are_a_whole_step(plan):
    for stage, idle in zip(plan.stages, plan.idle, strict=True):
        work_s = plan.n_microbatches * stage.cost.time_s + stage.cost.once_s
        assert 0 <= idle <= 1
        assert idle * plan.time_s + work_s == pytest.approx(plan.time_s)


@given(stage_plans())
def test_explains_every_stage_and_no_other(plan):
    for number, stage in enumerate(plan.stages):
        text = plan.explain(number)
        assert text.startswith(f"stage {number}: layers {stage.first}")
        named = [rival.name for rival in plan.rivals if number in rival.changes]
        assert all(name in text for name in named)
    for number in (-1, len(plan.stages)):
        with pytest.raises(InvalidInputError, match=f"counted from 0 to .*got stage={number}"):
            plan.explain(number)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(stage_plans())
def test_json_reads_back_to_an_equal_plan(plan):
    assert StagePlan.from_json(plan.to_json()) == plan
    assert StagePlan.from_json(plan.to_json().encode()) == plan


def test_a_plan_on_hosts_of_several_kinds_prints_them_and_reads_back():
    def cost(first, last, submesh):
        slowness = 1.0 if submesh.kind == "a100" else 3.0
        return StageCost(slowness * (last - first + 1) / submesh[0] / submesh[1], 1, 1)

    places = Places(((HostKind(4, "a100"), 1), (HostKind(2, "v100"), 2)))
    plan = plan_stages(6, places, 4, cost)
    assert [str(row).split()[2:4] for row in str(plan).splitlines()[4:6]] == [
        ["1x4", "a100"],
        ["2x2", "v100"],
    ]
    assert StagePlan.from_json(plan.to_json()) == plan


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.text() | json_values.map(json.dumps) | st.binary(max_size=20))
def test_any_other_text_is_refused(text):
    with pytest.raises(RecordError):
        StagePlan.from_json(text)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.data())
def test_a_plan_with_a_changed_entry_is_refused_or_read(data):
    document = json.loads(small().to_json())
    place = document["plan"]
    for _ in range(data.draw(st.integers(0, 4))):
        inner = place.values() if isinstance(place, dict) else place
        nested = [one for one in inner if isinstance(one, dict | list) and one]
        if not nested:
            break
        place = data.draw(st.sampled_from(nested))
    keys = sorted(place) if isinstance(place, dict) else range(len(place))
    place[data.draw(st.sampled_from(keys))] = data.draw(json_values)
    try:
        plan = StagePlan.from_json(json.dumps(document))
    except RecordError:
        return
    plan.draw()
    assert str(plan)
    assert all(plan.explain(number) for number in range(len(plan.stages)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.update(version=2),
            "written by a newer stagecut in version 2 .* reads version 1: update stagecut, or",
        ),
        (lambda d: d.update(version=None), "reads version 1; got version None: plan again"),
        (lambda d: d["plan"].pop("stages"), "plan has title, .*; stages is missing"),
        (lambda d: d["plan"].update(extra=1), "got 'extra', too"),
        (lambda d: d["plan"]["stages"][0].update(first=0.5), r"stages\[0\].first is a whole numb"),
        (lambda d: d["plan"]["stages"].pop(0), "runs of layers in order, from layer 0 on"),
        (lambda d: d["plan"].update(schedule="magic"), "a schedule is one of .*; got 'magic'"),
        (lambda d: d["plan"].update(n_microbatches=0), "n_microbatches=0"),
        (
            lambda d: d["plan"]["stages"][0]["cost"].update(time_s=-1),
            r"stages\[0\].cost: a stage c",
        ),
        (lambda d: d["plan"]["stages"][0].update(devices=[[0]]), "and the devices of its submesh"),
    ],
)
def test_says_which_entry_is_wrong(change, message):
    document = json.loads(small().to_json())
    change(document)
    with pytest.raises(RecordError, match=message):
        StagePlan.from_json(json.dumps(document))


def test_numbers_no_machine_has_are_refused():
    text = small().to_json()
    for number in ("1e999", "NaN", "Infinity", "9" * 5000):
        with pytest.raises(RecordError):
            StagePlan.from_json(text.replace('"n_microbatches": 8', f'"n_microbatches": {number}'))
    with pytest.raises(RecordError, match="is JSON text; got text that cannot be read"):
        StagePlan.from_json("[" * 100_000)


def test_an_option_that_is_no_json_is_refused():
    plan = small()
    cost = replace(plan.stages[0].cost, option=frozenset({1}))
    stages = replace(plan.stages[0], cost=cost), *plan.stages[1:]
    with pytest.raises(RecordError, match="an option of a stage is a number"):
        replace(plan, stages=stages).to_json()


def test_pictures_are_the_same_each_time(tmp_path):
    plan = small()
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
        for path in paths:
            plan.picture(path)
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert paths[0].read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("schedule", "is_drawn"), [("zb-h1", False), ("zb-h2", False), ("1f1b", True), ("gpipe", True)]
)
def test_a_schedule_that_is_not_drawn_says_so(schedule, is_drawn, tmp_path):
    plan = replace(small(), schedule=schedule)
    path = tmp_path / "plan.svg"
    plan.picture(path)
    for text in plan.draw(), path.read_text(encoding="utf-8"):  # which has its texts as comments
        said = f"drawn with whole backwards; {schedule} runs gradients of weights in its bubbles"
        assert (said in text) == (not is_drawn)
        assert ("drawn with" in text) == (not is_drawn)


def test_rejects_a_picture_of_another_kind():
    with pytest.raises(InvalidInputError, match=r"ends in .png or .svg; got 'plan.gif'"):
        small().picture("plan.gif")


def test_rejects_a_drawing_without_columns():
    with pytest.raises(InvalidInputError, match="at least one column; got width=0"):
        small().draw(width=0)


def test_a_plan_is_written_as_it_always_was(check_golden):
    text = small().to_json()
    check_golden("plan.json", text)
    assert StagePlan.from_json(text) == small()
