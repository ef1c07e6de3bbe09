"""The values: what a stage costs, what a slicing is, and how long its pipeline takes.

Eq. and section numbers are those of Alpa (Zheng et al., OSDI 2022).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from numbers import Integral

from shardspec.amounts import seconds_text

from stagecut.base.checks import is_amount, is_count
from stagecut.errors import InvalidInputError

Submesh = tuple[int, int]
"""Hosts and devices per host."""

Span = tuple[int, int, Submesh]
"""First layer, last layer (included) and submesh of a stage."""


_NUMBERS = "time_s", "fixed_bytes", "activation_bytes", "once_s", "temporary_bytes"
"""The fields of a `StageCost` that are numbers."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """What running some layers on some submesh costs, per device."""

    time_s: float
    """Forward and backward of one microbatch."""
    fixed_bytes: int
    """Parameters, gradients, optimizer state: there whatever the schedule."""
    activation_bytes: int
    """Kept between forward and backward for each microbatch in flight."""
    once_s: float = 0.0
    """Work done once a step, after the last microbatch: reducing gradients, the optimizer."""
    temporary_bytes: int = 0
    """Needed on top while a microbatch is computed, and free again after it."""
    option: Hashable = None
    """How the stage is run for this cost, such as its logical mesh. Only carried along."""

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        if not all(map(is_amount, numbers.values())):
            raise InvalidInputError(
                "a stage cost is finite and not negative; return None for a stage that cannot run; "
                f"got {', '.join(f'{name}={value!r}' for name, value in numbers.items())}"
            )
        for name, value in numbers.items():
            if type(value) not in (int, float):  # those of numpy are not written to JSON
                plain = int(value) if isinstance(value, Integral) else float(value)
                object.__setattr__(self, name, plain)

    def peak_bytes(self, in_flight: int) -> int:
        """Memory with `in_flight` microbatches between their forward and backward (Eq. 5)."""
        return self.fixed_bytes + self.temporary_bytes + in_flight * self.activation_bytes


@dataclass(frozen=True, slots=True)
class StageSlice:
    """A run of layers, its submesh and what it costs there."""

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
    """Of one step; a lower bound of it unless `is_priced`."""
    is_priced: bool
    """Whether every stage was priced; otherwise its bound already ruled it out."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Something that was not taken, and why."""

    what: str
    """Such as "3 stages"."""
    reason: str


@dataclass(frozen=True, slots=True)
class Slicing:
    """Stages in pipeline order, and why these."""

    stages: tuple[StageSlice, ...]
    time_s: float
    """Of one step (Eq. 2)."""
    lower_bound_s: float
    """No slicing that was considered takes less; equal to `time_s` if the search ran to its end."""
    n_priced: int
    """How often the cost was asked for."""
    alternatives: tuple[Alternative, ...]
    """The best for each number of stages that is possible, the chosen number included."""
    rejected: tuple[Rejection, ...] = ()
    """What else was looked at: numbers of stages that are impossible, numbers of microbatches."""
    n_microbatches: int | None = None
    """That the search took; None if the slicing is not of a search."""

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
"""Of first layer, last layer and submesh: the ways to run them there; None if there is none.

If the number of microbatches is searched, it is told that too, as a fourth argument. So are the
functions below.
"""

BoundFunction = Callable[..., float]
"""Of the same: seconds that a `CostFunction` never falls below."""

BoundaryFunction = Callable[..., float]
"""Of a layer: seconds to bring one microbatch's values into a stage that begins there."""


def pipeline_time_s(
    stage_s: Sequence[float], n_microbatches: int, once_s: Sequence[float] | None = None
) -> float:
    """Time of one step under GPipe or synchronous 1F1B (Eq. 2).

    The first microbatch passes all stages; each further one adds the slowest stage. Work done once
    a step counts where it makes a stage the slowest: elsewhere a stage does it while it would wait.

    Args:
        stage_s: Seconds of one microbatch, forward and backward, for each stage.
        n_microbatches: Microbatches of a step.
        once_s: Seconds of the work done once a step, for each stage; None for none. It is not in
            Eq. 2.

    Returns:
        Seconds.

    Raises:
        InvalidInputError: There is no stage, no microbatch, or a time is none.

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
            "a pipeline has a stage and a microbatch, and for each stage times that are finite and "
            f"not negative; got stage_s={tuple(stage_s)}, n_microbatches={n_microbatches!r} and "
            f"once_s={tuple(once_s)}"
        )
    slowest_s = max(
        (n_microbatches - 1) * each + once for each, once in zip(stage_s, once_s, strict=True)
    )
    return sum(stage_s) + slowest_s
