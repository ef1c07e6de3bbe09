"""Phrases for people: seconds, bytes, what a strategy does with each mesh axis, aligned columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from string import ascii_lowercase

from shardspec import Mesh

from autoshard.graph.rule import Dims, Rule
from autoshard.space.strategy import Strategy

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def seconds_text(seconds: float) -> str:
    """Seconds to three digits.

    Examples:
        >>> seconds_text(0.01234), seconds_text(0.0), seconds_text(-2.5e-6), seconds_text(math.inf)
        ('12.3 ms', '0', '-2.5 us', 'never')
    """
    if math.isinf(seconds):
        return "never"
    for unit, name in _SECONDS:
        if abs(seconds) >= 0.9995 * unit:
            return f"{_digits(seconds / unit)} {name}"
    return "0" if seconds == 0.0 else f"{seconds:.3g} s"


def bytes_text(n_bytes: float) -> str:
    """Bytes to three digits.

    Examples:
        >>> bytes_text(100), bytes_text(1.5 * 2**20), bytes_text(1023.9 * 2**20)
        ('100 B', '1.5 MiB', '1 GiB')
    """
    for unit, name in _BYTES:
        if abs(n_bytes) >= 0.9995 * unit:
            return f"{_digits(n_bytes / unit)} {name}"
    return f"{n_bytes:.0f} B"


def _digits(number: float) -> str:
    """Three digits, without an exponent up to 9,999."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:.0f}"


def formula(rule: Rule) -> str:
    """A rule in einsum's notation: a letter for each factor, several of one dim in brackets.

    Examples:
        >>> from autoshard import einsum, reshape
        >>> formula(einsum("ik,kj->ij", (2, 3), (3, 4))), formula(reshape((2, 12), (24,)))
        ('ab,bc->ac', 'ab->(ab)')
    """

    def word(dims: Dims) -> str:
        return "".join(_dim(dim) for dim in dims) or "()"

    return ",".join(map(word, rule.operands)) + "->" + ",".join(map(word, rule.results))


def _dim(factors: tuple[int, ...]) -> str:
    letters = "".join(map(letter, factors))
    return letters if len(factors) == 1 else f"({letters})" if factors else "1"


def letter(factor: int) -> str:
    """The letter that `formula` has for a factor: a to z, then a1, b1, ..."""
    turn, place = divmod(factor, len(ascii_lowercase))
    return ascii_lowercase[place] + (str(turn) if turn else "")


def strategy_text(strategy: Strategy, mesh: Mesh) -> str:
    """What the axes of a mesh do: split a factor, or carry partial sums; the others repeat work.

    Examples:
        >>> from autoshard import einsum, enumerate_strategies
        >>> mesh = Mesh((2, 2), ("x", "y"))
        >>> for strategy in enumerate_strategies(einsum("ik,k->i", (2, 4), (4,)), mesh.shape)[:6:2]:
        ...     print(strategy_text(strategy, mesh))
        repeated
        b/y
        partial/y
    """
    parts = [
        f"{letter(target) if isinstance(target, int) else 'partial'}/{name}"
        for name, target in zip(mesh.axis_names, strategy.mapping, strict=True)
        if target is not None
    ]
    return " ".join(parts) or "repeated"


def specs_text(strategy: Strategy) -> str:
    """The specs of a strategy's operands and results."""
    operands, results = (
        ", ".join(map(str, specs)) for specs in (strategy.operand_specs, strategy.result_specs)
    )
    return f"{operands} -> {results}" if operands else f"-> {results}"


def columns(rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines with their columns aligned: to the left, but for those in `right`.

    Examples:
        >>> columns([("a", "1"), ("bb", "10")], right=(1,))
        ['a    1', 'bb  10']
    """
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if place in right else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
