"""Devices, and the roofline time of an operator on a device.

An operator of `f` FLOP that moves `n` bytes takes

    launch + max(f / (peak e(f)), n / memory bandwidth)

and no time if there is nothing to do. The efficiency `e(f) <= 1` is the part of the dtype's peak
that an operator of this size reaches: a curve through measured points, or 1. For a matrix product
whose sizes are known, a device that states its `products` takes the time of `ProductUnits` instead,
and of the memory bandwidth every operator gets the part that streams reach.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias, overload

import numpy as np

from costmodel.base.checks import Quantity, assign, checked, count, number, plain, positive
from costmodel.base.dtype import family_of
from costmodel.base.json import LEFT_OUT
from costmodel.errors import QuantityError, UnknownDtypeError, shown
from costmodel.hardware.products import Product, ProductUnits

CONVERTED_BITS = 8
"""Floating-point dtypes of this many bits or fewer are storage formats: on devices whose units do
not take them, programs convert them, as XLA and PyTorch do with float8 before Ada and Hopper."""

Curve: TypeAlias = tuple[tuple[float, float], ...]
"""Points (FLOP of one operator, part of the peak that it reaches), in order of rising FLOP."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one share of a processor.

    Raises:
        QuantityError: A rate or the memory is not positive, the launch time is negative, one of
            them is not a finite number, or a dtype has two peaks. Or a curve has no points, or two
            at one size, belongs to a dtype without a peak, leaves 0 < efficiency <= 1, or would let
            a larger operator finish earlier.

    Examples:
        >>> curve = ("float32", ((1e6, 0.1), (1e9, 0.5)))  # 0.5 from 1 GFLOP on
        >>> half = Device("half", (("float32", 1e12),), 2**30, 1e11, 1e-6, efficiency=(curve,))
        >>> operator_time(1e12, 0, half, "float32")
        2.000001
    """

    name: str
    flops_per_s: tuple[tuple[str, float], ...]
    """Peak arithmetic rates by dtype (numpy's names, `bfloat16`, `float8_e5m2`): (name, FLOP/s),
    for integers operations per second. For dtypes that are not listed see `units`."""
    memory_bytes: int
    """Bytes that a program may use."""
    memory_bandwidth_bytes_per_s: float
    """Bytes per second between memory and arithmetic units, reads and writes together."""
    launch_s: float
    """Seconds that every operator costs, however small."""
    efficiency: tuple[tuple[str, Curve], ...] = ()
    """Part of the peak that operators reach, by their size: (dtype, curve); 1 for other dtypes."""
    memory_part: float = field(default=1.0, metadata={LEFT_OUT: True})
    """Part of the memory bandwidth that long streams reach, at most 1."""
    products: ProductUnits | None = field(default=None, metadata={LEFT_OUT: True})
    """What multiplies matrices, if the time of a product follows from its sizes; else None."""

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
            memory_part=positive(f"memory_part {of}", self.memory_part, most=1),
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

    @property
    def memory_rate_bytes_per_s(self) -> float:
        """Bytes per second that long streams reach, reads and writes together."""
        return self.memory_bandwidth_bytes_per_s * self.memory_part

    def peak(self, dtype: str) -> float:
        """Peak arithmetic rate, in operations per second, for a dtype by its numpy name.

        Raises:
            UnknownDtypeError: As `units`.
        """
        return dict(self.flops_per_s)[self.units(dtype)]

    def units(self, dtype: str) -> str:
        """The dtype in `flops_per_s` at whose rate the device computes with `dtype`.

        This is `dtype` itself if it is listed. Otherwise a floating-point dtype of 8 bits or fewer
        is converted to the narrowest listed floating-point dtype of as many bits or more, and an
        integer to the narrowest listed integer of as many bits or more. Integers for which none is
        listed, and booleans, run on the general units at float32's rate (NVIDIA's A100 whitepaper,
        2020: 19.5 T/s of both int32 and float32; on a V100 15.7 of both), or at the slowest listed
        rate if float32 is not listed.

        Raises:
            UnknownDtypeError: `dtype` is a floating-point dtype of more than 8 bits that is not
                listed, or of fewer bits and nothing is listed to which it could be converted; or it
                is not a dtype.

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
            others = [(family_of(name), index) for index, name in enumerate(known)]
            wide = [(n, index) for (of, n), index in others if of == family and n >= bits]
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
        """Arithmetic rate, in FLOP/s, that one operator of `flops` reaches: a part of the peak.

        Between two points of the dtype's curve, the efficiency is a power of the size: a straight
        line in the logarithms of both. So the time `flops / rate` rises between two points if it
        rises from one to the other, which linear interpolation of the efficiency would not ensure.
        Outside the points, the efficiency is that of the nearest point.

        Raises:
            UnknownDtypeError: As `peak`.
        """
        peak, curve = self.peak(dtype), self._curve(dtype)
        if not curve:
            return peak
        sizes, parts = np.log(curve).T
        size = np.log(np.maximum(flops, curve[0][0]))  # 0 FLOP has no logarithm
        # Rounding may carry the interpolation past the ends of its segment, but no part exceeds 1.
        return plain(peak * np.exp(np.minimum(np.interp(size, sizes, parts), 0.0)))

    def highest_rate(self, dtype: str) -> float:
        """The highest arithmetic rate, in FLOP/s, that an operator of any size reaches.

        Raises:
            UnknownDtypeError: As `peak`.
        """
        return self.peak(dtype) * max((part for _, part in self._curve(dtype)), default=1.0)

    def _curve(self, dtype: str) -> Curve:
        """The efficiency curve for a dtype; empty if there is none."""
        units = self.units(dtype)
        return next((curve for name, curve in self.efficiency if name == units), ())


