"""Numbers for people to read."""

from collections.abc import Sequence


def format_bytes(n_bytes: float) -> str:
    """A size with three digits and a binary unit."""
    return _scaled(n_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def format_seconds(seconds: float) -> str:
    """A time with three digits, in microseconds up to seconds."""
    return _scaled(seconds * 1e6, 1000, ("us", "ms", "s"))


def _scaled(number: float, base: int, units: Sequence[str]) -> str:
    unit = 0
    while number >= base * 0.9995 and unit < len(units) - 1:
        number, unit = number / base, unit + 1
    if units[unit] == "B":
        return f"{number:.0f} B"
    decimals = 0 if number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{decimals}f} {units[unit]}"
