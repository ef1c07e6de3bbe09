"""`shard` finds the best sharding of a graph on a mesh; `prepare` does so in two steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import get_args

from costmodel import Cluster
from shardspec import Mesh
from shardspec.amounts import seconds_text

from autoshard.answer.decode import decode
from autoshard.answer.largest_first import Stored, fewest_sharded
from autoshard.answer.sharding import Sharding
from autoshard.answer.sharding_fields import Alternative
from autoshard.base.checks import of_class
from autoshard.errors import (
    AutoshardError,
    BaselineError,
    InfeasibleError,
    OptionError,
    PinError,
)
from autoshard.graph.graph import Graph, verify
from autoshard.problem.from_graph import Built, build
from autoshard.problem.pin import Pin, kept_strategies, restricted
from autoshard.problem.solution import Incumbent, relative_gap
from autoshard.solvers.session import CLOSED
from autoshard.solvers.solve import solve
from autoshard.solvers.staged import Level, solve_quickly
from autoshard.space.baseline import Baseline, baseline_inputs, check_baseline
from autoshard.space.conversion import Converter, converter_of
from autoshard.space.options import MemoryRule, Options

STEPS = 50
"""The default budget of each solve, in steps, so that the result is the same on every machine. It
ends solves that are not proved earlier; fifty rounds of `auto`, of about 0.1 s on large problems,
take some seconds."""

FINENESS = 1000
"""The smallest limit that can be kept is searched to one part in this, or to the byte if that is
less than a byte [chosen: ten tries or fewer]."""


def shard(
    graph: Graph,
    mesh: Mesh,
    cluster: Cluster,
    *,
    memory_bytes: int | None = None,
    memory_rule: MemoryRule = "limit",
    in_flight: int = 1,
    restrict: Baseline | None = None,
    pin: Mapping[str, Pin] | None = None,
    uneven: bool = False,
    strided: bool = False,
    overlap: float = 0.0,
    bucket_bytes: int | None = None,
    compare: bool = True,
    tie: bool = False,
    coarse: Level | None = None,
    polish: bool = False,
    method: str = "auto",
    time_s: float = 60.0,
    steps: int | None = STEPS,
    gap: float = 0.0,
    progress: Callable[[Incumbent], None] | None = None,
) -> Sharding:
    """Find the sharding of a graph on a mesh that takes the least time.

    Args:
        graph: The program, well-formed (`verify`).
        mesh: The devices to use.
        cluster: Prices compute and communication; it has to contain the mesh's devices.
        memory_bytes: The most that a device may hold; `None` is no limit.
        memory_rule: How the limit is kept: by a constraint of the search, or by sharding the
            largest parameters.
        in_flight: Microbatches whose saved activations are held at a time.
        restrict: Consider only shardings that store the inputs as this baseline does.
        pin: By name, the strategy of an operator, or the specs in which an input may be stored or a
            result computed.
        uneven: Whether dims may be split unevenly, at the price of the padding; see
            `enumerate_strategies`, as for `strided`.
        strided: Whether shards may be strided.
        overlap: The fraction of a phase's communication that runs while it computes (as far as its
            compute lasts); the search minimises the rest. At least 0 and below 1.
        bucket_bytes: Report what buckets of this size would save (`Sharding.bucketed_s`).
        compare: Price the baselines too, keep them as `alternatives`, and return the best of all.
            If nothing fits, also search for the smallest limit that can be kept. A planner that
            prices many graphs may pass False; then an error has the smallest peak that the search
            came across.
        tie: Whether repeated layers take the same strategies; see `solve_quickly`, as for `coarse`
            and `polish`.
        coarse: "O2" chooses for groups of operators.
        polish: Whether to go on from there, choosing for every operator.
        method: One of `METHODS`; see `solve`, as for `steps` and `gap`.
        time_s: Stop the solver after this many seconds: up to twice that under a memory limit, and
            as much again for each baseline.
        steps: The budget of each solve; with `None`, only the time ends it.
        gap: Stop a solve when its relative gap is at most this.
        progress: Called with each improvement in each solve.

    Returns:
        The best sharding found; with `compare`, it is no worse than any baseline.

    Raises:
        GraphError: the graph is not well-formed.
        OptionError: mesh, cluster or an option has the wrong type or is out of range.
        ProblemError: the method or level is unknown, or a budget is not positive.
        InfeasibleError: nothing fits in `memory_bytes`. The error has the smallest limit that was
            found to fit, and the largest tensors.
        BaselineError: the inputs cannot be stored as `restrict` requires.
        PinError: a pin names something unknown, or a choice that is not possible.
    """
    options = Options(
        in_flight=in_flight,
        uneven=uneven,
        strided=strided,
        overlap=overlap,
        bucket_bytes=bucket_bytes,
    )
    prepared = prepare(graph, mesh, cluster, options)
    return prepared.solve(
        memory_bytes=memory_bytes,
        memory_rule=memory_rule,
        restrict=restrict,
        pin=pin,
        compare=compare,
        tie=tie,
        coarse=coarse,
        polish=polish,
        method=method,
        time_s=time_s,
        steps=steps,
        gap=gap,
        progress=progress,
    )


def baseline(
    graph: Graph,
    mesh: Mesh,
    cluster: Cluster,
    name: Baseline,
    *,
    memory_bytes: int | None = None,
    in_flight: int = 1,
) -> Sharding:
    """The best sharding that stores the inputs as a baseline does; see `baseline_inputs`."""
    check_baseline(name)
    return shard(
        graph, mesh, cluster, memory_bytes=memory_bytes, in_flight=in_flight, restrict=name
    )


def prepare(graph: Graph, mesh: Mesh, cluster: Cluster, options: Options | None = None) -> Prepared:
    """Build the problem of sharding a graph once, to solve it several times.

    Args:
        graph: As for `shard`.
        mesh: As for `shard`.
        cluster: As for `shard`.
        options: The options to build with; limit and restriction are passed to each `solve`.

    Raises:
        GraphError: the graph is not well-formed.
        OptionError: mesh, cluster or options have the wrong type.
    """
    verify(graph)
    options = Options() if options is None else options
    for name, value, of, how in (
        ("mesh", mesh, Mesh, "as Mesh((2, 4), ('data', 'model'))"),
        ("cluster", cluster, Cluster, "as Cluster.preset(name) or Cluster.uniform make it"),
        ("options", options, Options, "as Options(uneven=True), or None"),
    ):
        of_class(OptionError, name, value, of, how)
    return Prepared(graph, mesh, cluster, options)


@dataclass(frozen=True)
class Prepared:
    """A graph on a mesh, ready to be solved with different limits and pins."""

    graph: Graph
    mesh: Mesh
    cluster: Cluster
    options: Options
    """Options that the problem is built with; limits and restrictions belong to each `solve`."""

    @cached_property
    def converter(self) -> Converter:
        """The converter that prices the conversions."""
        return converter_of(self.mesh.shape, self.cluster.links(self.mesh), self.options.uneven)

    @cached_property
    def light(self) -> Built:
        """The problem without the memory of copies: a relaxation."""
        return self._build(copies=False)

    @cached_property
    def full(self) -> Built:
        """The problem in which copies take memory; built only if a limit needs it."""
        return self._build(copies=True)

    def _build(self, *, copies: bool) -> Built:
        device = self.cluster.slowest(self.mesh)
        built = build(self.graph, device, self.converter, self.options, copies=copies)
        if not self.options.overlap:
            return built
        # All edges are communication. If a phase computes too little to hide this much of it, these
        # costs are too low, so lower bounds stay valid.
        left = {
            id(table): table * (1.0 - self.options.overlap) for table in built.problem.edge_costs
        }
        edge_costs = tuple(left[id(table)] for table in built.problem.edge_costs)
        return replace(built, problem=replace(built.problem, edge_costs=edge_costs))

    def solve(
        self,
        *,
        memory_bytes: int | None = None,
        memory_rule: MemoryRule = "limit",
        restrict: Baseline | None = None,
        pin: Mapping[str, Pin] | None = None,
        compare: bool = True,
        tie: bool = False,
        coarse: Level | None = None,
        polish: bool = False,
        method: str = "auto",
        time_s: float = 60.0,
        steps: int | None = STEPS,
        gap: float = 0.0,
        progress: Callable[[Incumbent], None] | None = None,
    ) -> Sharding:
        """The best sharding under a limit and with some choices pinned; see `shard`."""
        search = _Search(tie, coarse, polish, method, time_s, steps, gap, progress)
        for what, flag in (("compare", compare), ("tie", tie), ("polish", polish)):
            if not isinstance(flag, bool):
                raise OptionError(f"{what} is True or False; got {what}={flag!r}")
        if not isinstance(pin, Mapping | None):
            raise PinError(f"pin maps names to strategies or specs; got pin={pin!r}")
        pins = dict(pin or {})
        options = replace(self.options, memory_bytes=memory_bytes, memory_rule=memory_rule)
        if restrict is not None or not compare:
            return self._best(replace(options, restrict=restrict), pins, search)
        rivals: dict[str, Sharding | AutoshardError] = {}
        try:
            rivals["search"] = self._best(options, pins, search)
        except InfeasibleError as error:  # a baseline may fit although the search found nothing
            if memory_bytes is None:
                raise
            if _at_peak(self.graph, self.light)[0] > memory_bytes:
                raise self._with_smallest_limit(error, options, pins, search) from error
            rivals["search"] = error
        for name in get_args(Baseline):
            try:
                rivals[name] = self._best(replace(options, restrict=name), pins, search)
            except (BaselineError, InfeasibleError, PinError) as error:
                rivals[name] = error
        refused = rivals["search"]
        if isinstance(refused, InfeasibleError) and not any(
            isinstance(one, Sharding) for one in rivals.values()
        ):
            raise self._with_smallest_limit(refused, options, pins, search) from refused
        return _with_alternatives(rivals)

    def _with_smallest_limit(
        self, error: InfeasibleError, options: Options, pins: dict[str, Pin], search: _Search
    ) -> InfeasibleError:
        """An error of `_best` with the smallest limit that can be kept, found by trying limits.

        The search alone only knows the smallest peak that it came across, and the problem and the
        sharding may hold copies for different times (see `from_graph`).
        """
        if error.smallest_usage is None or options.memory_bytes is None:
            return error
        until = time.perf_counter() + search.time_s
        refused = max(options.memory_bytes, _at_peak(self.graph, self.light)[0] - 1)
        most, smallest = math.ceil(error.smallest_usage), None
        tried = refused + 1
        while time.perf_counter() < until:
            try:
                limited = replace(options, memory_bytes=tried)
                most = smallest = self._best(limited, pins, search).peak_bytes
            except InfeasibleError:
                refused = tried
                if smallest is None and refused >= most:  # the peak in the error was too low
                    unlimited = replace(options, memory_bytes=None)
                    most = smallest = self._best(unlimited, pins, search).peak_bytes
            if smallest is not None and most - refused <= max(1, most // FINENESS):
                break
            tried = most if smallest is None else (refused + most) // 2
        if smallest is None:
            return error
        return self._explained(float(smallest), options, is_proved=error.is_proved)

    def _best(self, options: Options, pins: dict[str, Pin], search: _Search) -> Sharding:
        """The best sharding under some options and pins."""
        if options.restrict is not None:
            stored = baseline_inputs(self.graph, self.mesh, options.restrict)
            pins = {**stored, **pins}
        if options.memory_bytes is None:
            return self._solved(self.light, options, pins, search, None)
        if options.memory_rule == "largest":
            return self._with_largest_sharded(options, pins, search, options.memory_bytes)
        begun = time.perf_counter()
        try:
            sharding = self._within(options, pins, search, options.memory_bytes)
        except InfeasibleError:
            if _at_peak(self.graph, self.light)[0] > options.memory_bytes:
                raise
            with suppress(InfeasibleError):  # the rule may succeed where the search found nothing
                return self._with_largest_sharded(options, pins, search, options.memory_bytes)
            raise
        has_time = time.perf_counter() - begun < search.time_s
        if has_time and relative_gap(sharding.objective_s, sharding.lower_bound_s) > CLOSED:
            with suppress(InfeasibleError):
                other = self._with_largest_sharded(options, pins, search, options.memory_bytes)
                if other.objective_s < sharding.objective_s:
                    return replace(other, lower_bound_s=sharding.lower_bound_s)
        return sharding

    def _within(
        self, options: Options, pins: dict[str, Pin], search: _Search, memory_bytes: int
    ) -> Sharding:
        """The best sharding with the limit as a constraint.

        The light problem is tried first, since its answer often keeps the limit.
        """
        try:
            sharding = self._solved(self.light, options, pins, search, memory_bytes)
        except InfeasibleError:  # the full problem's error has a better smallest limit
            sharding = self._solved(self.full, options, pins, search, memory_bytes)
        bound, limit = sharding.lower_bound_s, memory_bytes
        while sharding.peak_bytes > memory_bytes:
            sharding = self._solved(self.full, options, pins, search, limit)
            # copies that conversions happen to share are held longer than the problem counts
            limit -= sharding.peak_bytes - memory_bytes
        return replace(sharding, lower_bound_s=min(bound, sharding.objective_s))

    def _with_largest_sharded(
        self, options: Options, pins: dict[str, Pin], search: _Search, memory_bytes: int
    ) -> Sharding:
        """The best sharding with the fewest of the largest parameters forced to be sharded."""
        until = time.perf_counter() + search.time_s

        def solve_forced(forced: Stored) -> Sharding:
            # all solves share the time; elimination works even without any
            left = replace(search, time_s=max(until - time.perf_counter(), 1e-3))
            return self._solved(self.light, options, {**forced, **pins}, left, None)

        return fewest_sharded(
            solve_forced, self.graph, self.mesh.shape, memory_bytes, uneven=options.uneven
        )

    def _solved(
        self,
        built: Built,
        options: Options,
        pins: dict[str, Pin],
        search: _Search,
        limit: int | None,
    ) -> Sharding:
        """The best sharding of a built problem with pins and a limit, decoded."""
        kept = kept_strategies(self.graph, self.mesh.shape, built, pins)
        problem = restricted(built.problem, kept, limit)
        try:
            if search.tie or search.coarse is not None:
                first = len(self.graph.inputs)
                solution = solve_quickly(
                    self.graph,
                    problem,
                    range(first, first + len(self.graph.operators)),
                    tie=search.tie,
                    level=search.coarse,
                    polish=search.polish,
                    method=search.method,
                    time_s=search.time_s,
                    steps=search.steps,
                    gap=search.gap,
                    progress=search.progress,
                )
            else:
                solution = solve(
                    problem,
                    search.method,
                    search.time_s,
                    steps=search.steps,
                    gap=search.gap,
                    progress=search.progress,
                )
        except InfeasibleError as error:
            if error.smallest_usage is None or options.memory_bytes is None:
                raise
            smallest, is_proved = error.smallest_usage, error.is_proved
            raise self._explained(smallest, options, is_proved=is_proved) from error
        if kept:
            choice = list(solution.choice)
            for node, of in kept.items():
                choice[node] = int(of[choice[node]])
            solution = replace(solution, choice=tuple(choice))
        where = (self.graph, self.mesh, self.cluster)
        return decode(built, self.converter, *where, options, solution)

    def _explained(self, smallest: float, options: Options, *, is_proved: bool) -> InfeasibleError:
        """An error that states the solver's smallest usage as bytes, with the largest tensors."""
        fits = "fits" if is_proved else "was found that fits"
        largest = tuple(_at_peak(self.graph, self.light)[1][:3])  # three, to keep the message short
        named = ", ".join(f"{name} ({n_bytes} bytes)" for name, n_bytes in largest)
        return InfeasibleError(
            f"no sharding over {self.mesh.size} devices {fits} in memory_bytes="
            f"{options.memory_bytes}; the smallest peak found is "
            f"{math.ceil(smallest)} bytes a device, when it holds at least {named}; "
            "raise memory_bytes or use more devices",
            smallest,
            largest,
            is_proved=is_proved,
        )


