"""A plan's page looks right in a headless browser; and what looks wrong is seen to be so."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from frontends.answer.plan import Plan
from frontends.report.diff import diff
from frontends.report.html import comparison_html, plan_html
from shardspec import Mesh

WIDTH = 1280
"""Of a window in which all can be read; what is drawn is smaller in narrower ones."""

# Runs on the page when all of it is there, and returns what is wrong with it. Boxes are as they are
# drawn; those of words reach over and under their letters, in drawings by 4 pixels.
LOOK = """
const wrong = [];
const say = (what, e) => wrong.push(`${what}: ${(e.textContent || e.tagName).trim().slice(0, 50)}`);
const box = e => e.getBoundingClientRect();
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const across = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left);
const down = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
const isWide = innerWidth >= 1280;
all("details").forEach(e => e.open = true);

if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the window");
const sections = all("section").map(e => e.id).join();
const one = "stages,timeline,tensors,operators,memory,collectives,transfers,layouts,alternatives";
const two = "plans,stages,timeline,memory,tensors,collectives,changes";
const expected = document.body.className === "two" ? two : one;
if (sections !== expected) wrong.push(`sections: ${sections}`);
const pictures = all("svg").filter(e => !e.closest("[hidden]"));  // some make room for tools
for (const e of [...all("h1, h2, section"), ...pictures])
  if (box(e).height < 5) say("not shown", e);

