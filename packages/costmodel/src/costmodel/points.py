"""What a calibration measures: the raw points that a profile keeps.

Every point holds the seconds of one operation, once for each batch of repeated ones. A batch takes
as long as its slowest process. Warm-up is left out.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from costmodel.errors import QuantityError


def _check_seconds(seconds: tuple[float, ...]) -> None:
    if not (seconds and all(0 < value < math.inf for value in seconds)):
        raise QuantityError(f"a point has finite seconds > 0, at least once; got seconds={seconds}")


@dataclass(frozen=True, slots=True)
class CollectivePoint:
    """A collective, or a message, of one size in a group of one size.

    Raises:
        QuantityError: No time, one that is not positive and finite, or a group of less than two.
    """

    kind: str
    """A `costmodel.algorithms.Kind`, or "point_to_point"."""
    n: int
    """Members of the group; 2 for a message."""
    n_bytes: int
    """As in `costmodel.collectives`."""
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_seconds(self.seconds)
        if self.n < 2 or self.n_bytes < 0:
            raise QuantityError(
                "a point of a collective has n >= 2 and n_bytes >= 0; "
                f"got n={self.n} and n_bytes={self.n_bytes}"
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
        _check_seconds(self.seconds)
        if min(self.m, self.n, self.k) < 1:
            raise QuantityError(
                f"a point of a product has m, n, k >= 1; got m={self.m}, n={self.n} and k={self.k}"
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
        QuantityError: No time, or one that is not positive and finite.
    """

    n_bytes: int
    """Read and written, together."""
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_seconds(self.seconds)

    @property
    def median_s(self) -> float:
        """Median of the batches."""
        return statistics.median(self.seconds)
