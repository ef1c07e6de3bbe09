"""From a step and a cluster to a plan: Alpa's two levels, each by its own package (Alpa Alg. 1).

stagecut slices layers and devices into stages. It asks for the price of a run of layers on a
submesh; the price is autoshard's best sharding over the logical meshes of that submesh. The chosen
stages are joined by transfers, ordered by a pipesched schedule and simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import autoshard
import crossmesh
import pipesched
import stagecut
from costmodel import Cluster, step_time
from shardspec import Layout, Mesh

from frontends.errors import NoPlanError, PlanError
from frontends.explain import as_planned
from frontends.layers import LayeredStep
from frontends.plan import (
    Alternative,
    Collective,
    Conversion,
    Placement,
    Plan,
    Stage,
    Stored,
    Transfer,
    TransferPhase,
)
from frontends.pricing import Priced, Pricer, logical_meshes, stage_cost
from frontends.step import APPLY, BACKWARD, FORWARD

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many of it are done, and of how many."""

_BASELINES: tuple[autoshard.Baseline, ...] = ("data_parallel", "megatron", "zero")
"""What everyone would try first, on one mesh over all devices (autoshard)."""

_EQUAL_LAYERS = "equal_layers"
"""A stage a host, with equally many layers each (stagecut)."""

_SEARCH = "search"
"""Stages, submeshes and shardings, all searched."""

STRATEGIES = ("auto", _SEARCH, *_BASELINES, _EQUAL_LAYERS)
"""What `make_plan` may be asked for."""

SCHEDULES = ("gpipe", "1f1b", "eager-1f1b")
"""The schedules of pipesched that run: one stage a mesh, whole backwards."""


def make_plan(
    layered: LayeredStep,
    cluster: Cluster,
    *,
    undivided: LayeredStep | None = None,
    keep_microbatches: bool = False,
    strategy: str = "auto",
    schedule: str = "1f1b",
    memory_bytes: int | None = None,
    unsharded: Sequence[str] = (),
    progress: Progress | None = None,
) -> Plan:
    """Search stages, submeshes and shardings for a step; needs no devices.

    The obvious plans are priced too, and taken if one of them is faster (design, principle 2).

    Args:
        layered: The step in layers.
        cluster: What it is to run on.
        undivided: The same step with one microbatch: without a pipeline, cutting the batch only
            costs time, so that the obvious plans are tried both ways.
        keep_microbatches: Whether a plan for `undivided` is priced only, and not taken.
        strategy: `auto` takes the fastest plan; another name of `STRATEGIES` takes that one.
        schedule: One of `SCHEDULES`.
        memory_bytes: Limit of one device; the cluster's by default.
        unsharded: Kinds of operators without a rule, for the report.
        progress: Told how the search goes.

    Raises:
        NoPlanError: Nothing fits the memory.
        PlanError: There is no such schedule or strategy.
    """
    if schedule not in SCHEDULES:
        raise PlanError(f"a schedule is one of {', '.join(SCHEDULES)}; got {schedule!r}")
    if strategy not in STRATEGIES:
        raise PlanError(f"a strategy is one of {', '.join(STRATEGIES)}; got {strategy!r}")
    memory = cluster.device.memory_bytes if memory_bytes is None else memory_bytes
    steps = [step for step in (layered, undivided) if step is not None]
    searched, *others = (
        _Candidates(Pricer(step, cluster, memory), schedule, unsharded) for step in steps
    )
    state_bytes = searched.pricer.state_bytes(layered.step.graph)
    if state_bytes > memory * cluster.n_devices:
        raise NoPlanError(
            f"parameters and optimizer state must fit the devices; they take {state_bytes} bytes, "
            f"and the {cluster.n_devices} devices of cluster {cluster.name!r} have {memory} each: "
            "raise the memory or take more devices"
        )
    tries = [(_SEARCH, searched)]
    tries += [(name, candidates) for name in _BASELINES for candidates in (searched, *others)]
    tries.append((_EQUAL_LAYERS, searched))
    if strategy != "auto":
        tries = [(name, candidates) for name, candidates in tries if name == strategy]
    found: dict[str, Plan | str] = {}
    for done, (name, candidates) in enumerate(tries):
        label = name if candidates is searched else f"{name}, 1 microbatch"
        try:
            found[label] = candidates.make(name, progress)
        except (autoshard.AutoshardError, stagecut.StagecutError) as error:
            found[label] = str(error)
        if progress is not None and name != _SEARCH:
            progress("pricing others", done + 1, len(tries))
    chosen = _choose(found, layered.step.microbatches if keep_microbatches else None)
    if chosen is None:
        if strategy != "auto":
            reason = next(str(why) for why in found.values())
            raise NoPlanError(f"no {strategy} plan runs on cluster {cluster.name!r}: {reason}")
        raise NoPlanError(
            f"no plan fits {memory} bytes a device of cluster {cluster.name!r}: raise the memory, "
            "cut the batch into more microbatches, or take more devices"
        )
    return chosen


