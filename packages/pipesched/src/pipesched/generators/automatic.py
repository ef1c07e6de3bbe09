"""Zero-bubble schedules for given costs and memory, by a heuristic; one stage on each rank.

Each stage warms up with some forwards, then runs an input gradient (I) and a forward in turn, as in
1F1B. Its weight gradients (W) go where they cost least:

- if the stage would wait for at least as long as a W takes, it runs a W;
- if it would wait for less, it runs a W if otherwise the sum of its waits would be larger than that
  of any stage so far;
- if the next action does not fit in memory, it runs W until it fits;
- the remaining W run at the end.

The heuristic tries several warm-ups: the number of forwards that are done when the first gradient
arrives, one more and one less, the warm-ups of 1F1B and of ZB-H2, all forwards, and numbers that
decrease evenly from stage to stage. Each is limited by the memory, and by the warm-up of the
previous stage. For the shorter waits it also tries to run a W always, and never. The fastest result
is taken. It also tries the handcrafted orders that fit in memory (1F1B with split backwards, ZB-H1,
ZB-H2), so the result is never slower than these. Times are exactly those of `pipesched.simulate`.

Reference:
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 3.1. In the paper, a second
    parameter skips forwards before the steady state, and there are fewer warm-ups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Literal

from pipesched.base.checks import check_kind, check_sizes, memory_limits
from pipesched.base.edge import Edge
from pipesched.base.kind import Kind
from pipesched.errors import InfeasibleError
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.order import numbered
from pipesched.schedule.costs import Costs
from pipesched.schedule.schedule import Schedule

_EQUAL = Costs(1.0, input_gradient_s=1.0, weight_gradient_s=1.0)

_Fill = Literal["always", "never", "largest"]


def zb_1p(n_stages: int, n_microbatches: int, *, costs: Costs = _EQUAL) -> Schedule:
    """ZB-1P: the best result of the heuristic in the memory of 1F1B, `n_stages` microbatches.

    Args:
        n_stages: Number of stages, with one on each rank.
        n_microbatches: Any number.
        costs: Seconds and links. Bytes only say which part of a microbatch a weight gradient needs.

    Raises:
        ArgumentError: There is no stage or no microbatch, or the costs are for other stages.
    """
    schedule = zb_auto(n_stages, n_microbatches, costs=costs, activation_cap=n_stages)
    return replace(schedule, name="zb-1p")


def zb_auto(
    n_stages: int,
    n_microbatches: int,
    *,
    costs: Costs = _EQUAL,
    activation_cap: float | Sequence[float] | None = None,
    memory_bytes: float | Sequence[float] | None = None,
    by_span: bool = False,
) -> Schedule:
    """The best schedule of the heuristic for these costs within this memory.

    Args:
        n_stages: Number of stages, with one on each rank.
        n_microbatches: Any number.
        costs: Seconds, links, and bytes. By default, F, I and W take the same time.
        activation_cap: The most microbatches that a rank may hold from the forward to the weight
            gradient, one number for all ranks or one for each; as in `pipesched.search`.
        memory_bytes: The most bytes that a rank may hold, one number for all ranks or one for each.
            Parameters are included, messages are not. Without both bounds, memory is not limited.
        by_span: Whether to minimise the longest time from a rank's first action to its last, as in
            equation 3 of the paper, instead of the time of the whole step. This is for optimizers
            that do not wait for all ranks.

    Raises:
        ArgumentError: There is no stage or no microbatch, both bounds are set, or bounds or costs
            are for other stages.
        InfeasibleError: The bound of a rank is too small for one microbatch.
    """
    check_sizes(n_stages, n_microbatches)
    problem = _problem(n_stages, n_microbatches, costs, activation_cap, memory_bytes)
    linear = range(n_stages, 0, -1)
    twice = range(2 * n_stages - 1, 0, -2)
    handcrafted = [
        (linear, [0] * n_stages),
        (linear, range(n_stages)),
        (twice, range(0, 2 * n_stages, 2)),
    ]
    attempts = [problem.run(warm_up, lag) for warm_up, lag in handcrafted]
    attempts = [attempt for attempt in attempts if attempt.fits]
    in_time = problem.in_time()
    most = problem.within_memory(in_time)[0]
    warm_ups = {
        problem.within_memory(warm_up): None
        for warm_up in (
            in_time,
            [n + 1 for n in in_time],
            [n - 1 for n in in_time],
            linear,
            twice,
            [n_microbatches] * n_stages,
            [-(-most * n // n_stages) for n in linear],
        )
    }
    fills: tuple[_Fill, ...] = ("largest", "always", "never")
    attempts += [problem.run(warm_up, fill) for warm_up, fill in product(warm_ups, fills)]
    best = min(attempts, key=lambda a: (a.span_s, a.makespan_s)[:: 1 if by_span else -1])
    steps = ([(kind, stage) for kind in kinds] for stage, kinds in enumerate(best.kinds))
    ranks = tuple(numbered(of_rank, n_microbatches) for of_rank in steps)
    return Schedule("zb-auto", n_stages, n_microbatches, ranks)


@dataclass(frozen=True, slots=True)
class _Attempt:
    kinds: list[list[Kind]]
    """The kinds of the actions of each rank, in order; each kind takes microbatches in order."""
    makespan_s: float
    span_s: float
    """From a rank's first start to its last stop, for the rank where it is longest."""
    fits: bool
    """Whether it keeps within the memory."""


