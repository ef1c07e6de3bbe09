"""Whole plans out of slicings: stages sharded on their own, and what passes between them.

stagecut slices layers and devices into stages, at the prices of `pricing`. The slicings that look
best are made into plans, in each order of work that runs, and simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

import autoshard
import crossmesh
import pipesched
import stagecut
from costmodel import Cluster, step_time
from shardspec import Layout, Mesh

from frontends.explain import as_planned
from frontends.plan import (
    Collective,
    Conversion,
    Placement,
    Plan,
    Stage,
    Stored,
    Transfer,
    TransferPhase,
)
from frontends.predict import predict_step_s
from frontends.pricing import Level, Priced, Pricer, stage_cost
from frontends.step import APPLY, BACKWARD, FORWARD

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many of it are done, and of how many."""

BASELINES: tuple[autoshard.Baseline, ...] = ("data_parallel", "zero2", "zero", "megatron")
"""What everyone would try first, on one mesh over all devices (autoshard)."""

EQUAL_LAYERS = "equal_layers"
"""A stage a host, with equally many layers each (stagecut)."""

SEARCH = "search"
"""Stages, submeshes and shardings, all searched."""

_ALL_COUNTS = 8
"""Numbers of stages that are all looked at; beyond, powers of two [chosen]."""

_TRIED_HARD = 2
"""Slicings of which stages are searched under the memory limit, where none fits quickly [chosen:
such a search takes seconds a stage]."""

_FEW_LAYERS = 12
"""Up to so many, every stage is searched so if even that finds nothing [chosen]."""

_SIMULATED: dict[Level, int] = {"O2": 2, "O3": 1 << 30}
"""How many of the slicings that look best are planned in full [chosen: the two of a slicing with
transfers and one without]."""


