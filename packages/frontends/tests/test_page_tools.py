"""The tools of a plan's page, used in a browser by keys and clicks."""

from collections.abc import Callable

import pytest
from frontends.answer.plan import Plan
from frontends.report.diff import diff
from frontends.report.html import comparison_html

Use = Callable[[str, str], list[str]]

USER = """
const canvases = [...document.querySelectorAll("canvas")];
const said = n => canvases[n].parentElement.querySelector("output").textContent;
const press = (key, n = 0) => {
  canvases[n].focus();
  canvases[n].dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  return said(n);
};
const click = name => [...document.querySelectorAll("button")]
  .find(e => e.textContent === name).click();
const pixels = n => canvases[n].toDataURL();
const search = text => {
  const input = document.querySelector("input[type=search]");
  input.value = text;
  input.dispatchEvent(new Event("input"));
  return [...document.querySelectorAll("[data-tensors] > ul button")].map(e => e.textContent);
};
"""


@pytest.fixture(scope="module")
def use(open_page: Callable[[str, str, int], list[str]]) -> Use:
    """Opens a page and does what a script says."""
    return lambda page, script: open_page(page, USER + script, 1280)


def test_keys_go_from_block_to_block(priced_plan: Plan, use: Use) -> None:
    keys = ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "End", "Home")
    said = use(priced_plan.html(), f"return {list(keys)}.map(key => press(key));")
    assert said[0].startswith("Rank 0: forward of microbatch 0, stage 0, ")
    assert said[1].startswith("Rank 0: forward of microbatch 1, stage 0, ")
    assert said[2] == said[0]
    assert "Its result is sent to rank 1 in " in said[0]
    assert said[3].startswith("Rank 1: ")
    assert " from rank 0" in said[3]
    assert said[4].startswith(("Rank 1: sent once a step", "Rank 1: apply"))
    assert said[5].startswith("Rank 1: forward of microbatch 0, stage 1, ")


def test_zooming_draws_another_picture_and_back(priced_plan: Plan, use: Use) -> None:
    script = """
    const whole = pixels(0);
    press("+");
    const near = pixels(0);
    press("0");
    const again = pixels(0);
    click("Zoom in"); click("Later");
    const later = pixels(0);
    click("Whole step");
    return [near !== whole, again === whole, later !== near, pixels(0) === whole].map(String);
    """
    assert use(priced_plan.html(), script) == ["true"] * 4


def test_a_block_says_what_runs_inside(priced_plan: Plan, use: Use) -> None:
    script = """
    press("ArrowRight");
    press("Enter");
    const tool = canvases[0].parentElement;
    return [tool.querySelector(".note").textContent,
            ...[...tool.querySelectorAll("tbody tr")].map(row => row.cells[0].textContent)];
    """
    inside, *names = use(priced_plan.html(), script)
    assert inside.startswith("Inside: ")
    assert "compute " in inside
    sharding = priced_plan.stages[0].sharding
    assert sharding is not None
    operators = {op.name for op in sharding.graph.operators if op.phase == 0}
    assert {n for n in names if " short operator" not in n} <= operators | {
        c.value for c in priced_plan.stages[0].collectives
    }
    assert names


def test_a_tensor_is_found_and_its_parts_are_said(priced_plan: Plan, use: Use) -> None:
    sharding = priced_plan.stages[0].sharding
    assert sharding is not None
    name, spec = next((n, s) for n, s in sharding.input_specs if sharding.graph.value(n).shape)
    script = f"""
    const found = search({name.upper()!r});
    document.querySelector("[data-tensors] > ul button").click();
    const shown = document.querySelector("[data-tensors] > div");
    return [found[0], shown.textContent, `${{shown.querySelectorAll("svg rect").length}}`,
            search("no tensor has this name").join()];
    """
    found, text, boxes, nothing = use(priced_plan.html(), script)
    assert found == name
    assert f"As {spec}: " in text
    assert "devices 0" in text
    assert int(boxes) >= 1
    assert nothing == ""


def test_names_are_text_for_the_script_too(priced_plan: Plan, use: Use) -> None:
    script = """return search("").concat([`${document.querySelectorAll("b").length}`]);"""
    page = priced_plan.html().replace('"stems":["', '"stems":["\\u003cb>x\\u003c/b>')
    *names, bold = use(page, script)
    assert any("<b>x</b>" in name for name in names)
    assert bold == "0"


def test_two_plans_are_zoomed_together(priced_plan: Plan, example_plan: Plan, use: Use) -> None:
    script = """
    const before = [pixels(0), pixels(1)];
    press("+", 1);
    return [`${canvases.length}`, ...before.map((old, n) => String(old !== pixels(n)))];
    """
    page = comparison_html(diff(priced_plan, example_plan))
    assert use(page, script) == ["2", "true", "true"]
