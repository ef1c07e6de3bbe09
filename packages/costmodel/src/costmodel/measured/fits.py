"""Results of `costmodel.measured.fit`, which a profile keeps beside the measured points."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from costmodel.base.checks import assign, count, number, positive
from costmodel.errors import QuantityError
from costmodel.hardware.device import Curve, checked_curve
from costmodel.time.algorithm import check_kind
from costmodel.time.algorithm_table import rounds
from costmodel.time.ring import Bytes


@dataclass(frozen=True, slots=True)
class Estimate:
    """A fitted number and its 95 % confidence interval.

    Raises:
        QuantityError: `0 <= low <= value <= high` does not hold, or one of them is not finite.
    """

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        high = number("high end of an estimate", self.high)
        value = number("value of an estimate", self.value, most=high)
        low = number("low end of an estimate", self.low, most=value)
        assign(self, low=low, value=value, high=high)


@dataclass(frozen=True, slots=True)
class LinkFit:
    """Latency and bandwidth of a link, from all sizes and groups of one or more collectives.

    Raises:
        QuantityError: There is no kind, there is not one algorithm for each kind, or a quality is
            not finite.
        UnknownNameError: A kind is not a collective, or does not have this algorithm.
    """

    kinds: tuple[str, ...]
    """The collectives whose points were fitted."""
    algorithms: tuple[str, ...]
    """For each kind the algorithm that explains its points best: a name of
    `costmodel.time.algorithms`, or of a registered algorithm."""
    latency_s: Estimate
    """alpha: seconds per message."""
    s_per_byte: Estimate
    """beta: seconds per byte."""
    r_squared: float
    """Fraction of the variance of the logarithms of the medians that the fit explains."""
    median_error: float
    """Median of `|predicted / measured - 1|` over the points' medians."""

    def __post_init__(self) -> None:
        if not self.kinds or len(self.kinds) != len(self.algorithms):
            raise QuantityError(
                "a fit has one algorithm for each of its collectives, at least one; "
                f"got kinds={self.kinds} and algorithms={self.algorithms}"
            )
        for kind, algorithm in zip(self.kinds, self.algorithms, strict=True):
            rounds(kind, algorithm, 2)
        _check_quality(self.r_squared, self.median_error)


@dataclass(frozen=True, slots=True)
class LinePiece:
    """A line `latency_s + n_bytes s_per_byte` for the sizes from `from_bytes` on.

    Raises:
        QuantityError: `from_bytes` is not a whole number >= 0.
    """

    from_bytes: int
    latency_s: Estimate
    s_per_byte: Estimate

    def __post_init__(self) -> None:
        assign(self, from_bytes=count("from_bytes of a piece", self.from_bytes))


@dataclass(frozen=True, slots=True)
class CurveFit:
    """Time of one collective in groups of one size, as lines for ranges of bytes.

    The time never falls: after the end of a piece, its last time holds until the next piece exceeds
    it.

    Raises:
        QuantityError: The pieces do not start at 0 bytes and rise, the group has fewer than two
            members, or a quality is not finite.
        UnknownNameError: No collective is called `kind`.
    """

    kind: str
    n: int
    """Number of members of the group."""
    pieces: tuple[LinePiece, ...]
    """By rising size; the first starts at 0 bytes."""
    r_squared: float
    """As in `LinkFit`."""
    median_error: float
    """As in `LinkFit`."""

    def __post_init__(self) -> None:
        check_kind(self.kind)
        assign(self, n=count("n of a curve", self.n, least=2))
        starts = [piece.from_bytes for piece in self.pieces]
        if starts[:1] != [0] or any(start >= next_ for start, next_ in pairwise(starts)):
            raise QuantityError(
                f"the pieces of a curve start at 0 bytes and rise; got from_bytes={starts}"
            )
        _check_quality(self.r_squared, self.median_error)

    def time(self, n_bytes: Bytes) -> Any:
        """Seconds for `n_bytes`; an array if `n_bytes` is one."""
        ends = [piece.from_bytes for piece in self.pieces[1:]] + [math.inf]
        seconds = np.zeros(np.shape(n_bytes))
        for piece, end in zip(self.pieces, ends, strict=True):
            line = piece.latency_s.value + np.minimum(n_bytes, end) * piece.s_per_byte.value
            seconds = np.maximum(seconds, np.where(n_bytes >= piece.from_bytes, line, 0.0))
        return seconds if seconds.ndim else float(seconds)


@dataclass(frozen=True, slots=True)
class ComputeFit:
    """Rate of the arithmetic of one dtype.

    Raises:
        QuantityError: The peak is not positive, the error is not finite, or a `costmodel.Device`
            does not accept the curve.
    """

    dtype: str
    peak_flops_per_s: float
    """The fastest rate among the points, without the launch."""
    efficiency: Curve
    """Part of the peak by FLOP of one operator, as in `costmodel.Device`."""
    median_error: float
    """Median relative error of the rates, each predicted from the others; the curve itself passes
    through all of them."""

    def __post_init__(self) -> None:
        assign(
            self,
            peak_flops_per_s=positive("peak_flops_per_s of a fit", self.peak_flops_per_s),
            efficiency=checked_curve(self.dtype, self.efficiency),
            median_error=number("median_error of a fit", self.median_error),
        )


@dataclass(frozen=True, slots=True)
class Fits:
    """Everything that was fitted to the points of a profile.

    Raises:
        QuantityError: The launch time is negative, the bandwidth is not positive, or one of them is
            not finite.
    """

    link: LinkFit
    """Fit to all collectives together, as in AutoDDL, section 3.2."""
    collectives: tuple[LinkFit, ...]
    """Fit to each collective in groups of all sizes, sorted by kind."""
    curves: tuple[CurveFit, ...]
    """Fit to each collective and group size, sorted by both."""
    launch_s: float
    """Seconds to launch an operator."""
    compute: tuple[ComputeFit, ...]
    """Fit to the matrix products of each dtype, sorted by dtype."""
    memory_bandwidth_bytes_per_s: float
    """Bytes per second of one device, reads and writes together."""

    def __post_init__(self) -> None:
        bandwidth = "memory_bandwidth_bytes_per_s of a fit"
        assign(
            self,
            launch_s=number("launch_s of a fit", self.launch_s),
            memory_bandwidth_bytes_per_s=positive(bandwidth, self.memory_bandwidth_bytes_per_s),
        )


def _check_quality(r_squared: float, median_error: float) -> None:
    number("r_squared of a fit", r_squared, least=-sys.float_info.max, most=1)
    number("median_error of a fit", median_error)