class Candidates:
    """Makes whole plans out of slicings."""

    def __init__(
        self,
        pricer: Pricer,
        schedules: Sequence[str],
        unsharded: Sequence[str],
        stage_of_layer: Mapping[int, int],
    ) -> None:
        self.pricer, self.schedules = pricer, schedules
        self.layered, self.cluster = pricer.layered, pricer.cluster
        self.shape = (self.cluster.n_hosts, self.cluster.devices_per_host)
        self.unsharded = tuple(unsharded)
        self.stage_of_layer = stage_of_layer
        self._seconds: dict[tuple[Layout, Layout, str], float] = {}
        self._costs: dict[stagecut.Span, tuple[stagecut.StageCost, ...] | None] = {}
        self._held: dict[tuple[str, int], list[int]] = {}
        self._plans: dict[tuple[tuple[stagecut.Span, ...], str, bool], Plan | None] = {}

    def make(self, name: str, progress: Progress | None) -> Plan:
        """The plan of one of the strategies."""
        if name != SEARCH:
            if self.stage_of_layer:
                raise autoshard.PinError("stages are pinned, and only a search cuts stages so")
            return self._baseline(name)
        found: list[Sequence[stagecut.Span]] = []
        with suppress(stagecut.InfeasibleStagesError):
            found = self._search(self._cost, progress)
        plans = self._planned(found) or self._planned(found[:_TRIED_HARD], try_hard=True)
        if not plans and self.layered.n_layers <= _FEW_LAYERS:
            # then with a search under the memory limit for every stage
            plans = self._planned(self._search(self._limited_cost, progress), try_hard=True)
        if not plans:
            raise autoshard.InfeasibleError("no slicing that was found fits the memory")
        return min(plans, key=lambda plan: plan.step_s)

    def _search(
        self, cost: stagecut.CostFunction, progress: Progress | None
    ) -> list[Sequence[stagecut.Span]]:
        """The best slicings, the one that looks best first.

        stagecut counts transfers in full or, as Alpa does, not at all. The truth is between: they
        overlap with other microbatches as the schedule allows. So the best slicings of both kinds,
        with each number of stages (of many, powers of two), are simulated before one is taken.
        """
        # where prices are quick (O2), it is quicker to ask for all than to find out which matter
        bound_s = self._bound_s if self.pricer.level == "O3" or cost != self._cost else None
        most = min(self.layered.n_layers, self.cluster.n_devices)
        counts = [n for n in range(1, most + 1) if n <= _ALL_COUNTS or n & (n - 1) == 0]
        report = None if progress is None else lambda n, of: progress("pricing stages", n, of)
        found: dict[tuple[stagecut.Span, ...], None] = {}
        for boundary_s in (self.pricer.bounds.boundary_s, None):
            slicing = stagecut.slice_stages(
                self.layered.n_layers,
                self.shape,
                self.pricer.microbatches,
                cost,
                self.pricer.memory_bytes,
                bound_s=bound_s,
                boundary_s=boundary_s,
                in_flight=self._in_flight,
                alternatives=counts,
                progress=report,
            )
            if report is not None:  # the search ends when no other stage can be better
                report(slicing.n_priced, slicing.n_priced)
            found[tuple((s.first, s.last, s.submesh) for s in slicing.stages)] = None
            found.update((other.spans, None) for other in slicing.alternatives if other.is_priced)
        allowed = [spans for spans in found if self._has_pinned_stages(spans)]
        if not allowed:
            raise autoshard.PinError(
                "no slicing that was found has the pinned stages where they should be: pin fewer, "
                "or to other stages"
            )
        return sorted(allowed, key=lambda spans: self._roughly_s(spans, cost))

    def _planned(
        self, slicings: Sequence[Sequence[stagecut.Span]], *, try_hard: bool = False
    ) -> list[Plan]:
        """Of the slicings that look best those that fit, as plans.

        Args:
            slicings: The one that looks best first.
            try_hard: Search under the memory limit for stages that no quick way fits.
        """
        plans: list[Plan] = []
        for spans in slicings:
            if len(plans) == _SIMULATED[self.pricer.level]:
                break
            found = [self._plan(spans, schedule, try_hard) for schedule in self.schedules]
            fitting = [plan for plan in found if plan is not None]
            if fitting:
                plans.append(min(fitting, key=lambda plan: plan.step_s))
        return plans

    def _roughly_s(self, spans: Sequence[stagecut.Span], cost: stagecut.CostFunction) -> float:
        """A step's time, if transfers overlap and take what the link takes for their bytes."""
        times: list[float] = []
        once_s = 0.0
        for index, span in enumerate(spans):
            held = self._in_flight(len(spans) - index, self.pricer.microbatches)
            costs = cost(*span)
            each = [costs] if isinstance(costs, stagecut.StageCost) else list(costs or ())
            each = [c for c in each if c.peak_bytes(held) <= self.pricer.memory_bytes] or each
            best = min(each, key=lambda c: self.pricer.microbatches * c.time_s + c.once_s)
            times.append(best.time_s)
            once_s = max(once_s, best.once_s)
        schedule = pipesched.make(self.schedules[0], len(spans), self.pricer.microbatches)
        edges: dict[pipesched.Edge, float] = {}
        for index, (first, _, _) in enumerate(spans[1:], 1):
            half_s = self.pricer.bounds.boundary_s(first) / 2
            kinds = (pipesched.Kind.FORWARD, pipesched.Kind.BACKWARD)
            edges[pipesched.Edge((kinds[0], index - 1), (kinds[0], index))] = half_s
            edges[pipesched.Edge((kinds[1], index), (kinds[1], index - 1))] = half_s
        costs_s = pipesched.Costs(
            [t / 3 for t in times], [2 * t / 3 for t in times], transfer_s=edges
        )
        timeline = pipesched.simulate(replace(schedule, edges=tuple(edges)), costs_s)
        return timeline.makespan_s + once_s

    def _has_pinned_stages(self, spans: Sequence[stagecut.Span]) -> bool:
        stage_of = {k: i for i, (a, b, _) in enumerate(spans) for k in range(a, b + 1)}
        return all(stage_of[layer] == stage for layer, stage in self.stage_of_layer.items())

    def _baseline(self, name: str) -> Plan:
        """A plan that anyone would try."""
        last = self.layered.n_layers - 1
        if name == EQUAL_LAYERS:
            slicing = stagecut.equal_layers(
                self.layered.n_layers,
                self.shape,
                self.pricer.microbatches,
                self._limited_cost if self.pricer.level == "O3" else self._cost,
                self.pricer.memory_bytes,
                n_stages=max(2, self.cluster.n_hosts),
                boundary_s=self.pricer.bounds.boundary_s,
                in_flight=self._in_flight,
            )
            spans = [(s.first, s.last, s.submesh) for s in slicing.stages]
            plans = self._planned([spans], try_hard=True)
            if not plans:
                limit = self.pricer.memory_bytes
                raise autoshard.InfeasibleError(f"no way fits {limit} bytes a device")
            return plans[0]
        mesh, sharding = self.pricer.baseline(cast("autoshard.Baseline", name))
        priced = Priced(sharding.graph, sharding, stage_cost(sharding.graph, sharding))
        return self._join([(0, last, mesh, priced)], self.schedules[0])

    def _bound_s(self, first: int, last: int, submesh: stagecut.Submesh) -> float:
        """Infinite where pinned stages forbid the run."""
        stages = {s for layer, s in self.stage_of_layer.items() if first <= layer <= last}
        if len(stages) > 1 or any(first < stage for stage in stages):
            return math.inf
        return self.pricer.bounds.bound_s(first, last, submesh)

    def _cost(
        self, first: int, last: int, submesh: stagecut.Submesh
    ) -> tuple[stagecut.StageCost, ...] | None:
        span = (first, last, submesh)
        if span not in self._costs:  # both searches ask, and every look at a slicing
            forbidden = self._bound_s(*span) == math.inf  # by pins
            costs = None if forbidden else self.pricer.costs(*span, self._most_held(last))
            self._costs[span] = costs
        return self._costs[span]

    def _limited_cost(
        self, first: int, last: int, submesh: stagecut.Submesh
    ) -> stagecut.StageCost | None:
        """With room for all microbatches that the stage may hold, or for one."""
        for held in dict.fromkeys((self._most_held(last), 1)):
            priced = self.pricer.price(first, last, submesh, held)
            if priced is not None:
                return priced.cost
        return None

    def _most_held(self, last: int) -> int:
        """Microbatches that a stage which ends with layer `last` holds at most."""
        stages = min(self.cluster.n_devices, self.layered.n_layers - last)
        return self._in_flight(stages, self.pricer.microbatches)

    def _in_flight(self, stages_from_here: int, n_microbatches: int) -> int:
        return self._held_by(self.schedules[0], stages_from_here)[0]

    def _held_by(self, schedule: str, n_stages: int) -> list[int]:
        """Microbatches that each stage holds at most."""
        key = (schedule, n_stages)
        if key not in self._held:
            made = pipesched.make(schedule, n_stages, self.pricer.microbatches)
            timeline = pipesched.simulate(made, pipesched.Costs(1.0, 1.0))
            self._held[key] = list(timeline.peak_in_flight)
        return self._held[key]

    def _plan(self, spans: Sequence[stagecut.Span], schedule: str, try_hard: bool) -> Plan | None:
        """The stages sharded on their own; None if one does not fit."""
        # one that holds more microbatches than need be is not worth a search under the limit
        try_hard = try_hard and schedule == self.schedules[0]
        key = (tuple(spans), schedule, try_hard)
        if key not in self._plans:
            self._plans[key] = self._make_plan(*key)
        return self._plans[key]

    def _make_plan(
        self, spans: Sequence[stagecut.Span], schedule: str, try_hard: bool
    ) -> Plan | None:
        devices = stagecut.assign_devices([submesh for _, _, submesh in spans], self.shape)
        held = self._held_by(schedule, len(spans))
        stages = []
        for (first, last, submesh), grid, n in zip(spans, devices, held, strict=True):
            priced = self.pricer.price(first, last, submesh, n, try_hard=try_hard)
            if priced is None:
                return None
            ids = tuple(device for row in grid for device in row)
            stages.append((first, last, replace(priced.sharding.mesh, device_ids=ids), priced))
        return self._join(stages, schedule)

    def _join(self, stages: Sequence[tuple[int, int, Mesh, Priced]], schedule: str) -> Plan:
        """Stages, and what passes between them, as a plan."""
        made = pipesched.make(schedule, len(stages), self.pricer.microbatches)
        in_flight = self._held_by(schedule, len(stages))
        planned = tuple(
            _stage(first, last, mesh, priced, self.cluster, held)
            for (first, last, mesh, priced), held in zip(stages, in_flight, strict=True)
        )
        transfers = self._transfers(planned)
        return Plan(
            step=self.layered.step.fingerprint,
            cluster=self.cluster.name,
            memory_limit_bytes=self.pricer.memory_bytes,
            microbatches=self.pricer.microbatches,
            schedule=schedule,
            stages=planned,
            transfers=transfers,
            step_s=predict_step_s(planned, transfers, made),
            lower_bound_s=self.pricer.bounds.step_bound_s(),
            unsharded=self.unsharded,
            alternatives=(),
        )

    def _transfers(self, stages: Sequence[Stage]) -> tuple[Transfer, ...]:
        spans = [(stage.first_layer, stage.last_layer) for stage in stages]
        return tuple(self._transfer(stages, *item) for item in self.layered.exchanges(spans))

    def _transfer(
        self, stages: Sequence[Stage], name: str, phase: TransferPhase, source: int, to: int
    ) -> Transfer:
        value = self.layered.step.graph.value(name)
        src, dst = stages[source].leaving(name, phase), stages[to].entering(name)
        layouts = (
            Layout(value.shape, stages[source].mesh, src),
            Layout(value.shape, stages[to].mesh, dst),
        )
        key = (*layouts, value.dtype)
        if key not in self._seconds:
            self._seconds[key] = self._transfer_s(*key)
        seconds = self._seconds[key]
        return Transfer(name, phase, source, to, src, dst, value.n_bytes, seconds)

    def _transfer_s(self, src: Layout, dst: Layout, dtype: str) -> float:
        hosts = {d: self.cluster.host(d) for m in (src.mesh, dst.mesh) for d in m.device_ids}
        network = self.cluster.inter_host if self.cluster.levels else self.cluster.intra_host
        links = crossmesh.Links(
            network.bandwidth_bytes_per_s,
            device_bytes_per_s=self.cluster.intra_host.bandwidth_bytes_per_s,
            latency_s=network.latency_s,
        )
        return crossmesh.simulate(crossmesh.plan(src, dst, dtype, hosts, links)).time_s


