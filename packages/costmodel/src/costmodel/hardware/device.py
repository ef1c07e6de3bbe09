"""Devices, and the roofline time of an operator on one of them.

An operator of `f` FLOP that moves `n` bytes takes

    launch + max(f / (peak e(f)), n / memory bandwidth)

and nothing if there is nothing to do. The efficiency `e(f) <= 1` is the part of the dtype's peak
that an operator of this size reaches: a curve through measured points, or 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias, overload

import numpy as np

from costmodel.base.checks import Quantity, assign, checked, count, number, plain, positive
from costmodel.base.dtype import family_of
from costmodel.errors import QuantityError, UnknownDtypeError, shown

CONVERTED_BITS = 8
"""Floating-point numbers of so many bits or fewer are a way to store others: where no units take
them, programs convert them, as XLA and PyTorch do with float8 before Ada and Hopper."""

Curve: TypeAlias = tuple[tuple[float, float], ...]
"""Points (FLOP of one operator, part of the peak that it reaches), by rising FLOP."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one share of a processor.

    Raises:
        QuantityError: A rate or the memory is not positive, the launch time is negative, one is no
            finite number, or a dtype has two peaks. A curve has no points or two at one size, is of
            a dtype without a peak, leaves 0 < efficiency <= 1, or would let a larger operator
            finish earlier.

    Examples:
        >>> curve = ("float32", ((1e6, 0.1), (1e9, 0.5)))  # 0.5 from 1 GFLOP on
        >>> half = Device("half", (("float32", 1e12),), 2**30, 1e11, 1e-6, efficiency=(curve,))
        >>> operator_time(1e12, 0, half, "float32")
        2.000001
    """

    name: str
    flops_per_s: tuple[tuple[str, float], ...]
    """Peak arithmetic rate of dtypes (numpy's names, `bfloat16`, `float8_e5m2`): (name, FLOP/s).
    Of integers, operations a second. See `units` for what is not listed."""
    memory_bytes: int
    """Bytes that a program may use."""
    memory_bandwidth_bytes_per_s: float
    """Bytes a second between the memory and the arithmetic units, reads and writes together."""
    launch_s: float
    """Seconds that every operator costs, however small."""
    efficiency: tuple[tuple[str, Curve], ...] = ()
    """Part of the peak that operators reach, by their size: (dtype, curve); 1 for the others."""

    def __post_init__(self) -> None:
        of = f"of device {self.name!r}"
        assign(
            self,
            flops_per_s=tuple(
                (dtype, positive(f"flops_per_s {of} for {dtype}", rate))
                for dtype, rate in _pairs("flops_per_s", "FLOP/s", self.flops_per_s)
            ),
            memory_bytes=count(f"memory_bytes {of}", self.memory_bytes, least=1),
            memory_bandwidth_bytes_per_s=positive(
                f"memory_bandwidth_bytes_per_s {of}", self.memory_bandwidth_bytes_per_s
            ),
            launch_s=number(f"launch_s {of}", self.launch_s),
            efficiency=tuple(
                (dtype, checked_curve(dtype, curve))
                for dtype, curve in _pairs("efficiency", "curve", self.efficiency)
            ),
        )
        names = [name for name, _ in self.flops_per_s]
        if len(set(names)) < len(names):
            raise QuantityError(f"a device has one peak for each dtype; got {self.flops_per_s}")
        curves = [name for name, _ in self.efficiency]
        if len(set(curves)) < len(curves) or not set(curves) <= set(names):
            raise QuantityError(
                "a device has at most one efficiency curve for each dtype that it states a peak "
                f"for ({', '.join(names)}); got curves for {', '.join(curves)}"
            )

    def peak(self, dtype: str) -> float:
        """Peak arithmetic rate, operations a second, for a dtype by its numpy name.

        Raises:
            UnknownDtypeError: As `units`.
        """
        return dict(self.flops_per_s)[self.units(dtype)]

    def units(self, dtype: str) -> str:
        """The dtype of `flops_per_s` at whose rate the device computes with a dtype.

        That is the dtype itself, if it is there. What is narrower than all that the device has
        units for is converted first: a floating-point dtype of 8 bits or fewer to the narrowest
        one of more bits that is there, an integer to the narrowest integer of as many bits or more.
        Integers without such, and booleans, run on the general units, at float32's rate (NVIDIA's
        A100 whitepaper, 2020: 19.5 T/s of both int32 and float32; on a V100 15.7 of both), or at
        the slowest rate that is there where float32 has none.

        Raises:
            UnknownDtypeError: `flops_per_s` does not list this floating-point dtype of 16 bits or
                more, or nothing that a narrower one could be converted to; or it is no dtype.

        Examples:
            >>> from costmodel import Cluster
            >>> v100, h100 = (Cluster.preset(name).device for name in ("rhino-m8", "h100-sxm"))
            >>> [v100.units(name) for name in ("float8_e4m3fn", "int8", "bool")]
            ['float16', 'float32', 'float32']
            >>> [h100.units(name) for name in ("float8_e4m3fn", "int4", "int16")]
            ['float8_e4m3fn', 'int8', 'int32']
        """
        known = [name for name, _ in self.flops_per_s]
        if dtype in known:
            return known[known.index(dtype)]
        family, bits = family_of(dtype)
        if family == "integer" or (family == "float" and bits <= CONVERTED_BITS):
            others = [(family_of(name), place) for place, name in enumerate(known)]
            wide = [(n, place) for (of, n), place in others if of == family and n >= bits]
            if wide:
                return known[min(wide)[1]]
        if family in ("integer", "bool") and known:
            slowest = min(self.flops_per_s, key=lambda pair: pair[1])[0]
            return "float32" if "float32" in known else slowest
        raise UnknownDtypeError(
            f"device {self.name!r} states no peak for dtype {dtype!r}, only for "
            f"{', '.join(known)}; add ({dtype!r}, FLOP/s) to its flops_per_s",
            str(dtype),
        )

    def rate(self, dtype: str, flops: Quantity) -> Quantity:
        """Arithmetic rate, FLOP/s, that one operator of `flops` reaches: its part of the peak.

        Between two points of the dtype's curve the efficiency is a power of the size: a straight
        line in the logarithms of both. So the time `flops / rate` grows between any two points
        whose own times do, which a line in the efficiency itself would not ensure. Outside the
        points the nearest one holds.

        Raises:
            UnknownDtypeError: As `peak`.
        """
        peak = self.peak(dtype)
        units = self.units(dtype)
        curve = next((curve for name, curve in self.efficiency if name == units), ())
        if not curve:
            return peak
        sizes, parts = np.log(curve).T
        size = np.log(np.maximum(flops, curve[0][0]))  # 0 FLOP has no logarithm
        # Rounding may carry the interpolation past the ends of its segment: no part exceeds 1.
        return plain(peak * np.exp(np.minimum(np.interp(size, sizes, parts), 0.0)))


@overload
def operator_time(flops: float, n_bytes: float, device: Device, dtype: str) -> float: ...
@overload
def operator_time(flops: Quantity, n_bytes: Quantity, device: Device, dtype: str) -> Quantity: ...
def operator_time(flops: Quantity, n_bytes: Quantity, device: Device, dtype: str) -> Quantity:
    """Time of one operator on one device: the slower of arithmetic and memory, plus the launch.

    Args:
        flops: Operations of this device's share, also of integers; a multiply-add counts as two.
        n_bytes: Bytes of operands and results that this device reads and writes.
        device: Where it runs.
        dtype: Of the arithmetic, by its numpy name.

    Returns:
        Seconds: a float, or an array if `flops` or `n_bytes` is one. An operator that computes and
        moves nothing is not launched, and free.

    Raises:
        QuantityError: `flops` or `n_bytes` is negative or not finite.
        UnknownDtypeError: The device states no peak for this floating-point dtype.

    Reference:
        Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for
        Multicore Architectures", CACM 52(4), 2009. The launch time is ours. Alpa, section 4.2, sets
        the compute cost to zero instead; with it, replicated work would look free.
    """
    flops, n_bytes = checked("flops", flops), checked("n_bytes", n_bytes)
    arithmetic_s = flops / device.rate(dtype, flops)
    memory_s = n_bytes / device.memory_bandwidth_bytes_per_s
    launch_s = device.launch_s * (flops + n_bytes > 0)
    seconds = np.maximum(arithmetic_s, memory_s) + launch_s
    return plain(seconds)


def checked_curve(dtype: str, curve: Curve) -> Curve:
    """An efficiency curve of floats.

    Raises:
        QuantityError: It has no points or two at one size, leaves 0 < efficiency <= 1, or would let
            a larger operator finish earlier.
    """
    of = f"an efficiency curve of {dtype}"
    found = tuple(
        (
            positive(f"FLOP of {of}", flops),
            positive(f"part of the peak, where 80 % is 0.8, of {of}", part, most=1),
        )
        for flops, part in _pairs(of, "part of the peak", curve, "FLOP")
    )
    if not (found and all(small < large for (small, _), (large, _) in pairwise(found))):
        raise QuantityError(
            "an efficiency curve has points (FLOP, part of the peak) by rising FLOP; "
            f"got {shown(curve)} for {dtype!r}"
        )
    for (small, part), (large, larger_part) in pairwise(found):
        if small / part > large / larger_part:
            raise QuantityError(
                "along an efficiency curve FLOP / part, which is time, must not fall; got "
                f"({small:g}, {part:g}) before ({large:g}, {larger_part:g}) for {dtype!r}; "
                "what small operators lose belongs into launch_s"
            )
    return found


def _pairs(name: str, second: str, values: Any, first: str = "dtype") -> list[tuple[Any, Any]]:
    """The values, checked to be pairs."""
    try:
        return [(one, other) for one, other in values]
    except (TypeError, ValueError):
        raise QuantityError(f"{name} has pairs ({first}, {second}); got {shown(values)}") from None
