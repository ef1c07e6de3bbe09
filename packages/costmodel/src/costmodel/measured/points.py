"""The raw points that a calibration measures and a profile keeps.

Each point has the seconds of one operation, an entry for each batch of repeated operations. The
time of a batch is that of its slowest process. Warm-up is left out.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from costmodel.base.checks import assign, count, positive
from costmodel.errors import QuantityError
from costmodel.time.algorithm import check_kind


@dataclass(frozen=True, slots=True)
class CollectivePoint:
    """Times of a collective, or a message, of one size in a group of one size.

    Raises:
        QuantityError: There is no time, or one that is not positive and finite, or the group has
            fewer than two members.
        UnknownNameError: No collective is called `kind`.
    """

    kind: str
    """A `costmodel.CollectiveKind`."""
    n: int
    """Number of members of the group; 2 for a message."""
    n_bytes: int
    """Bytes of the collective, as in `costmodel.time.ring`."""
    seconds: tuple[float, ...]
    """Seconds of one operation, for each batch."""

    def __post_init__(self) -> None:
        check_kind(self.kind)
        assign(
            self,
            n=count("n of a collective's point", self.n, least=2),
            n_bytes=count("n_bytes of a collective's point", self.n_bytes),
            seconds=_checked(self.seconds),
        )

    @property
    def median_s(self) -> float:
        """Median of the batches."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class MatmulPoint:
    """Times of a product of an `m x k` and a `k x n` matrix on every device at once.

    Raises:
        QuantityError: There is no time, or one that is not positive and finite, or a matrix is
            empty.
    """

    m: int
    n: int
    k: int
    dtype: str
    seconds: tuple[float, ...]
    """Seconds of one operation, for each batch."""

    def __post_init__(self) -> None:
        assign(
            self,
            m=count("m of a product's point", self.m, least=1),
            n=count("n of a product's point", self.n, least=1),
            k=count("k of a product's point", self.k, least=1),
            seconds=_checked(self.seconds),
        )

    @property
    def flops(self) -> float:
        """Floating-point operations; a multiply-add counts as two."""
        return 2.0 * self.m * self.n * self.k

    @property
    def median_s(self) -> float:
        """Median of the batches."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class StreamPoint:
    """Times of a pass over an array that is too large for the caches, on every device at once.

    Raises:
        QuantityError: There are no bytes, or there is no time, or one that is not positive and
            finite.
    """

    n_bytes: int
    """Bytes read and written, together."""
    seconds: tuple[float, ...]
    """Seconds of one operation, for each batch."""

    def __post_init__(self) -> None:
        assign(
            self,
            n_bytes=count("n_bytes of a stream's point", self.n_bytes, least=1),
            seconds=_checked(self.seconds),
        )

    @property
    def median_s(self) -> float:
        """Median of the batches."""
        return statistics.median(self.seconds)


def _checked(seconds: tuple[float, ...]) -> tuple[float, ...]:
    if not seconds:
        raise QuantityError("a point has seconds, at least once; got none")
    return tuple(positive("seconds of a point", value) for value in seconds)
