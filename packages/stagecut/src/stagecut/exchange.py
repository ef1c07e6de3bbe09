"""What given stages hand each other: seconds to receive it, bytes to hold it.

A stage receives each value that it reads and did not make, once, from the stage that made it. A
value that is read after the next stage is held where it was made, for every microbatch in flight,
a part on each device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stagecut.boundary import Boundary
from stagecut.errors import InvalidInputError
from stagecut.network import TransferFunction
from stagecut.plan import BoundaryFunction, Span


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
        InvalidInputError: There are values between layers, and no time for them, or a value is none
            between these layers.

    Examples:
        >>> found = exchange(
        ...     [(0, 0, (1, 2)), (1, 1, (1, 1)), (2, 2, (1, 1))],
        ...     edges=[Boundary(0, 8, (1, 2))],
        ...     transfer_s=lambda n_bytes, source, target: n_bytes / source[1],
        ... )
        >>> found.received_s, found.held_bytes
        ((0.0, 4.0, 4.0), (4, 0, 0))
    """
    if edges and transfer_s is None:
        raise InvalidInputError(
            "values between layers take a time to send; got edges and transfer_s=None"
        )
    received_s = [boundary_s(first) if boundary_s and first else 0.0 for first, _, _ in spans]
    held_bytes = [0] * len(spans)
    stage_of = [stage for stage, span in enumerate(spans) for _ in range(span[0], span[1] + 1)]
    for k, edge in enumerate(edges):
        last_reader = max(edge.consumers, default=edge.producer)
        if not 0 <= edge.producer < min(edge.consumers, default=len(stage_of)):
            raise InvalidInputError(
                f"a value is made by one layer and read by later ones; got edges[{k}]={edge}"
            )
        if last_reader >= len(stage_of):
            raise InvalidInputError(
                f"a value is read by layers that there are; got edges[{k}]={edge} "
                f"and {len(stage_of)} layers"
            )
        maker = stage_of[edge.producer]
        n, m = spans[maker][2]
        for reader in {stage_of[layer] for layer in edge.consumers} - {maker}:
            assert transfer_s is not None  # checked above
            received_s[reader] += transfer_s(edge.n_bytes, spans[maker][2], spans[reader][2])
        if stage_of[last_reader] > maker + 1:
            held_bytes[maker] += -(-edge.n_bytes // (n * m))
    return Exchange(tuple(received_s), tuple(held_bytes))
