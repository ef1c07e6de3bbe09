"""The costs of a pipeline: seconds and bytes of its stages and of the messages between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, replace

from pipesched.base.checks import check_sizes, is_amount
from pipesched.base.edge import Edge
from pipesched.base.kind import Kind
from pipesched.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds and bytes: one number for all stages (or edges), or one for each.

    A whole backward has two parts, the input gradient and the weight gradient. If only `backward_s`
    is set, each part is half of it. If one part is set as well, the other is the rest. If only the
    two parts are set, the whole is their sum, and if all three are set, they have to agree. If none
    of the three is set, there are only forwards (inference).

    A message occupies its link for `transfer_s`, or else for `message_bytes / bytes_per_s`, and
    arrives `latency_s` after that. During the latency, the link is free for the next message.

    Raises:
        ArgumentError: A number is negative or not finite, a value is not a number, or `bytes_per_s`
            is not above 0.

    Examples:
        >>> Costs(1.0, 2.0).seconds(Kind.WEIGHT_GRADIENT, n_stages=3)
        (1.0, 1.0, 1.0)
        >>> Costs([1.0, 2.0], [2.0, 3.0], input_gradient_s=1.0).seconds(Kind.WEIGHT_GRADIENT, 2)
        (1.0, 2.0)
    """

    forward_s: float | Sequence[float]
    """Seconds of the forward of one microbatch, per stage."""
    backward_s: float | Sequence[float] | None = None
    """Seconds of a whole backward, per stage."""
    _: KW_ONLY
    input_gradient_s: float | Sequence[float] | None = None
    """Seconds of the part of a backward that the previous stage waits for, per stage."""
    weight_gradient_s: float | Sequence[float] | None = None
    """Seconds of the part of a backward that no stage waits for, per stage."""
    recompute_s: float | Sequence[float] | None = None
    """Seconds to recompute the activations, per stage; those of the forward if None."""
    reduce_s: float | Sequence[float] = 0.0
    """Seconds to reduce a stage's gradients, once a step."""
    update_s: float | Sequence[float] = 0.0
    """Seconds to update a stage's parameters, once a step."""
    transfer_s: float | Mapping[Edge, float] | None = None
    """Seconds for which one message occupies its link, per edge."""
    latency_s: float | Mapping[Edge, float] = 0.0
    """Seconds from the end of `transfer_s` until the receiver can use a message, per edge."""
    message_bytes: float | Mapping[Edge, float] = 0
    """Bytes of one message, per edge."""
    bytes_per_s: float | Mapping[Edge, float] = math.inf
    """Bandwidth of the link, per edge; not used if `transfer_s` is set."""
    overlap: bool = True
    """Whether a rank computes while it sends; if not, a send blocks its rank until the message has
    arrived."""
    activation_bytes: float | Sequence[float] = 1
    """Bytes that one microbatch keeps from its forward to its backward, per stage; the default
    counts microbatches."""
    weight_gradient_bytes: float | Sequence[float] | None = None
    """Bytes that the weight gradient still needs after the input gradient, per stage; if None, all
    of the activations, so that nothing is freed before the weight gradient."""
    checkpoint_bytes: float | Sequence[float] = 0
    """Bytes that a forward keeps instead of the activations, until these are recomputed, per stage;
    only used if the schedule recomputes."""
    parameter_bytes: float | Sequence[float] = 0
    """Bytes held all the time (parameters, gradients, optimizer state), per stage."""

    def __post_init__(self) -> None:
        for name in _PER_STAGE:
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, (Mapping, Set)):
                object.__setattr__(self, name, tuple(value))
        for name in _PER_EDGE:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                object.__setattr__(self, name, dict(value))
        for name in (*_PER_STAGE, *_PER_EDGE):
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            numbers: Iterable[object] = (value,)
            if name in _PER_STAGE and isinstance(value, tuple):
                numbers = value
            elif name in _PER_EDGE and isinstance(value, dict):
                if not all(isinstance(edge, Edge) for edge in value):
                    raise ArgumentError(f"{name} is one number, or one by Edge; got {value!r:.60}")
                numbers = value.values()
            for number in numbers:
                _check_number(name, number)
        if not isinstance(self.overlap, bool):
            raise ArgumentError(f"overlap is True or False; got overlap={self.overlap!r}")

    def seconds(self, kind: Kind, n_stages: int) -> tuple[float, ...]:
        """The seconds of an action that computes, per stage.

        Raises:
            ArgumentError: There is not one number for each stage, the time of a backward is not set
                or is not that of its parts, or `kind` is a send or receive (see `link_s`).
        """
        match kind:
            case Kind.FORWARD:
                return self._per_stage("forward_s", n_stages)
            case Kind.BACKWARD | Kind.INPUT_GRADIENT | Kind.WEIGHT_GRADIENT:
                return self._backward(n_stages)[kind]
            case Kind.RECOMPUTE:
                name = "forward_s" if self.recompute_s is None else "recompute_s"
                return self._per_stage(name, n_stages)
            case Kind.REDUCE:
                return self._per_stage("reduce_s", n_stages)
            case Kind.UPDATE:
                return self._per_stage("update_s", n_stages)
        raise ArgumentError(f"a send or receive takes the time of its edge's link_s; got {kind!r}")

    def sizes(self, name: str, n_stages: int) -> tuple[float, ...]:
        """The bytes of the field called `name`, per stage.

        Raises:
            ArgumentError: There is not one number for each stage, or no field of bytes per stage
                with this name.
        """
        if name not in _PER_STAGE or not name.endswith("_bytes"):
            raise ArgumentError(
                "a stage's sizes are activation_bytes, weight_gradient_bytes, checkpoint_bytes and "
                f"parameter_bytes; got name={name!r}"
            )
        if name == "weight_gradient_bytes" and self.weight_gradient_bytes is None:
            name = "activation_bytes"
        return self._per_stage(name, n_stages)

    def link_s(self, edge: Edge) -> tuple[float, float]:
        """Seconds for which a message occupies its link, and from then on until it arrives.

        Raises:
            ArgumentError: A mapping does not have this edge.
        """
        if self.transfer_s is None:
            transfer_s = self.edge_bytes(edge) / self._of_edge("bytes_per_s", edge)
        else:
            transfer_s = self._of_edge("transfer_s", edge)
        return transfer_s, self._of_edge("latency_s", edge)

    def edge_bytes(self, edge: Edge) -> float:
        """Bytes of one message.

        Raises:
            ArgumentError: A mapping does not have this edge.
        """
        return self._of_edge("message_bytes", edge)

    def signal(self) -> Costs:
        """These costs with messages of one byte, a bound for every way to hide communication.

        A message occupies its link for one byte at `bytes_per_s`. If only `transfer_s` is known, it
        takes no time.

        Reference:
            Zhuang et al., MLSys 2023, section 5.3.1 ("Signal Send/Recv").
        """
        return replace(self, message_bytes=1, transfer_s=None)

    def _per_stage(self, name: str, n_stages: int) -> tuple[float, ...]:
        check_sizes(n_stages, 1)
        value = getattr(self, name)
        values = value if isinstance(value, tuple) else (value,) * n_stages
        if len(values) != n_stages:
            raise ArgumentError(
                f"{name} is one number, or one for each stage; "
                f"got {len(values)} numbers for n_stages={n_stages}"
            )
        return values

    def _of_edge(self, name: str, edge: Edge) -> float:
        value = getattr(self, name)
        number: float | None = value.get(edge) if isinstance(value, dict) else value
        if number is None:
            raise ArgumentError(
                f"{name} is one number, or one for each edge of the schedule; got none for {edge}"
            )
        return number

    def _backward(self, n_stages: int) -> dict[Kind, tuple[float, ...]]:
        whole, inputs, weights = (
            None if getattr(self, name) is None else self._per_stage(name, n_stages)
            for name in ("backward_s", "input_gradient_s", "weight_gradient_s")
        )
        if whole is None:
            if inputs is None or weights is None:
                raise ArgumentError(
                    "a schedule with backwards needs backward_s, or both input_gradient_s and "
                    f"weight_gradient_s; got backward_s={whole}, input_gradient_s={inputs} and "
                    f"weight_gradient_s={weights}"
                )
            whole = tuple(i + w for i, w in zip(inputs, weights, strict=True))
        if inputs is None:
            if weights is None:
                inputs = tuple(b / 2 for b in whole)
            else:
                inputs = _rest(whole, weights, "weight_gradient_s")
        if weights is None:
            weights = _rest(whole, inputs, "input_gradient_s")
        if None not in (self.backward_s, self.input_gradient_s, self.weight_gradient_s):
            _check_parts(whole, inputs, weights)
        return {
            Kind.BACKWARD: whole,
            Kind.INPUT_GRADIENT: inputs,
            Kind.WEIGHT_GRADIENT: weights,
        }


