"""Finds a schedule for given costs and memory, with a bound on how far from the best it can be.

The search tries these schedules in order, until a lower bound proves that nothing is better, or the
steps are used up:

1. the known schedules of the placement that keep within the memory, so that the result is never
   worse than any of them;
2. greedy schedules (beams of width 1): one that starts every forward as early as possible, and some
   that keep fewer microbatches in flight than would fit, see
   `pipesched.solver.packed_state.busy_depths`. If the memory is filled as early as possible, all
   ranks wait for the same few microbatches [measured: at 8 ranks, 32 microbatches, F = 2, B = 4,
   latency 1 and a cap of 12, 268 s instead of 258 s];
3. beams of growing width, see `pipesched.solver.beam`; a beam that drops no partial schedule proves
   its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import Any

from pipesched.base.action import Action
from pipesched.base.checks import check_kind, check_sizes, is_count, memory_limits
from pipesched.base.edge import Edge, chain, checked_edges
from pipesched.base.kind import Kind
from pipesched.base.placement import Placement
from pipesched.errors import ArgumentError, InfeasibleError
from pipesched.generators.schedules import make
from pipesched.schedule.costs import Costs
from pipesched.schedule.schedule import Schedule
from pipesched.solver.beam import Path, beam_search, root
from pipesched.solver.packed_state import (
    alone,
    fitting_share,
    lanes_of,
    memory_bound_s,
    with_depths,
)
from pipesched.solver.partial_schedule import Moves


@dataclass(frozen=True, slots=True)
class Found:
    """The schedule that a search found, with a lower bound."""

    schedule: Schedule
    """The best schedule that was found."""
    makespan_s: float
    """Its makespan, as `simulate` computes it."""
    lower_bound_s: float
    """No schedule of this placement within this memory takes less."""
    trace: tuple[tuple[int, float, str], ...]
    """For each schedule that was better than all before it: the number of steps so far, its
    makespan in seconds, and the name of the method that found it."""

    @property
    def gap(self) -> float:
        """The largest share of the makespan that could be saved; 0.0 if the schedule is optimal."""
        return 1.0 - self.lower_bound_s / self.makespan_s if self.makespan_s else 0.0


def search(
    n_stages: int,
    n_microbatches: int,
    costs: Costs,
    *,
    activation_cap: float | Sequence[float] | None = None,
    memory_bytes: float | Sequence[float] | None = None,
    placement: Placement | None = None,
    edges: Sequence[Edge] | None = None,
    split_backward: bool = False,
    steps: int = 2500,
) -> Found:
    """The best schedule that the search finds within a number of steps.

    The result is deterministic. A step continues one partial schedule by one action, which takes
    time proportional to the number of kinds of actions, stages and routes. `steps` limits the
    number of steps, except for one greedy schedule, which takes as many steps as there are actions
    and is always computed.

    Args:
        n_stages: Number of stages.
        n_microbatches: Number of microbatches.
        costs: Seconds, links, and bytes for `memory_bytes`.
        activation_cap: The most microbatches that a rank may hold, one number for all ranks or one
            for each. A microbatch is held from its forward to its backward, once for each stage of
            the rank. From the input gradient to the weight gradient, the costs say which part of it
            is held; by default all of it.
        memory_bytes: The most bytes that a rank may hold, one number for all ranks or one for each.
            Parameters are included. Messages are not, because their memory depends on when they
            arrive, and not on the order. Without both bounds, memory is not limited.
        placement: The rank that runs each stage; one stage on each rank if None.
        edges: The results that stages pass to each other; `chain(n_stages)` if None.
        split_backward: Whether backwards are split into input and weight gradients.
        steps: The limit on the number of steps, see above.

    Raises:
        ArgumentError: Both bounds are set, a bound is for another number of ranks, the costs are
            for another number of stages or have no backward, or the sizes are not allowed.
        InfeasibleError: The bound of a rank is too small for one microbatch.

    Examples:
        >>> found = search(4, 8, Costs(2.0, 4.0, latency_s=1.0), activation_cap=4)
        >>> found.makespan_s, found.gap
        (80.0, 0.0)
    """
    check_sizes(n_stages, n_microbatches)
    placement = Placement.linear(n_stages) if placement is None else placement
    edges = chain(n_stages) if edges is None else checked_edges(edges, n_stages)
    check_kind("placement", placement, Placement)
    check_kind("costs", costs, Costs)
    if not is_count(steps, 0):
        raise ArgumentError(f"steps are a whole number from 0 on; got steps={steps!r}")
    # This also checks that placement and edges fit these stages and microbatches.
    empty = Schedule(
        "search", n_stages, n_microbatches, ((),) * placement.n_ranks, placement, edges
    )
    return _Search(empty, costs, activation_cap, memory_bytes, split_backward).run(steps)


class _Search:
    """The state of one search: the lanes, and the best schedule so far."""

    def __init__(
        self,
        empty: Schedule,
        costs: Costs,
        activation_cap: float | Sequence[float] | None,
        memory_bytes: float | Sequence[float] | None,
        split: bool,
    ) -> None:
        self.empty, self.costs = empty, costs
        self.activations, self.weight_gradients, bounds = _memory(
            empty, costs, activation_cap, memory_bytes
        )
        self.split = split
        self.sizes = empty.n_stages, empty.n_microbatches
        self.lanes = lanes_of(
            empty.n_microbatches,
            costs,
            empty.placement,
            empty.edges,
            self.activations,
            self.weight_gradients if split else None,
            bounds,
        )
        self.moves = Moves(self.lanes)
        self.best: Path = None
        self.makespan_s = inf
        self.lower_bound_s = max(root(self.moves).bound_s, memory_bound_s(self.lanes))
        self.n_steps = 0
        self.trace: list[tuple[int, float, str]] = []

    def run(self, steps: int) -> Found:
        for name, options in self.known():
            if self.lower_bound_s < self.makespan_s:
                try:
                    self.replay(make(name, *self.sizes, **options))
                except ArgumentError:  # this schedule is not defined for these sizes
                    continue
        n_actions, fitting = self.lanes.n_actions, fitting_share(self.lanes)
        limited = self.moves
        for factor in (1.0, 1.25, inf, 1.6, 2.0):
            if self.n_steps == 0 or self.n_steps + n_actions <= steps:
                moves, name = self.moves, "greedy"
                if factor < inf:
                    moves = Moves(with_depths(self.lanes, factor * fitting))
                    name = f"greedy, {factor * fitting:.3g} of the depth"
                if self.beam(moves, 1, name):
                    limited = moves
        self.relax(steps)
        width = 4
        while self.lower_bound_s < self.makespan_s and self.n_steps + n_actions * width <= steps:
            self.beam(self.moves, width, f"beam of {width}")
            if limited is not self.moves and self.n_steps + n_actions * width <= steps:
                self.beam(limited, width, f"beam of {width}, limited depth")
            width *= 4
        if self.best is None:
            self.one_by_one()
        return Found(
            self.schedule(),
            self.makespan_s,
            min(self.lower_bound_s, self.makespan_s),
            tuple(self.trace),
        )

    def known(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Names and options of known schedules for the placement, also ones that do not fit."""
        placement, n_stages = self.empty.placement, self.empty.n_stages
        n_ranks = placement.n_ranks
        n_chunks = n_stages // n_ranks
        if placement == Placement.linear(n_stages):
            yield "1f1b", {}
            fitting = [self.fitting(rank) for rank in range(n_ranks)]
            plain = range(n_ranks, 0, -1)
            for wanted in (plain, range(2 * n_ranks - 1, 0, -2)):
                depths = list(accumulate(map(min, wanted, fitting), min))
                if depths != list(plain):
                    yield "eager-1f1b", {"depth": depths}
            yield "gpipe", {}
            if self.split:
                yield "zb-h1", {}
                yield "zb-h2", {}
                costs = replace(
                    self.costs,
                    activation_bytes=self.activations,
                    weight_gradient_bytes=self.weight_gradients,
                    parameter_bytes=0,
                )
                yield "zb-auto", {"costs": costs, "memory_bytes": self.lanes.bounds}
        elif placement == Placement.v(n_ranks):
            for name in ("zb-v", "v-half", "v-min", "dualpipe-v"):
                yield name, {}
        elif n_stages == n_chunks * n_ranks and placement == Placement.looped(n_ranks, n_chunks):
            yield "interleaved-1f1b", {"n_chunks": n_chunks}
            yield "looped-bfs", {"n_chunks": n_chunks}
        elif placement == Placement.bidirectional(n_ranks, self.empty.n_microbatches):
            yield "chimera", {}
            yield "dualpipe", {}

    def fitting(self, rank: int) -> int:
        """How many microbatches of its stage fit into the memory of a rank."""
        size, n_microbatches = self.activations[rank], self.empty.n_microbatches
        bound = self.lanes.bounds[rank]
        return max(1, int(min(n_microbatches, bound / size))) if size else n_microbatches

    def replay(self, schedule: Schedule) -> None:
        """Keep a known schedule if it fits into memory and is better than the best so far."""
        moves = self.moves
        number_of = {
            (lane.kind, lane.stage, microbatch): number
            for number, lane in enumerate(moves.lanes)
            for microbatch in lane.microbatches
        }
        orders: list[list[int]] = []
        for actions in schedule.ranks:
            parts = [(part, a) for a in actions for part in self.parts(a.kind)]
            if any((part, a.stage, a.microbatch) not in number_of for part, a in parts):
                return  # the schedule has split backwards, and this search has whole ones
            orders.append([number_of[part, a.stage, a.microbatch or 0] for part, a in parts])
        state = moves.start()
        path: Path = None
        left = [list(reversed(order)) for order in orders]
        while any(left):
            for rank, order in enumerate(left):
                while order and moves.has_needed(state, order[-1]):
                    number = order.pop()
                    state, path = moves.run(state, number), (path, number)
                    if state.held[rank] > moves.bounds[rank]:
                        return
        self.keep_if_better(path, max(state.free_s), schedule.name)

    def parts(self, kind: Kind) -> tuple[Kind, ...]:
        """The kinds that an action becomes in this search: a whole backward may become two."""
        if self.split and kind is Kind.BACKWARD:
            return Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT
        return (kind,)

    def relax(self, steps: int) -> None:
        """Raise the lower bound to the time that each rank takes alone, see `packed_state.alone`.

        This is only done with whole backwards. Weight gradients can fill any gap, and a narrow beam
        then proves nothing [measured: at 8 ranks and 32 microbatches, width 512 still does not].
        """
        for rank, bound in enumerate(self.lanes.bounds):
            if self.split or self.n_steps >= steps or self.lower_bound_s >= self.makespan_s:
                return
            if bound < inf:
                moves = Moves(alone(self.lanes, rank))
                greedy = beam_search(moves, 1)
                self.n_steps += greedy.n_steps
                if greedy.node is None or greedy.node.bound_s > self.lower_bound_s:
                    beam = beam_search(moves, 8, self.makespan_s)
                    self.n_steps += beam.n_steps
                    self.raise_bound(beam.bound_s)

    def raise_bound(self, bound_s: float) -> None:
        self.lower_bound_s = max(self.lower_bound_s, min(bound_s, self.makespan_s))

    def beam(self, moves: Moves, width: int, name: str) -> bool:
        """Run a beam search; returns whether it found a schedule better than the best so far."""
        if self.lower_bound_s >= self.makespan_s:
            return False
        beam = beam_search(moves, width, self.makespan_s)
        self.n_steps += beam.n_steps
        if moves is self.moves:
            self.raise_bound(beam.bound_s)
        if beam.node is not None:
            self.keep_if_better(beam.node.path, beam.node.bound_s, name)
        return beam.node is not None

    def keep_if_better(self, path: Path, makespan_s: float, name: str) -> None:
        if makespan_s < self.makespan_s:
            self.best, self.makespan_s = path, makespan_s
            self.trace.append((self.n_steps, makespan_s, name))

    def one_by_one(self) -> None:
        """Run one microbatch after the other, which needs the least memory of all schedules."""
        moves = self.moves
        state = moves.start()
        path: Path = None
        for microbatch in range(self.empty.n_microbatches):
            for number, lane in enumerate(moves.lanes):
                if microbatch in lane.microbatches:
                    state, path = moves.run(state, number), (path, number)
        self.keep_if_better(path, max(state.free_s), "one by one")

    def schedule(self) -> Schedule:
        """The best schedule so far."""
        numbers: list[int] = []
        path = self.best
        while path is not None:
            path, number = path
            numbers.append(number)
        ranks: list[list[Action]] = [[] for _ in self.empty.ranks]
        n_run = [0] * len(self.lanes.lanes)
        for number in reversed(numbers):
            lane = self.lanes.lanes[number]
            microbatch = lane.microbatches[n_run[number]]
            ranks[lane.rank].append(Action(lane.kind, lane.stage, microbatch))
            n_run[number] += 1
        return replace(self.empty, ranks=tuple(map(tuple, ranks)))


