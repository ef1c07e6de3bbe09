"""Bytes that training keeps for parameters: weights, gradients and optimizer states."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.base.checks import count
from costmodel.errors import QuantityError, UnknownNameError

_FLOAT32_BYTES = 4
_FLOAT16_BYTES = 2  # float16 and bfloat16

# Float32 numbers that an optimizer keeps per parameter: momentum keeps its velocity, Adam and AdamW
# the first and second moment ("#optimizer state parameters" of cross-mesh, Table 1: 24 / 12 = 2).
_STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of one device's parameters, gradients and optimizer states."""

    weight: int
    """The copy that forward and backward compute with."""
    gradient: int
    """Accumulated over the microbatches."""
    optimizer_state: int
    """Moments and, in mixed precision, the float32 master copy of the weight."""

    @property
    def total(self) -> int:
        """All three."""
        return self.weight + self.gradient + self.optimizer_state


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """Bytes that training keeps for one parameter, apart from activations."""

    weight: int
    """The copy that forward and backward compute with."""
    gradient: int
    """In the dtype of `weight`, unless it is accumulated in another dtype."""
    optimizer_state: int
    """Moments and, in mixed precision, the float32 master copy of the weight."""

    @classmethod
    def of(cls, optimizer: str, *, mixed_precision: bool) -> ParameterBytes:
        """Bytes per parameter for an optimizer.

        Args:
            optimizer: "sgd", "momentum", "adam" or "adamw".
            mixed_precision: Compute in 16 bits and keep a float32 master copy of the weights;
                otherwise everything is float32. Gradients have the dtype of the weights; for those
                of Megatron-LM, which are float32 in mixed precision, construct
                `ParameterBytes(2, 4, 12)`.

        Raises:
            UnknownNameError: No optimizer has this name.

        Examples:
            >>> ParameterBytes.of("adam", mixed_precision=True)
            ParameterBytes(weight=2, gradient=2, optimizer_state=12)

        Reference:
            Cross-mesh resharding, Table 1: weights and optimizer states of one GPT layer take
            `168 H^2` bytes for its `12 H^2` parameters, so 14 each, here 2 + 12. The table does not
            have gradients.
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

    def times(self, n_parameters: int, *, zero_stage: int = 0, n_replicas: int = 1) -> StateBytes:
        """Bytes that one device keeps for its parameters.

        Args:
            n_parameters: Number of parameters of the device's part of the model, before ZeRO.
            zero_stage: What the replicas split among them: nothing (0), optimizer states (1), also
                gradients (2), also weights (3).
            n_replicas: Number of devices with the same part of the model, in data parallelism.

        Returns:
            The bytes of the device with the largest shares.

        Raises:
            QuantityError: A count is not a whole number in its range.

        Examples:
            >>> adam = ParameterBytes.of("adam", mixed_precision=True)
            >>> adam.times(7_500_000_000, zero_stage=1, n_replicas=64).total / 1e9
            31.40625

        Reference:
            Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
            Models", SC 2020, section 5 and figure 1.
        """
        whole = count("n_parameters", n_parameters)
        share = -(-whole // count("n_replicas", n_replicas, least=1))
        if count("zero_stage", zero_stage) > 3:
            raise QuantityError(f"ZeRO has the stages 0 (none), 1, 2 and 3; got {zero_stage}")
        return StateBytes(
            self.weight * (share if zero_stage >= 3 else whole),
            self.gradient * (share if zero_stage >= 2 else whole),
            self.optimizer_state * (share if zero_stage >= 1 else whole),
        )
