"""Bytes that one device of a pipeline stage needs."""

from __future__ import annotations

from costmodel.base.checks import count
from costmodel.memory.held_microbatches import InFlight


def stage_memory_bytes(
    parameter: int,
    gradient: int,
    optimizer_state: int,
    activation_per_microbatch: int,
    in_flight: int | InFlight,
    *,
    temporary: int = 0,
    weight_gradient_per_microbatch: int = 0,
) -> int:
    """Bytes that one device of a pipeline stage needs; it fits if this is at most its memory.

    Args:
        parameter: Bytes of this device's weights.
        gradient: Bytes of this device's accumulated gradients.
        optimizer_state: Bytes of this device's optimizer states.
        activation_per_microbatch: Bytes that forward leaves for backward.
        in_flight: Most microbatches whose activations are live at once, from `in_flight` for a
            schedule; in 1F1B the number of stages from this one to the last.
        temporary: Bytes in use while one operator or one layer runs: its buffers, recomputed
            activations, weights that ZeRO gathers.
        weight_gradient_per_microbatch: Bytes that the gradient of the input leaves for that of the
            weights, for schedules that separate them.

    Returns:
        `mem_stage + in_flight * mem_act`. Alpa measures `mem_stage` of the compiled program; here
        it is everything that persists between microbatches, plus `temporary`.

    Raises:
        QuantityError: An argument is not a whole number >= 0.

    Examples:
        >>> stage_memory_bytes(200, 200, 1200, 50, in_flight=4, temporary=30)
        1830

    Reference:
        Alpa, section 5.2, Eq. 5.
    """
    stage = sum(
        count(name, value)
        for name, value in (
            ("parameter", parameter),
            ("gradient", gradient),
            ("optimizer_state", optimizer_state),
            ("temporary", temporary),
        )
    )
    if not isinstance(in_flight, InFlight):
        in_flight = InFlight(count("in_flight", in_flight))
    return stage + in_flight.n_bytes(activation_per_microbatch, weight_gradient_per_microbatch)
