"""All packages write seconds and bytes in the same way, by `shardspec.amounts`."""

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
    "shardspec/amounts.py": "defines the common way",
    "pipesched": "has no dependencies; it writes all times of a schedule as seconds, four digits",
    "costmodel/report/table.py": "columns have one unit, which is in their header",
    "autoshard/picture.py": "the unit of an axis",
    "frontends/report/picture.py": "the unit of an axis",
}


@pytest.mark.parametrize("package", sorted(path.name for path in PACKAGES.iterdir()))
def test_no_package_writes_amounts_in_another_way(package: str) -> None:
    source = PACKAGES / package / "src"
    offenders = [
        f"{name}:{number}: {line.strip()}"
        for path in sorted(source.rglob("*.py"))
        for name in [str(path.relative_to(source))]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if OWN_WAY.search(line) and not line.lstrip().startswith((">>>", "..."))
        if name not in ELSEWHERE and package not in ELSEWHERE
    ]
    assert offenders == [], "write it by shardspec.amounts"


def test_every_exception_is_needed() -> None:
    sources = {path.name: path / "src" for path in PACKAGES.iterdir()}
    for name in ELSEWHERE:
        path = sources[name.split("/")[0]] / name
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        assert any(OWN_WAY.search(file.read_text()) for file in files), name