_PER_STAGE = (
    "forward_s",
    "backward_s",
    "input_gradient_s",
    "weight_gradient_s",
    "recompute_s",
    "reduce_s",
    "update_s",
    "activation_bytes",
    "weight_gradient_bytes",
    "checkpoint_bytes",
    "parameter_bytes",
)
_PER_EDGE = ("transfer_s", "latency_s", "message_bytes", "bytes_per_s")
_OPTIONAL = (
    "backward_s",
    "input_gradient_s",
    "weight_gradient_s",
    "recompute_s",
    "weight_gradient_bytes",
    "transfer_s",
)


def _check_number(name: str, number: object) -> None:
    if name == "bytes_per_s":
        if number != math.inf and (not is_amount(number) or number == 0):
            raise ArgumentError(f"a bandwidth is above 0; got {number!r} in {name}")
    elif not is_amount(number):
        noun = "a size" if name.endswith("bytes") else "a time"
        raise ArgumentError(f"{noun} is finite and not negative; got {number!r} in {name}")


def _rest(whole: tuple[float, ...], part: tuple[float, ...], name: str) -> tuple[float, ...]:
    for stage, (b, p) in enumerate(zip(whole, part, strict=True)):
        if p > b:
            raise ArgumentError(
                "a backward takes at least as long as its parts; "
                f"got backward_s={b} and {name}={p} for stage {stage}"
            )
    return tuple(b - p for b, p in zip(whole, part, strict=True))


def _check_parts(
    whole: tuple[float, ...], inputs: tuple[float, ...], weights: tuple[float, ...]
) -> None:
    for stage, (b, i, w) in enumerate(zip(whole, inputs, weights, strict=True)):
        if not math.isclose(b, i + w):
            raise ArgumentError(
                "a whole backward takes as long as its two parts together; "
                f"got backward_s={b}, input_gradient_s={i} and weight_gradient_s={w} for stage "
                f"{stage}; leave one of them out"
            )
