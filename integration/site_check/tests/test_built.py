"""What is wrong with a site is seen, and nothing else."""

import zlib
from pathlib import Path

import pytest
from site_check.built import MOST_BYTES, check_fetched, check_page, check_reference
from site_check.names import MODULES, public_names

GOOD = """<!doctype html><html><head><meta charset="utf-8"><link rel="icon" href="data:,">
<link rel="canonical" href="https://example.org/"></head>
<body><div class="md-content"><p>Words, and <a href="https://example.org/">a link</a>.</p></div>
</body></html>"""

WRONG = """<script>nothing()</script><img src="none.png"><p style="width: 2000px">wide</p>
<p style="color: #ccc">pale</p><img src="large.svg">"""


def site(folder: Path, page: str = GOOD) -> Path:
    (folder / "index.html").write_text(page)
    (folder / "large.svg").write_text(f"<svg><!--{'x' * MOST_BYTES}--></svg>")
    return folder


def test_a_good_page_is_good(tmp_path: Path) -> None:
    assert check_page(site(tmp_path), "", 390) == []
    assert check_fetched(tmp_path) == []


def test_all_that_is_wrong_with_a_page_is_seen(tmp_path: Path) -> None:
    page = GOOD.replace("</div>", f"{WRONG}</div>")
    found = " ".join(check_page(site(tmp_path, page), "", 390))
    for said in ("console: Uncaught", "none.png", "is pale: P", "pixels wide", "bytes are loaded"):
        assert said in found


@pytest.mark.parametrize(
    "fetch",
    [
        '<script src="https://example.org/a.js"></script>',
        '<img alt="x" src="//example.org/a.png">',
        '<link rel="stylesheet" href="https://example.org/a.css">',
        "<style>@font-face { src: url(https://example.org/a.woff) }</style>",
    ],
)
def test_what_is_loaded_from_elsewhere_is_seen(tmp_path: Path, fetch: str) -> None:
    assert len(check_fetched(site(tmp_path, GOOD.replace("</head>", f"{fetch}</head>")))) == 1


def test_a_name_that_the_reference_lacks_is_seen(tmp_path: Path) -> None:
    names = [f"{m}.{name}" for m in MODULES for name in public_names(m)]
    lines = "".join(f"{name} py:class 1 reference/#$ -\n" for name in names[1:])
    head = b"# Sphinx inventory version 2\n# Project: x\n# Version: 0\n# compressed\n"
    (tmp_path / "objects.inv").write_bytes(head + zlib.compress(lines.encode()))
    assert check_reference(tmp_path) == [f"{names[0]} is not on the reference"]
