"""Every cache and counter that lives as long as the process is described in docs/caches.md."""

import ast
import re
from pathlib import Path

import pytest
from caches import caches_in, caches_of, written_in

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
ROW = re.compile(r"^\| `([\w./]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
LISTED = {row[0]: row[1:] for row in ROW.findall((ROOT / "docs" / "caches.md").read_text())}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_cache_is_described(package: Path) -> None:
    caches = caches_of(package)
    listed = {name for name in LISTED if re.match(rf"{package.name}[./]", name)}
    assert sorted(caches - listed) == [], (
        "docs/caches.md describes every cache: what it keeps, by which key, and how many entries"
    )
    assert sorted(listed - caches) == [], "docs/caches.md lists no caches that do not exist"


def test_there_are_seven_packages_and_no_other_names() -> None:
    assert len(PACKAGES) == 7
    names = {package.name for package in PACKAGES}
    assert {re.split("[./]", name)[0] for name in LISTED} <= names


def test_no_cell_of_a_description_is_empty() -> None:
    assert [name for name, row in LISTED.items() if not all(text.strip() for text in row)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@cache\ndef f(x): ...", {"f"}),
        ("@functools.lru_cache(maxsize=3)\ndef f(x): ...", {"f"}),
        ("class A:\n    @staticmethod\n    @cache\n    def f(x): ...", {"A.f"}),
        ("parse = lru_cache(maxsize=3)(read)", {"parse"}),
        ("_known = {}\ndef f(x):\n    _known[x] = 1", {"_known"}),
        ("_known: dict[int, int] = dict()\ndef f(x):\n    _known.setdefault(x, 1)", {"_known"}),
        ("class A:\n    seen = []\n    def f(self):\n        self.seen.append(1)", {"A.seen"}),
        ("_live = WeakKeyDictionary()", {"_live"}),
        ("_number = itertools.count()", {"_number"}),
        ("if True:\n    _known = {}\n    _known.update(a=1)", {"_known"}),
        ("def f():\n    global _last\n    _last = 1", {"_last"}),
        ("_TABLE = {1: 2}\ndef f(x):\n    return _TABLE[x]", set()),
        ("def f():\n    @cache\n    def g(x): ...\n    known = {}\n    known[1] = 2", set()),
        ("class A:\n    @cached_property\n    def f(self): ...", set()),
        ("class A:\n    f: dict = field(default_factory=dict)\n    def g(self):\n"
         "        self.f[1] = 2", set()),
    ],
)  # fmt: skip
def test_caches_are_found_and_other_names_are_not(text: str, expected: set[str]) -> None:
    tree = ast.parse(text)
    assert set(caches_in(tree, set(written_in(tree)))) == expected