@dataclass(slots=True)
class _Stage:
    """The state of a rank, as far as it is scheduled."""

    forwards: int = 0
    input_gradients: int = 0
    weight_gradients: int = 0
    start_s: float | None = None
    stop_s: float = 0.0
    waited_s: float = 0.0
    fits: bool = True


@dataclass(frozen=True, slots=True)
class _Problem:
    n_microbatches: int
    f: tuple[float, ...]
    i: tuple[float, ...]
    w: tuple[float, ...]
    down: tuple[tuple[float, float], ...]
    """For each stage, the seconds that its activations take on the link, and after it."""
    up: tuple[tuple[float, float], ...]
    """For each stage, the seconds that its gradients take on the link, and after it."""
    kept: tuple[float, ...]
    """For each stage, bytes held from F to I."""
    left: tuple[float, ...]
    """For each stage, bytes held from I to W."""
    cap: tuple[float, ...]
    """For each stage, the most bytes of both together."""

    def in_time(self) -> list[int]:
        """The number of forwards that each stage has done when its first gradient arrives."""
        n = len(self.f)
        starts = [0.0]
        for stage in range(n - 1):
            starts.append(starts[-1] + self.f[stage] + sum(self.down[stage]))
        gradient_s = starts[-1] + self.f[-1]
        counts = []
        for stage in reversed(range(n)):
            slowest = max(self.f[: stage + 1])
            more_s = gradient_s - starts[stage] - self.f[stage]
            counts.append(1 + int(more_s / slowest) if slowest else self.n_microbatches)
            if stage:
                gradient_s += self.i[stage] + sum(self.up[stage])
        return counts[::-1]

    def within_memory(self, warm_up: Iterable[int]) -> tuple[int, ...]:
        """The warm-ups, raised to at least 1 and limited by memory and by the previous stage."""
        clipped = []
        for count, kept, left, cap in zip(warm_up, self.kept, self.left, self.cap, strict=True):
            room = cap - max(0.0, left - kept)
            fitting = room / kept if kept else self.n_microbatches
            clipped.append(int(max(1, min(count, fitting, self.n_microbatches))))
        return tuple(accumulate(clipped, min))

    def run(self, warm_up: Sequence[int], weights: Sequence[int] | _Fill) -> _Attempt:
        """Schedule all actions, each as early as possible.

        Args:
            warm_up: Forwards of each stage before its first input gradient.
            weights: How many weight gradients each stage delays, whatever the memory; or a rule for
                when to run one in a wait that is shorter than it.
        """
        n, m = len(self.f), self.n_microbatches
        stages = [_Stage() for _ in range(n)]
        kinds: list[list[Kind]] = [[] for _ in range(n)]
        longest_wait_s = 0.0
        # When the inputs of each stage have arrived. Stage 0 has its activations from the start.
        # The last stage gets its gradients from its own forwards.
        activations: list[list[float]] = [[0.0] * m] + [[] for _ in range(n - 1)]
        gradients: list[list[float]] = [[] for _ in range(n)]
        free_s = {"down": [0.0] * n, "up": [0.0] * n}
        todo = list(range(n))
        while todo:
            stage = todo.pop()
            at = stages[stage]
            while at.input_gradients < m:
                ahead = at.forwards < min(m, warm_up[stage] + at.input_gradients)
                arrived = activations[stage] if ahead else gradients[stage]
                count = at.forwards if ahead else at.input_gradients
                if count >= len(arrived):
                    break
                self._wait(stage, at, kinds[stage], arrived[count], ahead, weights, longest_wait_s)
                ready_s = max(at.stop_s, arrived[count])
                if at.start_s is None:
                    at.start_s = ready_s
                else:
                    at.waited_s += ready_s - at.stop_s
                    longest_wait_s = max(longest_wait_s, at.waited_s)
                if ahead:
                    at.stop_s = ready_s + self.f[stage]
                    at.forwards += 1
                    kinds[stage].append(Kind.FORWARD)
                    if stage == n - 1:
                        gradients[stage].append(at.stop_s)
                    else:
                        self._send("down", stage, at.stop_s, free_s, activations[stage + 1])
                        todo.append(stage + 1)
                else:
                    at.stop_s = ready_s + self.i[stage]
                    at.input_gradients += 1
                    kinds[stage].append(Kind.INPUT_GRADIENT)
                    if stage:
                        self._send("up", stage, at.stop_s, free_s, gradients[stage - 1])
                        todo.append(stage - 1)
                at.fits = at.fits and self._held(stage, at) <= self.cap[stage]
                if not isinstance(weights, str) and (
                    at.input_gradients - at.weight_gradients > weights[stage]
                ):
                    self._weight(stage, at, kinds[stage])
        for stage, at in enumerate(stages):
            while at.weight_gradients < m:
                self._weight(stage, at, kinds[stage])
        return _Attempt(
            kinds,
            max(at.stop_s for at in stages),
            max(at.stop_s - (at.start_s or 0.0) for at in stages),
            all(at.fits for at in stages),
        )

    def _wait(
        self,
        stage: int,
        at: _Stage,
        order: list[Kind],
        ready_s: float,
        ahead: bool,
        weights: Sequence[int] | _Fill,
        longest_wait_s: float,
    ) -> None:
        """Run the weight gradients that go before an action which could start at `ready_s`."""
        if not isinstance(weights, str):
            return
        needed = self.kept[stage] if ahead else self.left[stage] - self.kept[stage]
        while at.weight_gradients < at.input_gradients:
            wait_s = ready_s - at.stop_s
            if self._held(stage, at) + needed <= self.cap[stage]:
                if wait_s <= 0:
                    break
                if wait_s < self.w[stage] and (
                    weights == "never"
                    or (weights == "largest" and at.waited_s + wait_s <= longest_wait_s)
                ):
                    break
            self._weight(stage, at, order)

    def _weight(self, stage: int, at: _Stage, order: list[Kind]) -> None:
        order.append(Kind.WEIGHT_GRADIENT)
        at.weight_gradients += 1
        at.stop_s += self.w[stage]

    def _held(self, stage: int, at: _Stage) -> float:
        kept = (at.forwards - at.input_gradients) * self.kept[stage]
        return kept + (at.input_gradients - at.weight_gradients) * self.left[stage]

    def _send(
        self,
        way: Literal["down", "up"],
        stage: int,
        produced_s: float,
        free_s: dict[str, list[float]],
        arrivals: list[float],
    ) -> None:
        transfer_s, latency_s = (self.down if way == "down" else self.up)[stage]
        left_s = max(produced_s, free_s[way][stage]) + transfer_s
        free_s[way][stage] = left_s
        arrivals.append(left_s + latency_s)