def _memory(
    empty: Schedule,
    costs: Costs,
    activation_cap: float | Sequence[float] | None,
    memory_bytes: float | Sequence[float] | None,
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Bytes of activations and of weight gradients per stage, and the limit of each rank."""
    placement = empty.placement
    bounds = memory_limits(len(empty.ranks), activation_cap, memory_bytes)
    activations = costs.sizes("activation_bytes", empty.n_stages)
    weights = costs.sizes("weight_gradient_bytes", empty.n_stages)
    if activation_cap is not None:
        weights = tuple(w / a if a else 0.0 for w, a in zip(weights, activations, strict=True))
        activations = (1,) * empty.n_stages
    elif memory_bytes is not None:
        parameters = costs.sizes("parameter_bytes", empty.n_stages)
        bounds = tuple(
            bound - sum(parameters[stage] for stage in placement.stages_of(rank))
            for rank, bound in enumerate(bounds)
        )
    for route in placement.routes:
        for rank, bound in enumerate(bounds):
            kept = sum(
                max(activations[s], weights[s]) for s, of_s in enumerate(route) if of_s == rank
            )
            if kept > bound:
                raise InfeasibleError(
                    "a rank needs memory for one microbatch of each of its stages beside their "
                    f"parameters; got {bound:g} left on rank {rank}, where one takes {kept:g}; "
                    "raise the bound, or recompute"
                )
    return activations, weights, bounds
