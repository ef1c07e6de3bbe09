"""Bytes that training keeps: weights, gradients, optimizer states, activations."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.errors import QuantityError, UnknownNameError

_FLOAT32_BYTES = 4
_FLOAT16_BYTES = 2  # float16 and bfloat16

# Float32 numbers that an optimizer keeps per parameter: momentum its velocity, Adam (and AdamW) the
# first and second moment ("#optimizer state parameters" of cross-mesh, Table 1: 24 / 12 = 2).
_STATES = {"sgd": 0, "momentum": 1, "adam": 2}


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """Bytes that training keeps for one parameter, apart from activations."""

    weight: int
    """The copy that forward and backward compute with."""
    gradient: int
    """In the dtype of `weight`."""
    optimizer_state: int
    """Moments and, in mixed precision, the float32 master copy of the weight."""

    @classmethod
    def of(cls, optimizer: str, *, mixed_precision: bool) -> ParameterBytes:
        """Bytes per parameter for an optimizer.

        Args:
            optimizer: "sgd", "momentum" or "adam".
            mixed_precision: Compute in 16 bits and keep a float32 master copy of the weights;
                else everything is float32.

        Raises:
            UnknownNameError: No optimizer has this name.

        Examples:
            >>> ParameterBytes.of("adam", mixed_precision=True)
            ParameterBytes(weight=2, gradient=2, optimizer_state=12)

        Reference:
            Cross-mesh resharding, Table 1: weights and optimizer of one GPT layer are `168 H^2`
            bytes for its `12 H^2` parameters, so 14 each, 2 + 12 here. Gradients are not in it.
        """
        if optimizer not in _STATES:
            raise UnknownNameError(
                f"no optimizer is called {optimizer!r}; known: {', '.join(_STATES)}; "
                "for another one construct ParameterBytes(weight, gradient, optimizer_state)",
                optimizer,
            )
        moments = _STATES[optimizer] * _FLOAT32_BYTES
        if mixed_precision:
            return cls(_FLOAT16_BYTES, _FLOAT16_BYTES, _FLOAT32_BYTES + moments)
        return cls(_FLOAT32_BYTES, _FLOAT32_BYTES, moments)


def stage_memory_bytes(
    parameter: int,
    gradient: int,
    optimizer_state: int,
    activation_per_microbatch: int,
    in_flight: int,
) -> int:
    """Bytes that one device of a pipeline stage needs; it fits if this is at most its memory.

    Args:
        parameter: Bytes of this device's weights.
        gradient: Bytes of this device's accumulated gradients.
        optimizer_state: Bytes of this device's optimizer states.
        activation_per_microbatch: Bytes that forward leaves for backward.
        in_flight: Most microbatches whose activations are alive at once; in 1F1B the number of
            stages from this one to the last.

    Returns:
        `mem_stage + in_flight * mem_act`. Alpa measures `mem_stage` with the temporary buffers of
        the compiled program; here it is what persists between microbatches.

    Raises:
        QuantityError: An argument is negative.

    Reference:
        Alpa, section 5.2, Eq. 5.
    """
    terms = (parameter, gradient, optimizer_state, activation_per_microbatch, in_flight)
    if min(terms) < 0:
        raise QuantityError(f"memory is the sum of terms >= 0; got {terms}")
    return parameter + gradient + optimizer_state + in_flight * activation_per_microbatch