for (const e of all("body *:not(script):not(title)")) {
  const a = box(e), table = e.closest("table");
  const parent = e.ownerSVGElement || e.parentElement;
  if (!a.width && !a.height) continue;
  if (table && table.scrollWidth > table.clientWidth) {
    if (isWide) say("table is scrolled", table);
    continue;
  }
  const b = box(parent), slack = e.tagName === "text" ? 4 : 1;
  if (a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - slack ||
      a.bottom > b.bottom + slack) say("runs out", e);
  if (isWide && !e.ownerSVGElement && parseFloat(getComputedStyle(e).fontSize) < 12)
    say("too small to read", e);
}
for (const parent of all("body, section, details")) {
  const shown = [...parent.children].filter(e => box(e).height);
  shown.slice(1).forEach((e, i) => {
    if (box(e).top < box(shown[i]).bottom - 0.5) say("lies over what is above", e);
  });
}
for (const svg of pictures) {
  const scale = box(svg).width / svg.viewBox.baseVal.width;
  const texts = all("text", svg).map(e => [e, box(e)]);
  const rects = all("rect", svg).map(e => [e, box(e)]);
  const lines = all("line", svg).map(box);
  texts.forEach(([e, a], i) => {
    if (isWide && e.getAttribute("font-size") * scale < 10) say("too small to read", e);
    for (const [, b] of texts.slice(i + 1))
      if (across(a, b) > 1 && down(a, b) > 4) say("words lie over others", e);
    for (const b of lines)
      if (b.width ? across(a, b) > 1 && b.top > a.top + 4 && b.top < a.bottom - 4
                  : down(a, b) > 4 && b.left > a.left + 1 && b.left < a.right - 1)
        say("words are struck through", e);
    if (e.getAttribute("text-anchor") !== "middle") return;
    const around = rects.map(([, b]) => b).filter(b => across(a, b) > 0 && down(a, b) > 8);
    if (!around.some(b => a.left >= b.left - 1 && a.right <= b.right + 1))
      say("words do not fit their box", e);
  });
  rects.forEach(([e, a], i) => {
    for (const [, b] of rects.slice(i + 1))  // a device and its filling start at one corner
      if (across(a, b) > 0.5 && down(a, b) > 0.5 && !(a.left === b.left && a.top === b.top))
        say("boxes lie over each other", e);
  });
}
return [...new Set(wrong)].slice(0, 20);
"""

Look = Callable[[str, int], list[str]]


@pytest.fixture(scope="module")
def look(open_page: Callable[[str, str, int], list[str]]) -> Look:
    """Loads a page in a headless browser of some width, and says what is wrong with it."""
    return lambda page, width: open_page(page, LOOK, width)


@pytest.fixture(scope="module")
def many_stages(priced_plan: Plan) -> Plan:
    """Sixteen stages of sixteen devices, each with something of everything."""
    stages = tuple(
        replace(
            priced_plan.stages[i % 2],
            mesh=Mesh((2, 8), ("x", "y"), tuple(range(16 * i + 900, 16 * i + 916))),
        )
        for i in range(16)
    )
    return replace(priced_plan, stages=stages, transfers=(), microbatches=128)


@pytest.mark.parametrize("width", [WIDTH, 700])
def test_a_page_looks_right(width: int, priced_plan: Plan, look: Look) -> None:
    assert look(priced_plan.html(), width) == []


def without_script(page: str) -> str:
    """The page as it is where scripts do not run."""
    start = page.index("<script>")
    return page[:start] + page[page.index("</script>", start) :].removeprefix("</script>")


@pytest.mark.parametrize("width", [1900, WIDTH, 700])
def test_a_page_of_two_plans_looks_right(
    width: int, priced_plan: Plan, example_plan: Plan, look: Look
) -> None:
    assert look(comparison_html(diff(priced_plan, example_plan)), width) == []


def test_a_page_looks_right_without_its_script(priced_plan: Plan, look: Look) -> None:
    assert look(without_script(priced_plan.html()), WIDTH) == []


@pytest.mark.parametrize("width", [WIDTH, 700])
def test_a_page_of_many_stages_looks_right(width: int, many_stages: Plan, look: Look) -> None:
    assert look(plan_html(many_stages), width) == []


def test_a_plan_near_its_limit_looks_right(priced_plan: Plan, look: Look) -> None:
    peak = max(stage.memory_bytes for stage in priced_plan.stages)
    for percent in (100, 103, 110, 1900):
        near = replace(priced_plan, memory_limit_bytes=peak * percent // 100)
        assert look(near.html(), WIDTH) == []


def test_a_plan_without_prices_looks_right(example_plan: Plan, look: Look) -> None:
    assert look(example_plan.html(), WIDTH) == []


@pytest.mark.parametrize("shape", [(), (1000,), (3, 100), (40, 3)], ids=str)
def test_meshes_of_any_shape_look_right(
    shape: tuple[int, ...], example_plan: Plan, look: Look
) -> None:
    names = tuple("xyz"[: len(shape)])
    n = Mesh(shape, names).size
    stage = replace(example_plan.stages[1], mesh=Mesh(shape, names, tuple(range(9000, 9000 + n))))
    stage = replace(stage, placements=(), conversions=(), collectives=())
    assert look(replace(example_plan, stages=(stage,), transfers=()).html(), WIDTH) == []


WRONG = {
    "an error": ("</h1>", "</h1><script>nothing()</script>", "console: Uncaught ReferenceError"),
    "fetched": ("</h1>", '</h1><img src="none.png"/>', "console: Loading the image"),
    "fetched by a style": ("</style>", "h1 { background: url(a.png) }</style>", "console: Load"),
    "a section less": ('<section id="memory">', '<section id="none">', "sections: "),
    "not shown": ("<h2>Memory", '<h2 style="display: none">Memory', "not shown: Memory"),
    "too wide": ("</h1>", '</h1><pre style="width: 3000px">x</pre>', "wider than the window"),
    "a wide cell": ("<td ", '<td style="min-width: 2000px" ', "table is scrolled: "),
    "small words": ('class="note"', 'style="font-size: 8px"', "too small to read: "),
    "small words drawn": ('font-size="12"', 'font-size="7"', "too small to read: "),
    "pulled up": ("<h2>Memory", '<h2 style="margin-top: -99px">Memory', "lies over what is above"),
    "out of the drawing": ('<text x="0" ', '<text x="990" ', "runs out: "),
    "words on words": (
        "</svg>",
        '<text x="2" y="19">stage 9</text></svg>',
        "words lie over others",
    ),
    "struck through": ("</svg>", '<line x1="0" y1="13" x2="60" y2="13"/></svg>', "struck through"),
    "out of its box": (">0</text>", ">100000000</text>", "words do not fit their box"),
    "box on box": (
        "</svg>",
        '<rect x="95" y="3" width="30" height="9"/></svg>',
        "boxes lie over each other",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_seen(name: str, priced_plan: Plan, look: Look) -> None:
    before, after, seen = WRONG[name]
    page = priced_plan.html()
    assert before in page
    found = look(page.replace(before, after, 1), WIDTH)
    assert any(seen in wrong for wrong in found), found
