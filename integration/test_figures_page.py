"""Every figure of docs/figures.md stands in the table that its row links to."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "figures.md").read_text()
ROWS = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \| \[[^]]+\]\(([\w.]+)#?([\w-]*)\) \|$", PAGE, re.M)


def section(page: str, anchor: str) -> str:
    """The text below the heading of an anchor, up to the next heading of its level or above."""
    text = (DOCS / page).read_text()
    for match in re.finditer(r"^(#+) (.*)$", text, re.M):
        slug = re.sub(r"[^\w\s-]", "", match[2].lower()).strip()
        if re.sub(r"[-\s]+", "-", slug) == anchor:
            rest = text[match.end() :]
            return re.split(rf"^#{{1,{len(match[1])}}} ", rest, maxsplit=1, flags=re.M)[0]
    assert not anchor, f"{page} has no heading {anchor}"
    return text


def test_the_page_has_ten_rows() -> None:
    assert len(ROWS) == 10


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_its_figures_stand_in_the_table(row: tuple[str, ...]) -> None:
    _, ours, peer, page, anchor = row
    text = section(page, anchor)
    figures = re.findall(r"\d[\d,]*(?:\.\d+)?", re.sub(r"\(.*?\)|`.*?`", "", f"{ours} {peer}"))
    assert figures
    for figure in figures:
        if figure not in ("1", "8"):  # "Llama 3 8B" and the peer itself
            assert figure in text or f"-{figure}" in text, figure