def _choose(found: Mapping[str, Plan | str], microbatches: int | None) -> Plan | None:
    """The fastest plan, with the others and why they were not taken."""
    plans = {name: plan for name, plan in found.items() if isinstance(plan, Plan)}
    allowed = {n: p for n, p in plans.items() if microbatches in (None, p.microbatches)}
    if not allowed:
        return None
    taken = min(allowed, key=lambda name: allowed[name].step_s)
    best = allowed[taken]
    alternatives = []
    for name, other in found.items():
        if name == taken:
            continue
        if not isinstance(other, Plan):
            alternatives.append(Alternative(name, None, None, other))
            continue
        memory = max(stage.memory_bytes for stage in other.stages)
        ratio = other.step_s / best.step_s if best.step_s else math.inf
        if name not in allowed:
            reason = f"{microbatches} microbatches were asked for"
        else:
            reason = f"{ratio:.2f} times as long a step" if ratio > 1.005 else "no faster"
        alternatives.append(Alternative(name, other.step_s, memory, reason))
    return replace(best, strategy=taken, alternatives=tuple(alternatives))


class _Candidates:
    """Makes whole plans out of slicings."""

    def __init__(self, pricer: Pricer, schedule: str, unsharded: Sequence[str]) -> None:
        self.pricer, self.schedule = pricer, schedule
        self.layered, self.cluster = pricer.layered, pricer.cluster
        self.shape = (self.cluster.n_hosts, self.cluster.devices_per_host)
        self.unsharded = tuple(unsharded)

    def make(self, name: str, progress: Progress | None) -> Plan:
        """The plan of one of the strategies."""
        if name != _SEARCH:
            return self._baseline(name)
        try:
            return self._search(progress)
        except stagecut.InfeasibleStagesError:
            return self._with_room()._search(progress)

    def _with_room(self) -> _Candidates:
        """The same, with shardings that leave room for all microbatches that any stage may hold."""
        held = self._in_flight(
            min(self.cluster.n_devices, self.layered.n_layers), self.pricer.microbatches
        )
        pricer = Pricer(self.layered, self.cluster, self.pricer.memory_bytes, held)
        return _Candidates(pricer, self.schedule, self.unsharded)

    def _search(self, progress: Progress | None) -> Plan:
        """The best slicing, as a plan.

        stagecut counts transfers in full or, as Alpa does, not at all. The truth is between: they
        overlap with other microbatches as the schedule allows. So the best slicings of both kinds,
        with each number of stages, are simulated before one is taken.
        """
        report = None if progress is None else lambda n, of: progress("pricing stages", n, of)
        found: dict[tuple[stagecut.Span, ...], None] = {}
        for boundary_s in (self.pricer.boundary_s, None):
            slicing = stagecut.slice_stages(
                self.layered.n_layers,
                self.shape,
                self.pricer.microbatches,
                self._cost,
                self.pricer.memory_bytes,
                bound_s=self.pricer.bound_s,
                boundary_s=boundary_s,
                in_flight=self._in_flight,
                alternatives=True,
                progress=report,
            )
            if report is not None:  # the search ends when no other stage can be better
                report(slicing.n_priced, slicing.n_priced)
            found[tuple((s.first, s.last, s.submesh) for s in slicing.stages)] = None
            found.update((other.spans, None) for other in slicing.alternatives if other.is_priced)
        return min(map(self._plan, found), key=lambda plan: plan.step_s)

    def _baseline(self, name: str) -> Plan:
        """A plan that anyone would try."""
        last = self.layered.n_layers - 1
        if name == _EQUAL_LAYERS:
            slicing = stagecut.equal_layers(
                self.layered.n_layers,
                self.shape,
                self.pricer.microbatches,
                self._cost,
                self.pricer.memory_bytes,
                n_stages=max(2, self.cluster.n_hosts),
                boundary_s=self.pricer.boundary_s,
                in_flight=self._in_flight,
            )
            return self._plan([(s.first, s.last, s.submesh) for s in slicing.stages])
        graph = self.pricer.graph(0, last)
        mesh = logical_meshes(self.shape, self.cluster)[-1]
        sharding = autoshard.baseline(
            graph,
            mesh,
            self.cluster,
            cast("autoshard.Baseline", name),
            memory_bytes=self.pricer.memory_bytes,
        )
        return self._join([(0, last, mesh, Priced(graph, sharding, stage_cost(graph, sharding)))])

    def _cost(self, first: int, last: int, submesh: stagecut.Submesh) -> stagecut.StageCost | None:
        priced = self.pricer.price(first, last, submesh)
        return None if priced is None else priced.cost

    def _in_flight(self, stages_from_here: int, n_microbatches: int) -> int:
        schedule = pipesched.make(self.schedule, stages_from_here, n_microbatches)
        return pipesched.simulate(schedule, pipesched.Costs(1.0, 1.0)).peak_in_flight[0]

    def _plan(self, spans: Sequence[stagecut.Span]) -> Plan:
        devices = stagecut.assign_devices([submesh for _, _, submesh in spans], self.shape)
        stages = []
        for (first, last, submesh), grid in zip(spans, devices, strict=True):
            priced = self.pricer.price(first, last, submesh)
            assert priced is not None
            ids = tuple(device for row in grid for device in row)
            stages.append((first, last, replace(priced.sharding.mesh, device_ids=ids), priced))
        return self._join(stages)

    def _join(self, stages: Sequence[tuple[int, int, Mesh, Priced]]) -> Plan:
        """Stages, and what passes between them, as a plan."""
        schedule = pipesched.make(self.schedule, len(stages), self.pricer.microbatches)
        in_flight = pipesched.simulate(schedule, pipesched.Costs(1.0, 1.0)).peak_in_flight
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
            schedule=self.schedule,
            stages=planned,
            transfers=transfers,
            step_s=predict_step_s(planned, transfers, schedule),
            lower_bound_s=self.pricer.step_bound_s(),
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
        seconds = self._transfer_s(*layouts, value.dtype)
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


