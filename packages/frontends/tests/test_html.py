"""A plan's page is well-formed for any plan, needs nothing else, and shows what the plan says."""

import re
from dataclasses import replace
from xml.etree import ElementTree

from frontends.answer.plan import Plan
from frontends.plan.plan_fields import Stored
from frontends.report.html import plan_html
from frontends.testing import plans
from hypothesis import given, settings
from shardspec import Spec

HTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
SECTIONS = (
    *("stages", "timeline", "tensors", "operators", "memory", "collectives", "transfers"),
    *("layouts", "alternatives"),
)


def parsed(page: str) -> ElementTree.Element:
    """The page as XML, which is stricter than HTML."""
    doctype, _, rest = page.partition("\n")
    assert doctype == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


def section(page: str, name: str) -> ElementTree.Element:
    found = parsed(page).find(f".//{HTML}section[@id='{name}']")
    assert found is not None
    return found


def words(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


@settings(max_examples=settings().max_examples // 2)
@given(plans())
def test_the_page_of_any_plan_is_well_formed_and_needs_nothing_else(plan: Plan) -> None:
    root = parsed(plan.html())
    assert tuple(s.get("id") for s in root.iter(f"{HTML}section")) == SECTIONS
    tags = {element.tag.split("}")[1] for element in root.iter()}
    assert tags.isdisjoint({"link", "img", "iframe", "object", "image", "use", "a"})
    for element in root.iter():
        assert not {"href", "src", "onload", "onclick"} & set(element.keys())
    data, script = root.iter(f"{HTML}script")
    assert data.get("type") == "application/json"
    assert not re.search(r"fetch|XMLHttp|import\b|WebSocket|sendBeacon|eval|innerHTML", script.text)
    style = root.find(f".//{HTML}style")
    assert style is not None
    assert not re.search(r"url\(|@import", style.text or "")


@settings(max_examples=settings().max_examples // 4)
@given(plans())
def test_names_are_text_on_the_page(plan: Plan) -> None:
    title = parsed(plan.html()).find(f".//{HTML}h1")
    assert title is not None
    assert title.text == f"Plan for cluster {plan.cluster}"
    others = words(section(plan.html(), "alternatives"))
    assert all(" ".join(other.reason.split()) in others for other in plan.alternatives)


def test_names_that_no_xml_can_hold_are_replaced(example_plan: Plan) -> None:
    plan = replace(example_plan, cluster="a\x00b\x1b\ud800c")
    assert "Plan for cluster a\ufffdb\ufffd\ufffdc" in words(parsed(plan.html()))


def test_the_same_plan_gives_the_same_page(priced_plan: Plan) -> None:
    assert Plan.from_json(priced_plan.to_json()).html() == priced_plan.html()


def test_operators_are_coloured_by_what_the_axes_do(example_plan: Plan) -> None:
    shapes = section(example_plan.html(), "operators").iter(f"{SVG}rect")
    titles = [words(shape) for shape in shapes]
    assert titles == [
        "add.40: splits dim 0; S0RR",
        "add.40: whole; S0RR",
        "mul.77: splits dim 0; S0RR",
    ]


def test_a_priced_plan_draws_its_memory_by_kind(priced_plan: Plan) -> None:
    memory = section(priced_plan.html(), "memory")
    titles = [words(shape) for shape in memory.iter(f"{SVG}polygon")]
    for kind in ("params", "activations", "gradients"):
        assert sum(title.startswith(f"{kind}: at most") for title in titles) == 2
    assert "is not known" not in words(memory)
    assert "over the step, against its limit" in words(section(priced_plan.html(), "timeline"))


def test_the_limit_is_drawn_where_there_is_room(priced_plan: Plan) -> None:
    limit = max(stage.memory_bytes for stage in priced_plan.stages) * 2
    near = replace(priced_plan, memory_limit_bytes=limit)
    assert "is above this" in words(section(priced_plan.html(), "memory"))
    assert "is above this" not in words(section(near.html(), "memory"))


def test_every_action_is_on_the_timeline(example_plan: Plan) -> None:
    shapes = section(example_plan.html(), "timeline").iter(f"{SVG}rect")
    titles = [words(shape) for shape in shapes]
    for stage in range(2):
        for microbatch in range(8):
            for kind in ("forward", "backward"):
                start = f"{kind} of microbatch {microbatch}, stage {stage}: "
                assert sum(title.startswith(start) for title in titles) == 1


def test_a_long_pipeline_is_cut(example_plan: Plan) -> None:
    page = replace(example_plan, microbatches=1024).html()
    timeline = section(page, "timeline")
    assert len(list(timeline.iter(f"{SVG}svg"))) == 2
    assert "The start and the end of the step" in words(timeline)
    assert len(page) < 2_000_000


def test_a_schedule_that_does_not_exist_is_said(example_plan: Plan) -> None:
    page = replace(example_plan, schedule="zigzag").html()
    assert "This plan's schedule cannot be simulated: " in words(section(page, "timeline"))


def test_long_lists_are_cut_and_counted(example_plan: Plan) -> None:
    inputs = tuple(Stored(f"params[{i}]", Spec.parse("S0R")) for i in range(1000))
    stage = replace(example_plan.stages[0], inputs=inputs)
    plan = replace(example_plan, stages=(stage,), transfers=())
    layouts = words(section(plan.html(), "layouts"))
    assert "and 700 more" in layouts
    assert "1000 S0R" in layouts


def test_is_what_the_method_gives(example_plan: Plan) -> None:
    assert example_plan.html() == plan_html(example_plan)
