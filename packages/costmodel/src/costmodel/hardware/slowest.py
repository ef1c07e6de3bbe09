"""The device as which unlike devices count that run the same program together.

Every operator of a sharded program is split evenly, and its devices wait for the slowest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from costmodel.errors import UnknownDtypeError
from costmodel.hardware.device import Curve, Device
from costmodel.hardware.products import ProductUnits

_ROUNDING = 1e-12
"""Relative margin by which the time along a curve rises, so that rounding does not let it fall."""


def slowest_device(devices: Iterable[Device]) -> Device:
    """A device that is no faster than any of some, and has as much memory as the smallest.

    No operator takes less time on it than on one of the devices, except that products of matrices
    are cut into the tiles of the device whose units are slowest. A dtype with which one of the
    devices cannot compute is left out.

    Args:
        devices: One device or more.

    Examples:
        >>> a = Device("a", (("float32", 1e12),), 2**30, 1e11, 1e-6)
        >>> b = Device("b", (("float32", 2e12),), 2**29, 2e11, 2e-6)
        >>> both = slowest_device((a, b))
        >>> both.name, both.peak("float32"), both.memory_bytes, both.launch_s
        ('slowest of a, b', 1000000000000.0, 536870912, 2e-06)
    """
    kinds: tuple[Device, ...] = tuple(devices)
    if len(kinds) > 1:
        kinds = tuple(dict.fromkeys(kinds))
    first, *others = kinds
    if not others:
        return first
    peaks: dict[str, float] = {}
    for dtype in dict.fromkeys(name for kind in kinds for name, _ in kind.flops_per_s):
        try:
            peaks[dtype] = min(kind.peak(dtype) for kind in kinds)
        except UnknownDtypeError:
            continue
    curves = {dtype: _curve(kinds, dtype, peak) for dtype, peak in peaks.items()}
    return replace(
        first,
        name=f"slowest of {', '.join(kind.name for kind in kinds)}",
        flops_per_s=tuple(peaks.items()),
        memory_bytes=min(kind.memory_bytes for kind in kinds),
        memory_bandwidth_bytes_per_s=min(kind.memory_rate_bytes_per_s for kind in kinds),
        launch_s=max(kind.launch_s for kind in kinds),
        efficiency=tuple((dtype, curve) for dtype, curve in curves.items() if curve),
        memory_part=1.0,
        products=_products(kinds),
    )


def _curve(kinds: Sequence[Device], dtype: str, peak: float) -> Curve:
    """The parts of the least peak that every device reaches; empty if all always reach it."""
    own = [dict(kind.efficiency).get(kind.units(dtype), ()) for kind in kinds]
    curve: list[tuple[float, float]] = []
    time_s = 0.0
    for flops in sorted({size for points in own for size, _ in points}):
        rate = min(float(kind.rate(dtype, flops)) for kind in kinds)
        time_s = max(time_s * (1 + _ROUNDING), flops / rate)
        curve.append((flops, min(1.0, flops / time_s / peak)))
    return tuple(curve)


def _products(kinds: Sequence[Device]) -> ProductUnits | None:
    """The units of the slowest device that states its products, with the least of each rate."""
    known = [(kind, kind.products) for kind in kinds if kind.products is not None]
    if not known:
        return None
    _, slowest = min(known, key=lambda each: each[1].part * max(r for _, r in each[0].flops_per_s))
    return replace(
        slowest,
        part=min(products.part for _, products in known),
        fill_s=max(products.fill_s for _, products in known),
    )
