"""Shapes and device numbers as text for people."""

from collections.abc import Iterable, Sequence


def lengths(shape: Iterable[int]) -> str:
    """A shape as text; `()` for a scalar.

    Examples:
        >>> lengths((2, 4)), lengths(())
        ('2x4', '()')
    """
    return "x".join(map(str, shape)) or "()"


def numbers(some: Sequence[int]) -> str:
    """Numbers in their order, with consecutive ones joined; of a long list only the beginning.

    Examples:
        >>> numbers((8, 9, 10, 3)), numbers((4,)), numbers(range(0, 99, 3))
        ('8-10, 3', '4', '0, 3, 6, 9, 12 and 28 more')
    """
    runs: list[list[int]] = []
    for number in some:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number, number])
    shown = runs if len(runs) <= _RUNS else runs[: _RUNS - 1]
    left = len(some) - sum(last - first + 1 for first, last in shown)
    texts = [f"{first}-{last}" if last > first else f"{first}" for first, last in shown]
    return ", ".join(texts) + (f" and {left} more" if left else "")


_RUNS = 6
"""The most runs of consecutive numbers that are written out."""
