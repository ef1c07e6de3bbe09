"""Steps that others measured are asked for in their words, and predicted as the page says."""

import json
from dataclasses import replace
from statistics import median

import pytest
from frontends import PlanOptions
from published.__main__ import DOCS, RECORD
from published.cases import Group, groups, layers_of
from published.predict import Prediction, predict
from published.report import errors, memory_ratios, page, rank, worst

GROUPS = {group.name: group for group in groups()}
FOUND = [Prediction(**row) for row in json.loads(RECORD.read_text(encoding="utf-8"))]


def only(group: str, *plans: str) -> Group:
    """A group with some of its plans."""
    of = GROUPS[group]
    return replace(of, plans=tuple(plan for plan in of.plans if plan.name in plans))


def test_the_page_is_that_of_the_record() -> None:
    assert (DOCS / "published.md").read_text(encoding="utf-8") == page(FOUND)
    expected = [(g.name, p.name) for g in GROUPS.values() if g.is_known for p in g.plans]
    assert [(one.group, one.plan) for one in FOUND] == expected


@pytest.mark.parametrize(
    ("group", "plan"),
    [
        ("ab-gpt-2", "zero2"),
        ("ab-gpt-2", "zero3"),
        pytest.param("zb-1.5B-32", "zb-2p", marks=pytest.mark.nightly),
    ],
)
def test_todays_predictions_are_those_of_the_record(group: str, plan: str) -> None:
    (today,) = predict([only(group, plan)])
    (then,) = [one for one in FOUND if (one.group, one.plan) == (group, plan)]
    assert today.predicted_s == pytest.approx(then.predicted_s, rel=1e-3)
    assert today.predicted_gib == pytest.approx(then.predicted_gib, rel=1e-3)
    assert today.predicted_fits == then.predicted_fits


def test_a_plan_of_zero_3_is_slower_than_one_of_zero_2_as_was_measured() -> None:
    by_name = {(one.group, one.plan): one for one in FOUND}
    for group in ("ab-moe-8", "ab-gpt-8"):
        assert by_name[group, "auto"].predicted_s < by_name[group, "zero3"].predicted_s


@pytest.mark.parametrize(
    "name",
    [
        "zb-1.5B-32",
        pytest.param("megatron-529.6B", marks=pytest.mark.nightly),
        pytest.param("alpa-gpt-39B", marks=pytest.mark.nightly),
        "alpa-moe-27b",
    ],
)
def test_every_plan_is_asked_for_by_options_of_plan_for(name: str) -> None:
    group = GROUPS[name]
    layered = layers_of(group.step(), group.microbatches)
    for plan in group.plans:
        options = PlanOptions(**plan.options(layered), microbatches=group.microbatches)
        assert isinstance(options.stages, tuple)
        first = options.stages[0]
        counts = [s if isinstance(s, int) else s[0] for s in options.stages]
        assert sum(counts) == layered.n_layers
        assert (isinstance(first, tuple)) == ("stages" in plan.fields)


def test_clusters_have_the_devices_that_were_used() -> None:
    for group in GROUPS.values():
        assert group.cluster().n_devices == group.n_devices


def test_the_figures_of_the_page() -> None:
    """By hand, for three plans of one step."""
    one = Prediction("a", "zero-bubble", "x", 1.0, 1.1, 10.0, 11.0, True, True)
    others = [
        replace(one, plan="y", measured_s=2.0, predicted_s=1.0, measured_gib=None),
        replace(one, plan="z", measured_s=None, measured_fits=False, predicted_fits=False),
    ]
    found = [one, *others]
    assert errors(found) == pytest.approx([0.1, 0.5])
    assert worst(found) == 2.0
    assert rank(found) == -1.0
    assert memory_ratios(found) == [1.1, 1.1]
    assert "| zero-bubble | 2 | 0.80 | 30% | 1 of 2 | 2.00 | -1.00 | 1.10 | 0 of 3 |" in page(found)


def test_predictions_are_as_good_as_we_say() -> None:
    """Bars on the record: what a change of prices must not lose."""
    assert median(errors(FOUND)) < 0.12
    timed = errors(FOUND)
    assert sum(error <= 0.25 for error in timed) > 0.85 * len(timed)
    zero_bubble = [one for one in FOUND if one.family == "zero-bubble"]
    assert median(errors(zero_bubble)) < 0.08
    assert worst(zero_bubble) < 1.2
