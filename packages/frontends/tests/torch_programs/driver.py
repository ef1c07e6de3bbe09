"""The list of programs, and what the verdict of each has to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from frontends.torch.fuzzing import Verdict, judge

Generated = Iterator[Any]


@dataclass(frozen=True)
class Program:
    """A program, and what its verdict has to be."""

    name: str
    function: Callable[[Any], Generated]
    verdict: str
    rtol: float
    devices: int
    options: dict[str, Any]

    def allows(self, verdict: str) -> bool:
        """Whether its verdict may be this one; `any` is equal or typed."""
        allowed = ("equal", "typed") if self.verdict == "any" else (self.verdict,)
        return verdict in ("skipped", *allowed)

    def judged(self) -> Verdict:
        """Its verdict; `skipped` if something that it needs is not installed."""
        found = judge(self.function, devices=self.devices, rtol=self.rtol, **self.options)
        lacking = found.name == "BROKEN" and found.detail.startswith("Skipped")
        return Verdict("skipped", found.detail) if lacking else found


PROGRAMS: dict[str, Program] = {}


def program(
    verdict: str = "equal", *, rtol: float = 1e-5, devices: int = 2, **options: Any
) -> Callable[[Callable[[Any], Generated]], Callable[[Any], Generated]]:
    """Register a program.

    Args:
        verdict: `equal`, `typed` for what has to be refused, or `any` where both will do.
        rtol: How far numbers may be off.
        devices: How many.
        options: Of `parallelize`.
    """

    def register(function: Callable[[Any], Generated]) -> Callable[[Any], Generated]:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        assert name not in PROGRAMS, name
        PROGRAMS[name] = Program(name, function, verdict, rtol, devices, options)
        return function

    return register


class Skipped(Exception):  # noqa: N818
    """Something that the program needs is not installed."""
