"""What given stages hand each other: seconds to receive it, bytes to hold it.

A stage receives each value that it reads and did not make, once, from the stage that made it. A
value that is read after the next stage is held where it was made, for every microbatch in flight,
a part on each device.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from stagecut.base.checks import is_amount
from stagecut.base.edges import Boundary, check_values
from stagecut.base.types import BoundaryFunction, Span
from stagecut.errors import InvalidInputError
from stagecut.slice.transfers import TransferFunction


@dataclass(frozen=True, slots=True)
class Exchange:
    """One entry for each stage."""

    received_s: tuple[float, ...]
    """Of one microbatch, and back its gradients."""
    held_bytes: tuple[int, ...]
    """Of a device, for each microbatch in flight."""


def exchange(
    spans: Sequence[Span],
    boundary_s: BoundaryFunction | None = None,
    edges: Sequence[Boundary] = (),
    transfer_s: TransferFunction | None = None,
) -> Exchange:
    """What these stages receive and hold.

    Args:
        spans: First layer, last layer and submesh of each stage, in order.
        boundary_s: This and the rest mean what they mean for `slice_stages`.
        edges: Values between layers.
        transfer_s: Seconds to send one of them.

    Raises:
        InvalidInputError: There are values between layers, and no time for them, a value is none
            between these layers, or a time is negative or not finite.

    Examples:
        >>> found = exchange(
        ...     [(0, 0, (1, 2)), (1, 1, (1, 1)), (2, 2, (1, 1))],
        ...     edges=[Boundary(0, 8, (1, 2))],
        ...     transfer_s=lambda n_bytes, source, target: n_bytes / source[1],
        ... )
        >>> found.received_s, found.held_bytes
        ((0.0, 4.0, 4.0), (4, 0, 0))
    """
    starts = [first for first, _, _ in spans]
    check_values(edges, spans[-1][1] + 1, name="edges", among="layers")
    received_s = [boundary_s(first) if boundary_s and first else 0.0 for first in starts]
    held_bytes = [0] * len(spans)
    for edge in edges:
        if transfer_s is None:
            raise InvalidInputError(
                "values between layers take a time to send; got edges and transfer_s=None"
            )
        maker = bisect_right(starts, edge.producer) - 1
        readers = {bisect_right(starts, layer) - 1 for layer in edge.consumers} - {maker}
        n, m = spans[maker][2]
        for reader in readers:
            received_s[reader] += transfer_s(edge.n_bytes, spans[maker][2], spans[reader][2])
        if max(readers, default=maker) > maker + 1:
            held_bytes[maker] += -(-edge.n_bytes // (n * m))
    if not all(map(is_amount, received_s)):
        raise InvalidInputError(
            "what stages take to receive is finite and not negative; got, by boundary_s and "
            f"transfer_s, {received_s} for the stages {list(spans)}"
        )
    return Exchange(tuple(received_s), tuple(held_bytes))