def _problem(
    n_stages: int,
    n_microbatches: int,
    costs: Costs,
    activation_cap: float | Sequence[float] | None,
    memory_bytes: float | Sequence[float] | None,
) -> _Problem:
    bounds = memory_limits(n_stages, activation_cap, memory_bytes)
    check_kind("costs", costs, Costs)
    kept = costs.sizes("activation_bytes", n_stages)
    left = costs.sizes("weight_gradient_bytes", n_stages)
    fixed = costs.sizes("parameter_bytes", n_stages)
    if activation_cap is not None and not all(kept):
        kept, left = (1.0,) * n_stages, (1.0,) * n_stages
    caps = []
    for rank, value in enumerate(bounds):
        cap = value * kept[rank] if activation_cap is not None else value - fixed[rank]
        needed = max(kept[rank], left[rank])
        if cap < needed:
            raise InfeasibleError(
                f"a rank holds at least one microbatch, which takes {needed} bytes on rank {rank}; "
                f"got activation_cap={activation_cap} and memory_bytes={memory_bytes}, which "
                f"leaves {cap} bytes; raise the bound"
            )
        caps.append(cap)
    stages = range(n_stages)
    return _Problem(
        n_microbatches,
        costs.seconds(Kind.FORWARD, n_stages),
        costs.seconds(Kind.INPUT_GRADIENT, n_stages),
        costs.seconds(Kind.WEIGHT_GRADIENT, n_stages),
        tuple(costs.link_s(_edge(Kind.FORWARD, s, s + 1)) for s in stages[:-1]),
        ((0.0, 0.0), *(costs.link_s(_edge(Kind.BACKWARD, s, s - 1)) for s in stages[1:])),
        kept,
        left,
        tuple(caps),
    )


def _edge(kind: Kind, src: int, dst: int) -> Edge:
    return Edge((kind, src), (kind, dst))


ENTRIES = (ScheduleEntry("zb-1p", zb_1p), ScheduleEntry("zb-auto", zb_auto))
