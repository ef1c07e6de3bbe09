from xml.etree import ElementTree

import pytest
from frontends.report.svg import area, line, rect, safe, svg, text
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.floats(-1e4, 1e4)
ANY_TEXT = st.text(st.characters(codec=None))


@given(ANY_TEXT)
def test_any_text_is_xml_and_reads_back(words: str) -> None:
    read = ElementTree.fromstring(f"<p>{safe(words)}</p>").text or ""
    clean = words.replace("\r\n", "\n").replace("\r", "\n")
    assert len(read) == len(clean)
    assert all(a == b or a == "\ufffd" for a, b in zip(read, clean, strict=True))


@given(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), ANY_TEXT)
def test_any_shapes_make_a_picture(numbers: tuple[float, float, float, float], words: str) -> None:
    shapes = [
        rect(*numbers, "#fff", title=words, stroke="#000"),
        line(*numbers, "#fff", dashed=True),
        area([numbers[:2], numbers[2:]], "#fff", title=words),
        text(*numbers[:2], words, anchor="end"),
    ]
    root = ElementTree.fromstring(svg(10.0, words, shapes))
    assert [element.tag.split("}")[1] for element in root] == ["rect", "line", "polygon", "text"]
    rectangle = root[0]
    places = [float(rectangle.get(name, "")) for name in ("x", "y", "width", "height")]
    assert places == pytest.approx(numbers, abs=0.006)
