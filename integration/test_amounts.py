"""Seconds and bytes are written in one way in all packages: `shardspec.amounts`."""

import re
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
OWN_WAY = re.compile(
    r"""\.\dg\}\ ?(s|ms|us|ns|B|bytes|[KMGT]iB)\b  # digits, unit
    | (2\*\*[1234]0|>>\ ?[1234]0|\*\ ?1e[369])(:[.\d]+[fg]\}|\}\ ?[KMGT]iB)  # scaled here
    | \(\(?"B",\ "KiB" | "KiB"\), \(2 | \(1e-3,\ "ms"\)  # a table of units""",
    re.VERBOSE,
)
ELSEWHERE = {
    "shardspec/amounts.py": "the one way",
    "pipesched": "depends on nothing; times of a schedule are seconds with four digits throughout",
    "costmodel/report/table.py": "columns of one unit, which their header has",
    "autoshard/picture.py": "the unit of an axis",
    "frontends/report/picture.py": "the unit of an axis",
}


@pytest.mark.parametrize("package", sorted(path.name for path in PACKAGES.iterdir()))
def test_no_package_has_a_way_of_its_own_to_write_an_amount(package: str) -> None:
    source = PACKAGES / package / "src"
    found = [
        f"{name}:{number}: {line.strip()}"
        for path in sorted(source.rglob("*.py"))
        for name in [str(path.relative_to(source))]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if OWN_WAY.search(line) and not line.lstrip().startswith((">>>", "..."))
        if name not in ELSEWHERE and package not in ELSEWHERE
    ]
    assert found == [], "write it by shardspec.amounts"


def test_what_is_written_elsewhere_is_there() -> None:
    sources = {path.name: path / "src" for path in PACKAGES.iterdir()}
    for name in ELSEWHERE:
        path = sources[name.split("/")[0]] / name
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        assert any(OWN_WAY.search(file.read_text()) for file in files), name
