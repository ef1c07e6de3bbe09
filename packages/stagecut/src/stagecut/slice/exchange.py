"""What given stages receive and hold: seconds to receive values, bytes to hold them.

A stage receives each value that it reads and did not produce, once, from the stage that produced
it. A value that is read after the next stage is held by the stage that produced it, for every
microbatch in flight, with a part on each of its devices.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from stagecut.base.checks import is_amount
from stagecut.base.edges import Boundary, check_values
from stagecut.base.types import BoundaryFunction, Span
from stagecut.errors import InvalidInputError
from stagecut.slice.transfers import TransferFunction, required_transfer


@dataclass(frozen=True, slots=True)
class Exchange:
    """Times and sizes with one entry for each stage."""

    received_s: tuple[float, ...]
    """Seconds to receive the values of one microbatch, and to send back their gradients."""
    held_bytes: tuple[int, ...]
    """Bytes that a device holds for stages after the next one, for each microbatch in flight."""


def exchange(
    spans: Sequence[Span],
    boundary_s: BoundaryFunction | None = None,
    edges: Sequence[Boundary] = (),
    transfer_s: TransferFunction | None = None,
) -> Exchange:
    """The times in which these stages receive values, and the bytes that they hold.

    Args:
        spans: First layer, last layer and submesh of each stage, in order.
        boundary_s: This argument and those after it are as for `slice_stages`.
        edges: Values between layers.
        transfer_s: Seconds to send one of them.

    Raises:
        InvalidInputError: There are values between layers but no `transfer_s`, a value is not
            between these layers, or a time is negative or not finite.

    Examples:
        >>> between = exchange(
        ...     [(0, 0, (1, 2)), (1, 1, (1, 1)), (2, 2, (1, 1))],
        ...     edges=[Boundary(0, 8, (1, 2))],
        ...     transfer_s=lambda n_bytes, source, target: n_bytes / source[1],
        ... )
        >>> between.received_s, between.held_bytes
        ((0.0, 4.0, 4.0), (4, 0, 0))
    """
    starts = [first for first, _, _ in spans]
    check_values(edges, spans[-1][1] + 1, name="edges", among="layers")
    received_s = [boundary_s(first) if boundary_s and first else 0.0 for first in starts]
    held_bytes = [0] * len(spans)
    for edge in edges:
        send_s = required_transfer(transfer_s)
        producer = bisect_right(starts, edge.producer) - 1
        readers = {bisect_right(starts, layer) - 1 for layer in edge.consumers} - {producer}
        n, m = spans[producer][2]
        for reader in readers:
            received_s[reader] += send_s(edge.n_bytes, spans[producer][2], spans[reader][2])
        if max(readers, default=producer) > producer + 1:
            held_bytes[producer] += -(-edge.n_bytes // (n * m))
    if not all(map(is_amount, received_s)):
        raise InvalidInputError(
            "the times in which stages receive values are finite and not negative; got "
            f"{received_s} by boundary_s and transfer_s for the stages {list(spans)}"
        )
    return Exchange(tuple(received_s), tuple(held_bytes))
