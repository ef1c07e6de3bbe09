"""Links in the alpha-beta model, and the links that a mesh sees when it is laid over a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from costmodel.errors import QuantityError


@dataclass(frozen=True, slots=True)
class Link:
    """A full-duplex connection that moves `n` bytes in `latency_s + n / bandwidth_bytes_per_s`.

    Raises:
        QuantityError: The latency is negative or the bandwidth not positive, or one is not finite.

    Examples:
        >>> Link(latency_s=50e-6, bandwidth_bytes_per_s=125e6)  # Ethernet at 1 Gbit/s
        Link(latency_s=5e-05, bandwidth_bytes_per_s=125000000.0)

    Reference:
        AutoDDL, section 3.1: alpha is the latency, beta the inverse of the bandwidth.
    """

    latency_s: float
    """Seconds before the first byte arrives (alpha)."""
    bandwidth_bytes_per_s: float
    """Bytes a second in each direction (1 / beta)."""

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < math.inf and 0 < self.bandwidth_bytes_per_s < math.inf):
            raise QuantityError(
                "a link needs a finite latency_s >= 0 and a finite bandwidth_bytes_per_s > 0; "
                f"got latency_s={self.latency_s} and "
                f"bandwidth_bytes_per_s={self.bandwidth_bytes_per_s}"
            )


def slowest(links: Iterable[Link]) -> Link:
    """Bound of a ring that passes over all of `links`: largest latency, smallest bandwidth."""
    links = tuple(links)
    return Link(
        max(link.latency_s for link in links), min(link.bandwidth_bytes_per_s for link in links)
    )


@dataclass(frozen=True, slots=True)
class MeshLinks(Sequence[Link]):
    """The effective link of each set of axes of a mesh, as `Cluster.links` finds them.

    As a sequence it holds one link per mesh axis. The link of a *set* of axes does not follow from
    these: the groups along axis 0 of a 2x4 mesh over two hosts are four and share each host's
    network card, while a collective over both axes is one group and has the card to itself.
    """

    by_mask: tuple[Link, ...]
    """Shape `(2**ndim,)`; entry `m` serves the axes whose bits are set in `m` (0: no axis)."""

    def over(self, axes: Iterable[int]) -> Link:
        """Link of a collective whose groups run over `axes`, in any order."""
        mask = 0
        for axis in axes:
            mask |= 1 << axis
        return self.by_mask[mask]

    def __len__(self) -> int:
        return len(self.by_mask).bit_length() - 1

    @overload
    def __getitem__(self, axis: int) -> Link: ...
    @overload
    def __getitem__(self, axis: slice) -> tuple[Link, ...]: ...
    def __getitem__(self, axis: int | slice) -> Link | tuple[Link, ...]:
        if isinstance(axis, slice):
            return tuple(self[one] for one in range(*axis.indices(len(self))))
        return self.by_mask[1 << range(len(self))[axis]]
