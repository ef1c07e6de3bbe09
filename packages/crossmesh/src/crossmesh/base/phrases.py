"""How times, sizes, devices and tables are written for people."""

from collections.abc import Iterable, Sequence

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def seconds(value: float) -> str:
    """Three digits in the unit that fits.

    Examples:
        >>> seconds(12.345), seconds(0.0412), seconds(3.5e-7), seconds(0.0), seconds(7200.0)
        ('12.3 s', '41.2 ms', '0.35 us', '0 s', '7200 s')
    """
    if value == 0:
        return "0 s"
    unit, name = next((pair for pair in _SECONDS if value >= pair[0] * 0.9995), _SECONDS[-1])
    scaled = value / unit
    return f"{scaled:.0f} {name}" if 99.95 <= scaled < 1e6 else f"{scaled:.3g} {name}"


def size(n_bytes: float) -> str:
    """Three digits in the binary unit that fits.

    Examples:
        >>> size(17.2 * 2**30), size(5 << 20), size(700), size(0), size(2**50)
        ('17.2 GiB', '5 MiB', '700 B', '0 B', '1024 TiB')
    """
    for unit, name in _BYTES:
        if n_bytes >= 0.9995 * unit:
            scaled = n_bytes / unit
            return f"{scaled:.0f} {name}" if scaled >= 999.5 else f"{scaled:.3g} {name}"
    return f"{n_bytes:.0f} B"


def share(part: float, whole: float) -> str:
    """A part in per cent, with a digit where it is small.

    Examples:
        >>> share(1, 3), share(0.02, 1), share(0, 0)
        ('33 %', '2.0 %', '0 %')
    """
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"


def count(n: int, what: str) -> str:
    """A number of things.

    Examples:
        >>> count(1, "task"), count(1024, "task")
        ('1 task', '1,024 tasks')
    """
    return f"{n:,} {what if n == 1 else what + 's'}"


def lengths(shape: Iterable[int]) -> str:
    """A shape; `()` is a scalar's.

    Examples:
        >>> lengths((2, 4)), lengths(())
        ('2x4', '()')
    """
    return "x".join(map(str, shape)) or "()"


def numbers(some: Sequence[int]) -> str:
    """Numbers in their order, those that count up joined; of many, the first ones.

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
"""Of which a text is still short."""


def table(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Rows as lines with aligned columns.

    Args:
        rows: The first one is the header.
        right: Columns whose entries end at the same place.

    Examples:
        >>> for line in table([["task", "time"], ["0", "12 s"], ["1", "3 s"]], right=(1,)):
        ...     print(line)
        task  time
        0     12 s
        1      3 s
    """
    at_right = set(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if place in at_right else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
