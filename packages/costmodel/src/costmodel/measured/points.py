"""What a calibration measures: the raw points that a profile keeps.

Every point holds the seconds of one operation, once for each batch of repeated ones. A batch takes
as long as its slowest process. Warm-up is left out.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from costmodel.base.checks import assign, count, positive
from costmodel.errors import QuantityError
from costmodel.time.algorithm import check_kind


@dataclass(frozen=True, slots=True)
class CollectivePoint:
    """A collective, or a message, of one size in a group of one size.

    Raises:
        QuantityError: No time, one that is not positive and finite, or a group of less than two.
        UnknownNameError: No collective is called `kind`.
    """

    kind: str
    """A `costmodel.CollectiveKind`."""
    n: int
    """Members of the group; 2 for a message."""
    n_bytes: int
    """As in `costmodel.time.ring`."""
    seconds: tuple[float, ...]

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
    """A product of an `m x k` and a `k x n` matrix on every device at once.

    Raises:
        QuantityError: No time, or one that is not positive and finite, or an empty matrix.
    """

    m: int
    n: int
    k: int
    dtype: str
    seconds: tuple[float, ...]

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
    """A pass over memory that is too large for the caches, on every device at once.

    Raises:
        QuantityError: No byte, no time, or one that is not positive and finite.
    """

    n_bytes: int
    """Read and written, together."""
    seconds: tuple[float, ...]

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