def _stage(
    first: int, last: int, mesh: Mesh, priced: Priced, cluster: Cluster, in_flight: int
) -> Stage:
    graph, sharding = priced.graph, priced.sharding
    collectives = autoshard.collectives(graph, sharding)
    kinds = {(id(c.step), c.itemsize): c for c in collectives}  # repeated layers send alike
    links = cluster.links(mesh)
    sizes = {
        kind: (
            c.step.dst.local_bytes(c.itemsize),
            c.step.sent_bytes(c.itemsize),
            step_time(c.step, c.itemsize, links),
        )
        for kind, c in kinds.items()
    }
    phase_s = [c + k for c, k in zip(sharding.compute_s, sharding.communication_s, strict=True)]
    repeats = [phase.repeats for phase in graph.phases]
    return Stage(
        first_layer=first,
        last_layer=last,
        mesh=mesh,
        inputs=tuple(Stored(name, spec) for name, spec in sharding.input_specs),
        outputs=tuple(
            Stored(output.value, spec)
            for output, spec in zip(graph.outputs, sharding.output_specs, strict=True)
        ),
        placements=tuple(
            Placement(op.name, op.phase, s.operand_specs, s.result_specs)
            for op, s in zip(graph.operators, sharding.strategies, strict=True)
        ),
        conversions=tuple(Conversion(c.phase, c.value, c.src, c.dst) for c in sharding.conversions),
        collectives=tuple(
            Collective(
                phase=c.phase,
                value=c.value,
                kind=c.step.kind,
                axes=c.step.mesh_axes,
                group_size=c.step.group_size,
                n_bytes=n_bytes,
                sent_bytes=sent_bytes,
                repeats=c.repeats,
                time_s=time_s,
            )
            for c in collectives
            for n_bytes, sent_bytes, time_s in [sizes[id(c.step), c.itemsize]]
        ),
        forward_s=phase_s[FORWARD] / repeats[FORWARD],
        backward_s=phase_s[BACKWARD] / repeats[BACKWARD],
        apply_s=phase_s[APPLY],
        memory_bytes=priced.cost.peak_bytes(in_flight),
        sharding=as_planned(sharding, mesh, in_flight),
    )
