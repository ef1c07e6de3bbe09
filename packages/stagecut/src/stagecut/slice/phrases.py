"""Formats sizes, differences, submeshes and layers for people to read."""

from stagecut.placement.offers import SubmeshOfKind


def of(n_bytes: float, limit: float) -> str:
    """A size and its limit, with enough digits to tell the two apart.

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


def more(value: float, than: float) -> str:
    """How much `value` is above `than`, in per cent.

    Examples:
        >>> more(1.0312, 1.0), more(1.0, 1.0), more(3.0, 1.0)
        ('+3.1 %', '+0.0 %', '+200 %')
    """
    percent = 100 * (value - than) / than if than else 0.0
    return f"{percent:+.1f} %" if abs(percent) < 99.95 else f"{percent:+.0f} %"


def shape(submesh: tuple[int, ...]) -> str:
    """A submesh as hosts x devices, or a logical mesh.

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
