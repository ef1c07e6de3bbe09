"""What this package needs for each of its extras, and what of it is installed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

DISTRIBUTION = "meshwright-frontends"
SIBLINGS = ("shardspec", "costmodel", "autoshard", "stagecut", "crossmesh", "pipesched")
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)>=(?P<least>[\d.]+) *; *extra *== *['\"](?P<extra>\w+)['\"]"
)


@dataclass(frozen=True, slots=True)
class Needed:
    """A distribution that an extra needs."""

    name: str
    least: str
    """The earliest version that will do."""

    @property
    def lack(self) -> str:
        """Why what is installed will not do; empty if it will."""
        present = installed(self.name)
        if present is None:
            return f"{self.name} is not installed"
        if _numbers(present) < _numbers(self.least):
            return f"{self.name} {present} is installed, and {self.least} or later is needed"
        return ""


def installed(name: str) -> str | None:
    """The version of a distribution, which is not imported; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def needed(extra: str) -> tuple[Needed, ...]:
    """What an extra of this package needs, as its metadata says."""
    found = map(_REQUIREMENT.match, requires(DISTRIBUTION) or ())
    return tuple(Needed(m["name"], m["least"]) for m in found if m and m["extra"] == extra)


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with: `2.13.0+cpu` is (2, 13, 0)."""
    release = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(number) for number in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:  # 2.0 is as late as 2
        numbers.pop()
    return tuple(numbers)