@dataclass(frozen=True, slots=True)
class _Search:
    """The arguments that control the search; see `shard`."""

    tie: bool
    coarse: Level | None
    polish: bool
    method: str
    time_s: float
    steps: int | None
    gap: float
    progress: Callable[[Incumbent], None] | None


def _with_alternatives(rivals: dict[str, Sharding | AutoshardError]) -> Sharding:
    """The best of some shardings, with the others as its alternatives, and the search's bound.

    The bound of a baseline holds only for shardings that store the inputs as the baseline does.
    """
    search = rivals["search"]
    shardings = {name: one for name, one in rivals.items() if isinstance(one, Sharding)}
    best = min(shardings, key=lambda name: shardings[name].objective_s)
    least = shardings[best].objective_s
    alternatives = []
    for name, one in rivals.items():
        if isinstance(one, AutoshardError):
            alternatives.append(Alternative(name, None, str(one)))
        elif name != best:
            seconds = one.objective_s
            if seconds <= least:
                more = "as fast"
            elif least == 0.0:
                more = f"{seconds_text(seconds)} slower"
            else:
                more = f"{seconds / least - 1:.1%} slower"
            alternatives.append(Alternative(name, seconds, more))
    bound = min(search.lower_bound_s, least) if isinstance(search, Sharding) else 0.0
    return replace(shardings[best], lower_bound_s=bound, alternatives=tuple(alternatives))


def _at_peak(graph: Graph, built: Built) -> tuple[int, list[tuple[str, int]]]:
    """A lower bound on the peak, where every tensor has its smallest shards, and what is held then.

    Returns:
        The bytes, and the tensors held at that time with their bytes, largest first.
    """
    names = [*graph.inputs, *(" and ".join(operator.outputs) for operator in graph.operators)]
    problem = built.problem
    least = [int(usage.min()) for usage in problem.usages[: len(names)]]
    changes = [0] * (max(len(graph.operators), 1) + 1)
    for n_bytes, (first, last) in zip(least, problem.intervals, strict=False):
        changes[first] += n_bytes
        changes[last] -= n_bytes
    live = list(accumulate(changes))
    at = live.index(max(live))
    alive = [
        (name, n_bytes)
        for name, n_bytes, (first, last) in zip(names, least, problem.intervals, strict=False)
        if first <= at < last
    ]
    return max(live), sorted(alive, key=lambda one: -one[1])
