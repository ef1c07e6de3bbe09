"""The values of this package: the cost of a stage, a slicing, and the time of a pipeline.

Equation and section numbers are those of Alpa (Zheng et al., OSDI 2022).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from numbers import Integral

from shardspec.amounts import seconds_text

from stagecut.base.checks import is_amount, is_count, is_plain_amount
from stagecut.errors import InvalidInputError

Submesh = tuple[int, int]
"""Number of hosts, and of devices on each host."""

Span = tuple[int, int, Submesh]
"""First layer, last layer (included) and submesh of a stage."""


NUMBERS = "time_s", "fixed_bytes", "activation_bytes", "once_s", "temporary_bytes"
"""The fields of a `StageCost` that are numbers. A `PriceCache` keeps them in this order."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Time and memory, per device, of running some layers on some submesh."""

    time_s: float
    """Forward and backward of one microbatch."""
    fixed_bytes: int
    """Parameters, gradients and optimizer state: taken all the time, whatever the schedule."""
    activation_bytes: int
    """Kept between forward and backward for each microbatch in flight."""
    once_s: float = 0.0
    """Work done once a step, after the last microbatch: reducing gradients, the optimizer."""
    temporary_bytes: int = 0
    """Needed in addition while a microbatch is computed, and free again after it."""
    option: Hashable = None
    """How the stage is run for this cost, such as its logical mesh. The search does not read it;
    the slicing carries it to the caller."""

    def __post_init__(self) -> None:
        # A search makes millions of costs, nearly all of plain numbers.
        own = self.time_s, self.once_s, self.fixed_bytes, self.activation_bytes
        if all(map(is_plain_amount, (*own, self.temporary_bytes))):
            return
        numbers = {name: getattr(self, name) for name in NUMBERS}
        if not all(map(is_amount, numbers.values())):
            raise InvalidInputError(
                "a stage cost is finite and not negative; return None for a stage that cannot run; "
                f"got {', '.join(f'{name}={value!r}' for name, value in numbers.items())}"
            )
        for name, value in numbers.items():
            if type(value) not in (int, float):  # numbers of numpy cannot be written to JSON
                plain = int(value) if isinstance(value, Integral) else float(value)
                object.__setattr__(self, name, plain)

    def peak_bytes(self, in_flight: int) -> int:
        """Peak memory with `in_flight` microbatches between forward and backward (Eq. 5)."""
        return self.fixed_bytes + self.temporary_bytes + in_flight * self.activation_bytes


@dataclass(frozen=True, slots=True)
class StageSlice:
    """One stage: a run of layers, its submesh, and its cost on that submesh."""

    first: int
    last: int
    """Included."""
    submesh: Submesh
    cost: StageCost


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best slicing with some number of stages."""

    spans: tuple[Span, ...]
    time_s: float
    """Time of one step; a lower bound of it unless `is_priced`."""
    is_priced: bool
    """Whether every stage was priced; if not, its lower bound already ruled it out."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Something that the search considered and rejected, with the reason."""

    what: str
    """What was rejected, such as "3 stages"."""
    reason: str


@dataclass(frozen=True, slots=True)
class Slicing:
    """Stages in pipeline order, with the evidence that they were the right choice."""

    stages: tuple[StageSlice, ...]
    time_s: float
    """Time of one step (Eq. 2)."""
    lower_bound_s: float
    """No slicing that was considered takes less; equal to `time_s` if the search ran to its end."""
    n_priced: int
    """How often the cost function was called."""
    alternatives: tuple[Alternative, ...]
    """The best slicing for each possible number of stages, the chosen number included."""
    rejected: tuple[Rejection, ...] = ()
    """Impossible numbers of stages, and numbers of microbatches that were not chosen."""
    n_microbatches: int | None = None
    """The number that the search chose; None if the slicing does not come from a search."""

    def __str__(self) -> str:
        lines = [
            f"{len(self.stages)} stages, {seconds_text(self.time_s)} a step, at best "
            f"{seconds_text(self.lower_bound_s)}; {self.n_priced} stages priced"
        ]
        lines += [
            f"  layers {stage.first}-{stage.last} on {stage.submesh[0]}x{stage.submesh[1]}: "
            f"{seconds_text(stage.cost.time_s)} a microbatch"
            for stage in self.stages
        ]
        lines += [
            f"  rejected: {len(other.spans)} stages, "
            f"{'' if other.is_priced else 'at least '}{seconds_text(other.time_s)}"
            for other in self.alternatives
            if len(other.spans) != len(self.stages)
        ]
        lines += [f"  rejected: {other.what}, {other.reason}" for other in self.rejected]
        return "\n".join(lines)


CostFunction = Callable[..., StageCost | Sequence[StageCost] | None]
"""The options to run some layers on some submesh; None if they cannot run there.

Arguments: first layer, last layer (included) and submesh. If the number of microbatches is searched
as well, it is the fourth argument; the functions below get it as an additional last argument, too.
"""

MemoryLimit = int | Callable[[Submesh], int] | None
"""Memory of one device in bytes; a function of the submesh where devices differ; None for no
limit."""

BoundFunction = Callable[..., float]
"""A lower bound, in seconds, of the times that a `CostFunction` returns for the same arguments."""

BoundaryFunction = Callable[..., float]
"""Seconds to bring the values of one microbatch into a stage that begins with a layer.

Argument: the layer.
"""


def pipeline_time_s(
    stage_s: Sequence[float], n_microbatches: int, once_s: Sequence[float] | None = None
) -> float:
    """Time of one step under GPipe or synchronous 1F1B (Eq. 2).

    The first microbatch passes through all stages; each further one adds the time of the slowest
    stage. Work done once a step counts only if it makes its stage the slowest: other stages do it
    while they would otherwise wait.

    Args:
        stage_s: Seconds of one microbatch, forward and backward, for each stage.
        n_microbatches: Microbatches of a step.
        once_s: Seconds of the work done once a step, for each stage; None for none. This term is
            not in Eq. 2.

    Returns:
        Seconds.

    Raises:
        InvalidInputError: There is no stage or no microbatch, the two sequences differ in length,
            or a time is negative or not finite.

    Examples:
        >>> pipeline_time_s((1.0, 3.0), 4)
        13.0
        >>> pipeline_time_s((1.0, 3.0), 4, once_s=(7.0, 0.5))
        14.0
    """
    once_s = [0.0] * len(stage_s) if once_s is None else once_s
    times_s = *stage_s, *once_s
    fits = len(stage_s) == len(once_s) > 0
    if not (fits and is_count(n_microbatches) and all(map(is_amount, times_s))):
        raise InvalidInputError(
            "a pipeline has at least one stage and one microbatch, and for each stage times that "
            f"are finite and not negative; got stage_s={tuple(stage_s)}, "
            f"n_microbatches={n_microbatches!r} and once_s={tuple(once_s)}"
        )
    slowest_s = max(
        (n_microbatches - 1) * each + once for each, once in zip(stage_s, once_s, strict=True)
    )
    return sum(stage_s) + slowest_s