@overload
def operator_time(
    flops: float,
    n_bytes: float,
    device: Device,
    dtype: str,
    launches: float = 1.0,
    product: Product | None = None,
) -> float: ...
@overload
def operator_time(
    flops: Quantity,
    n_bytes: Quantity,
    device: Device,
    dtype: str,
    launches: float = 1.0,
    product: Product | None = None,
) -> Quantity: ...
def operator_time(
    flops: Quantity,
    n_bytes: Quantity,
    device: Device,
    dtype: str,
    launches: float = 1.0,
    product: Product | None = None,
) -> Quantity:
    """Time of one operator on one device: the slower of arithmetic and memory, plus the launch.

    Args:
        flops: Arithmetic operations of this device's share (floating-point or integer); a
            multiply-add counts as two.
        n_bytes: Bytes of operands and results that this device reads and writes.
        device: The device that runs the operator.
        dtype: Dtype of the arithmetic, by its numpy name.
        launches: Kernels that are launched for the operator; 0.0 if it is a part of another's.
        product: The sizes of this device's share, if the operator is a product of matrices; used by
            devices that state their `products`.

    Returns:
        Seconds: a float, or an array if `flops` or `n_bytes` is one. An operator that neither
        computes nor moves anything is not launched, and takes 0.0.

    Raises:
        QuantityError: `flops`, `n_bytes` or `launches` is negative or not finite.
        UnknownDtypeError: The device states no peak for this floating-point dtype.

    Reference:
        Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for
        Multicore Architectures", CACM 52(4), 2009. The launch time is ours. Alpa, section 4.2, sets
        the compute cost to zero instead; with it, replicated work would look free.
    """
    flops, n_bytes = checked("flops", flops), checked("n_bytes", n_bytes)
    arithmetic_s = flops / device.rate(dtype, flops)
    memory_s = n_bytes / device.memory_rate_bytes_per_s
    if product is not None and device.products is not None:
        rate = device.memory_rate_bytes_per_s
        arithmetic_s = device.products.seconds(product, device.peak(dtype), rate)
    launch_s = device.launch_s * number("launches", launches) * (flops + n_bytes > 0)
    seconds = np.maximum(arithmetic_s, memory_s) + launch_s
    return plain(seconds)


def operator_bound(
    flops: float, n_bytes: float, device: Device, dtype: str, product: Product | None = None
) -> float:
    """Lower bound of the time of an operator's work, however it is split over devices.

    The times of all shards add up to it or more, without their launches and the `fill_s` of their
    products. Those come on top, on each device that has a shard.

    Args:
        flops: Arithmetic operations of the whole operator.
        n_bytes: Bytes of all operands and results.
        device: What each device is.
        dtype: Dtype of the arithmetic, by its numpy name.
        product: The sizes of the whole, if the operator is a product of matrices.

    Returns:
        Seconds of one device that does all of it.

    Raises:
        QuantityError: `flops` or `n_bytes` is negative or not finite.
        UnknownDtypeError: The device states no peak for this floating-point dtype.

    Reference:
        As `operator_time`: the roofline of Williams et al., without what depends on the split.

    Examples:
        >>> half = Device("half", (("float32", 1e12),), 2**30, 1e11, 1e-6)
        >>> operator_bound(1e12, 0, half, "float32"), operator_time(1e12, 0, half, "float32")
        (1.0, 1.000001)
    """
    flops, n_bytes = number("flops", flops), number("n_bytes", n_bytes)
    rate = device.memory_rate_bytes_per_s
    arithmetic_s = flops / device.highest_rate(dtype)
    if product is not None and device.products is not None:
        arithmetic_s = float(device.products.least_seconds(product, device.peak(dtype), rate))
    return max(arithmetic_s, n_bytes / rate)


def checked_curve(dtype: str, curve: Curve) -> Curve:
    """`curve` as a valid efficiency curve of floats.

    Raises:
        QuantityError: The curve has no points, or two at one size, leaves 0 < efficiency <= 1, or
            would let a larger operator finish earlier.
    """
    of = f"an efficiency curve of {dtype}"
    points = tuple(
        (
            positive(f"FLOP of {of}", flops),
            positive(f"part of the peak, where 80 % is 0.8, of {of}", part, most=1),
        )
        for flops, part in _pairs(of, "part of the peak", curve, "FLOP")
    )
    if not (points and all(small < large for (small, _), (large, _) in pairwise(points))):
        raise QuantityError(
            "an efficiency curve has points (FLOP, part of the peak) by rising FLOP; "
            f"got {shown(curve)} for {dtype!r}"
        )
    for (small, part), (large, larger_part) in pairwise(points):
        if small / part > large / larger_part:
            raise QuantityError(
                "along an efficiency curve FLOP / part, which is time, must not fall; got "
                f"({small:g}, {part:g}) before ({large:g}, {larger_part:g}) for {dtype!r}; "
                "what small operators lose belongs into launch_s"
            )
    return points


def _pairs(name: str, second: str, values: Any, first: str = "dtype") -> list[tuple[Any, Any]]:
    """`values` as a list of pairs; an error if they are not pairs."""
    try:
        return [(one, other) for one, other in values]
    except (TypeError, ValueError):
        raise QuantityError(f"{name} has pairs ({first}, {second}); got {shown(values)}") from None
