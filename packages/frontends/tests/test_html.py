"""A plan's page is well-formed for any plan, needs nothing else, and looks right in a browser."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from frontends.html import plan_html
from frontends.plan import Plan, Stored
from frontends.testing import plans
from hypothesis import given, settings
from shardspec import Mesh, Spec

HTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
SECTIONS = ("stages", "timeline", "operators", "memory", "collectives", "transfers", "layouts",
            "alternatives")  # fmt: skip
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")


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
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "image", "use", "a"})
    for element in root.iter():
        assert not {"href", "src", "onload", "onclick"} & set(element.keys())
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
    assert "is beyond the drawing" in words(section(priced_plan.html(), "memory"))
    assert "is beyond the drawing" not in words(section(near.html(), "memory"))


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
    layouts = words(section(replace(example_plan, stages=(stage,)).html(), "layouts"))
    assert "and 700 more" in layouts
    assert "1000 S0R" in layouts


# What only a browser knows, written into the page's title: whether it is wider than the window,
# drawings without size, and words that run out of their drawing.
MEASURE = """<script>
const svgs = [...document.querySelectorAll("svg")], out = [];
for (const text of document.querySelectorAll("svg text")) {
  const box = text.getBoundingClientRect(), frame = text.ownerSVGElement.getBoundingClientRect();
  if (box.right > frame.right + 1 || box.left < frame.left - 1 ||
      box.bottom > frame.bottom + 4 || box.top < frame.top - 4) out.push(text.textContent);
}
document.title = JSON.stringify({
  wide: document.documentElement.scrollWidth > innerWidth,
  drawings: svgs.length,
  empty: svgs.filter(s => s.getBoundingClientRect().height < 5).length,
  out: out,
  shown: [...document.querySelectorAll("h2")].filter(h => h.offsetHeight > 0).length,
});
</script>"""


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, object]]:
    """Loads a page in a headless browser of some width, and says what it measured."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser; install one of {', '.join(BROWSERS)} (apt has chromium)")
    folder = tmp_path_factory.mktemp("browser")

    def load(page: str, width: int) -> dict[str, object]:
        path = folder / "plan.html"
        path.write_text(page.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
        options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/user",
                   f"--window-size={width},900", "--dump-dom")  # fmt: skip
        result = subprocess.run(
            [browser, *options, path.as_uri()], capture_output=True, text=True, timeout=120
        )
        title = re.search(r"<title>(.*?)</title>", result.stdout)
        assert title is not None, result.stderr
        found: dict[str, object] = json.loads(title[1].replace("&gt;", ">").replace("&amp;", "&"))
        return found

    return load


@pytest.mark.parametrize("width", [1400, 700])
def test_a_browser_shows_all_of_it(
    width: int, priced_plan: Plan, measure: Callable[[str, int], dict[str, object]]
) -> None:
    page = priced_plan.html()
    assert measure(page, width) == {
        "wide": False, "drawings": page.count("<svg "), "empty": 0, "out": [],
        "shown": len(SECTIONS),
    }  # fmt: skip


def test_a_browser_shows_a_plan_with_many_stages(
    example_plan: Plan, measure: Callable[[str, int], dict[str, object]]
) -> None:
    stage = example_plan.stages[1]
    many = tuple(
        replace(stage, mesh=Mesh((2, 8), ("x", "y"), tuple(range(16 * i, 16 * i + 16))))
        for i in range(16)
    )
    page = replace(example_plan, stages=many, transfers=(), microbatches=128).html()
    found = measure(page, 1200)
    assert (found["wide"], found["empty"], found["out"]) == (False, 0, [])


def test_is_what_the_method_gives(example_plan: Plan, tmp_path: Path) -> None:
    assert example_plan.html() == plan_html(example_plan)
