"""How times, sizes and shares are written for people."""

from stagecut.placement.offers import SubmeshOfKind

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def seconds(value: float) -> str:
    """Three digits in the unit that fits.

    Examples:
        >>> seconds(12.345), seconds(0.0412), seconds(3.5e-7), seconds(0.0), seconds(7200.0)
        ('12.3 s', '41.2 ms', '0.35 us', '0 s', '7200 s')
    """
    if value == 0:
        return "0 s"
    unit, name = next((pair for pair in _UNITS if value >= pair[0] * 0.9995), _UNITS[-1])
    scaled = value / unit
    return f"{scaled:.0f} {name}" if scaled >= 99.95 else f"{scaled:.3g} {name}"


def gib(n_bytes: float) -> str:
    """GiB, and MiB or bytes of what is small.

    Examples:
        >>> gib(17.2 * 2**30), gib(5 << 20), gib(700), gib(0)
        ('17.2 GiB', '5 MiB', '700 B', '0 B')
    """
    for shift, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if n_bytes >= 0.9995 * (1 << shift):
            scaled = n_bytes / (1 << shift)
            return f"{scaled:.0f} {name}" if scaled >= 999.5 else f"{scaled:.3g} {name}"
    return f"{n_bytes:.0f} B"


def of(n_bytes: float, limit: float) -> str:
    """A size beside its limit, with as many digits as tell them apart.

    Examples:
        >>> of(17.2 * 2**30, 2**34), of(2**34, 2**34), of(2**34 + 2**20, 2**34), of(3, 2)
        ('17.2 of 16.0 GiB', '16.0 of 16.0 GiB', '16.001 of 16.000 GiB', '3 of 2 B')
    """
    for shift, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if limit >= 1 << shift:
            for digits in range(1, shift):
                texts = [f"{each / (1 << shift):.{digits}f}" for each in (n_bytes, limit)]
                if n_bytes == limit or texts[0] != texts[1]:
                    break
            return f"{texts[0]} of {texts[1]} {name}"
    return f"{n_bytes:.0f} of {limit:.0f} B"


def share(part: float, whole: float) -> str:
    """A part in per cent, with a digit where it is small.

    Examples:
        >>> share(1, 3), share(0.02, 1), share(0, 0)
        ('33 %', '2.0 %', '0 %')
    """
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"


def more(value: float, than: float) -> str:
    """How much more, in per cent.

    Examples:
        >>> more(1.0312, 1.0), more(1.0, 1.0), more(3.0, 1.0)
        ('+3.1 %', '+0.0 %', '+200 %')
    """
    percent = 100 * (value - than) / than if than else 0.0
    return f"{percent:+.1f} %" if abs(percent) < 99.95 else f"{percent:+.0f} %"


def count(n: int, what: str) -> str:
    """A number of things.

    Examples:
        >>> count(1, "stage"), count(3, "stage"), count(1024, "microbatch")
        ('1 stage', '3 stages', '1,024 microbatches')
    """
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{n:,} {what if n == 1 else plural}"


def shape(submesh: tuple[int, ...]) -> str:
    """A submesh, hosts first, or a logical mesh.

    Examples:
        >>> shape((2, 8)), shape(SubmeshOfKind([("a100", 2)], 8))
        ('2x8', '2x8 a100')
    """
    kind = f" {submesh.kind}" if isinstance(submesh, SubmeshOfKind) else ""
    return "x".join(map(str, submesh)) + kind


def layers(first: int, last: int) -> str:
    """A run of layers.

    Examples:
        >>> layers(0, 3), layers(4, 4)
        ('0-3', '4')
    """
    return f"{first}-{last}" if last > first else f"{first}"


def table(rows: list[list[str]], right: tuple[int, ...] = ()) -> list[str]:
    """Rows as lines with aligned columns.

    Args:
        rows: The first one is the header.
        right: Columns whose entries end at the same place.

    Examples:
        >>> for line in table([["layer", "time"], ["0", "12 s"], ["1", "3 s"]], right=(1,)):
        ...     print(line)
        layer  time
        0      12 s
        1       3 s
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{text:>{width}}" if place in right else f"{text:<{width}}"
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
