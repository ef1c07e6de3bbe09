"""Devices, and the roofline time of an operator on one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from costmodel.errors import QuantityError, UnknownDtypeError


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one share of a processor.

    Raises:
        QuantityError: A rate or the memory is not positive, the launch time is negative, or a dtype
            has two peaks.
    """

    name: str
    flops_per_s: tuple[tuple[str, float], ...]
    """Peak arithmetic rate of each dtype (numpy names, and `bfloat16`): (name, FLOP/s)."""
    memory_bytes: int
    """Bytes that a program may use."""
    memory_bandwidth_bytes_per_s: float
    """Bytes a second between the memory and the arithmetic units, reads and writes together."""
    launch_s: float
    """Seconds that every operator costs, however small."""

    def __post_init__(self) -> None:
        rates = (*(rate for _, rate in self.flops_per_s), self.memory_bandwidth_bytes_per_s)
        if not (
            all(0 < rate < math.inf for rate in rates)
            and self.memory_bytes > 0
            and 0 <= self.launch_s < math.inf
        ):
            raise QuantityError(
                "a device needs finite rates > 0, memory_bytes > 0 and a finite launch_s >= 0; "
                f"got {self}"
            )
        names = [name for name, _ in self.flops_per_s]
        if len(set(names)) < len(names):
            raise QuantityError(f"a device has one peak for each dtype; got {self.flops_per_s}")

    def peak(self, dtype: str) -> float:
        """Peak arithmetic rate, FLOP/s, for a dtype by its numpy name.

        Integers and booleans that `flops_per_s` does not list have no limit here: an operator on
        them does no floating-point work and is priced by the bytes it moves.

        Raises:
            UnknownDtypeError: `flops_per_s` does not list this floating-point dtype.
        """
        for name, rate in self.flops_per_s:
            if name == dtype:
                return rate
        if dtype.startswith(("int", "uint", "bool")):
            return math.inf
        known = ", ".join(name for name, _ in self.flops_per_s)
        raise UnknownDtypeError(
            f"device {self.name!r} states no peak for dtype {dtype!r}, only for {known}; "
            f"add ({dtype!r}, FLOP/s) to its flops_per_s",
            dtype,
        )


def operator_time(flops: float, n_bytes: float, device: Device, dtype: str) -> float:
    """Time of one operator on one device: the slower of arithmetic and memory, plus the launch.

    Args:
        flops: Floating-point operations of this device's share; a multiply-add counts as two.
        n_bytes: Bytes of operands and results that this device reads and writes.
        device: Where it runs.
        dtype: Of the arithmetic, by its numpy name.

    Returns:
        Seconds.

    Raises:
        QuantityError: `flops` or `n_bytes` is negative.
        UnknownDtypeError: The device states no peak for this floating-point dtype.

    Reference:
        Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for
        Multicore Architectures", CACM 52(4), 2009. The launch time is ours. Alpa, section 4.2, sets
        the compute cost to zero instead; with it, replicated work would look free.
    """
    if flops < 0 or n_bytes < 0:
        raise QuantityError(
            f"an operator needs flops >= 0 and n_bytes >= 0; got flops={flops}, n_bytes={n_bytes}"
        )
    arithmetic_s = flops / device.peak(dtype)
    memory_s = n_bytes / device.memory_bandwidth_bytes_per_s
    return max(arithmetic_s, memory_s) + device.launch_s
