"""Formats times, bytes, shares and counts for people, and parses bytes: for all packages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

from shardspec.errors import AmountError

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = tuple((2.0 ** (10 * power), f"{'KMGTPEZYRQ'[power - 1]}iB") for power in range(10, 0, -1))


def seconds_text(seconds: float) -> str:
    """A time in s, ms, us or ns, to three significant digits; `math.inf` is "never".

    Examples:
        >>> seconds_text(0.01234), seconds_text(0.0), seconds_text(-2.5e-6), seconds_text(math.inf)
        ('12.3 ms', '0 s', '-2.5 us', 'never')
        >>> seconds_text(3.4e-8), seconds_text(9.999e-4), seconds_text(7200)
        ('34 ns', '1 ms', '7,200 s')
    """
    return "never" if seconds == math.inf else _scaled(seconds, _SECONDS, "s")


def bytes_text(n_bytes: float) -> str:
    """A number of bytes in the largest binary unit that fits, to three significant digits.

    Examples:
        >>> bytes_text(700), bytes_text(1.5 * 2**20), bytes_text(1023.9 * 2**20), bytes_text(0)
        ('700 B', '1.5 MiB', '1 GiB', '0 B')
        >>> bytes_text(1000 << 20)
        '1,000 MiB'
    """
    if abs(n_bytes) < 0.9995 * 1024:
        return f"{n_bytes:,.0f} B"
    return _scaled(n_bytes, _BYTES, "B")


_SIZES = {"B": 1} | {
    f"{prefix}{infix}B": base**power
    for base, infix in ((1024, "i"), (1000, ""))
    for power, prefix in enumerate("KMGTPE", 1)
}
_SIZE = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def bytes_of(text: str) -> int:
    """The number of bytes that `text` says, in a binary or decimal unit; without a unit, bytes.

    Raises:
        AmountError: the text is not a number with or without a known unit.

    Examples:
        >>> bytes_of("512MiB"), bytes_of("1.5 gb"), bytes_of("4096")
        (536870912, 1500000000, 4096)
    """
    match = _SIZE.fullmatch(text.strip())
    units = {name.upper(): n_bytes for name, n_bytes in _SIZES.items()}
    unit = units.get(match[2].upper() or "B") if match else None
    if match is None or unit is None:
        raise AmountError(
            f"an amount of bytes is a number, with or without one of {', '.join(_SIZES)}, such as "
            f"1.5GiB; got {text!r:.80}"
        )
    return int(Decimal(match[1]) * unit)


def _scaled(number: float, units: Sequence[tuple[float, str]], base: str) -> str:
    for unit, name in units:
        if abs(number) >= 0.9995 * unit:
            return f"{_digits(number / unit)} {name}"
    return f"{number:.3g} {base}"


def _digits(number: float) -> str:
    """Three significant digits; from 1000 on, all digits of the whole number."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}"


def share_text(part: float, whole: float) -> str:
    """A part of a whole in per cent; below 10 % with one decimal. 0 % of a whole of 0.

    Examples:
        >>> share_text(1, 3), share_text(0.02, 1), share_text(0, 0)
        ('33 %', '2.0 %', '0 %')
    """
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"


def count_text(count: int, what: str) -> str:
    """A count and what is counted, in the plural unless the count is 1.

    Examples:
        >>> count_text(1, "device"), count_text(4096, "device"), count_text(2, "microbatch")
        ('1 device', '4,096 devices', '2 microbatches')
    """
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"


def columns(rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """One line for each row, columns aligned: left, except those in `right` (counted from 0).

    Examples:
        >>> columns([("a", "1"), ("bb", "10")], right=(1,))
        ['a    1', 'bb  10']
    """
    table, at_right = list(rows), set(right)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if column in at_right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