def predict_step_s(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> float:
    """Time of a step: the simulated pipeline, then the slowest apply, with what they send."""
    timeline = simulate(stages, transfers, schedule)
    once_s = sum(t.time_s for t in transfers if t.phase in ("state", "apply"))
    return timeline.makespan_s + max(stage.apply_s for stage in stages) + once_s


def simulate(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> pipesched.Timeline:
    """The pipeline of one step, as predicted."""
    kinds = {"forward": pipesched.Kind.FORWARD, "backward": pipesched.Kind.BACKWARD}
    edges: dict[pipesched.Edge, float] = {}
    for t in transfers:
        if t.phase in kinds:
            comes_back = t.phase == "backward" or t.destination < t.source
            to = pipesched.Kind.BACKWARD if comes_back else pipesched.Kind.FORWARD
            edge = pipesched.Edge((kinds[t.phase], t.source), (to, t.destination))
            edges[edge] = edges.get(edge, 0.0) + t.time_s
    return pipesched.simulate(
        replace(schedule, edges=tuple(edges)),
        pipesched.Costs(
            [stage.forward_s for stage in stages],
            [stage.backward_s for stage in stages],
            transfer_s=edges,
        ),
    )


def _stage(
    first: int, last: int, mesh: Mesh, priced: Priced, cluster: Cluster, in_flight: int
) -> Stage:
    graph, sharding = priced.graph, priced.sharding
    links = cluster.links(mesh)
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
                n_bytes=c.step.dst.local_bytes(c.itemsize),
                sent_bytes=c.step.sent_bytes(c.itemsize),
                repeats=c.repeats,
                time_s=step_time(c.step, c.itemsize, links),
            )
            for c in autoshard.collectives(graph, sharding)
        ),
        forward_s=phase_s[FORWARD] / repeats[FORWARD],
        backward_s=phase_s[BACKWARD] / repeats[BACKWARD],
        apply_s=phase_s[APPLY],
        memory_bytes=priced.cost.peak_bytes(in_flight),
        sharding=as_planned(sharding, mesh, in_flight),
    )
