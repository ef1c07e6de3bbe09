"""Assemble a plan from stages that are sharded on their own, and the transfers between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import autoshard
import crossmesh
import pipesched
import stagecut
from costmodel import in_flight, slowest_link
from shardspec import Layout, Mesh

from frontends.answer.plan import Plan
from frontends.layers.expand import with_memory
from frontends.layers.replicas import CopiedStep, sharding_of_copy, with_copies
from frontends.layers.split_backward import parts_of
from frontends.plan.plan_fields import Stage, Transfer, TransferPhase
from frontends.plan.schedule import PLAIN, each_copy, lonely, microbatches_at, most_held
from frontends.price.bounds import Bounds
from frontends.price.device_pool import DevicePool
from frontends.price.priced_stage import planned_stage, with_levels, with_waiting
from frontends.price.pricing import Priced, Pricer, stage_cost
from frontends.program.predict import predict_step_s
from frontends.search.fit_schedule import CAP, COSTS, Fitter, options_of

_OF_ONE_STAGE = "1f1b"
"""The schedule of a plan of one stage, whatever the user asked for: no schedule holds less or ends
sooner, as there is no waiting."""

_LEAN = "zb-h1"
"""A schedule with split backwards that holds no more than 1F1B."""

_WARM = 2
"""Microbatches for each stage after which every schedule of pipesched repeats itself [chosen, and
tested]."""


class Joiner:
    """Assembles stages to plans.

    Args:
        pricer: Has the step that plans are for.
        unsharded: Kinds of operators without a rule.
        pool: The devices of all stages, with their memory limits; by default those of `pricer`.
    """

    def __init__(
        self, pricer: Pricer, unsharded: Sequence[str], pool: DevicePool | None = None
    ) -> None:
        self._pricer, self._unsharded = pricer, tuple(unsharded)
        self._layered, self._given = pricer.layered, pool
        self._seconds: dict[tuple[Layout, Layout, str], float] = {}
        self._held: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
        self._copied: dict[int, CopiedStep] = {}

    @property
    def _pool(self) -> DevicePool:
        return self._given or self._pricer.pool

    @cached_property
    def _bounds(self) -> Bounds:
        """The bounds of the step on all devices."""
        if self._given is None:
            return self._pricer.bounds
        return Bounds(self._layered, self._given)

    def held_by(self, schedule: str, n_stages: int) -> tuple[list[int], list[int]]:
        """The most microbatches that each stage holds, and has between the parts of its backward.

        Replicas come after all stages, as in a plan. A schedule that is made for the memory that
        there is (`Fitter`) can do with what `_LEAN` holds. For plain ones there is a formula
        (`costmodel.in_flight`): to make them takes long for many stages.
        """
        if schedule in PLAIN:
            number = self._pricer.microbatches
            stages = (in_flight(schedule, k, n_stages, number) for k in range(n_stages))
            return [each.activations for each in stages], [0] * n_stages
        key = (schedule, n_stages)
        if key not in self._held:
            is_fitted = CAP in options_of(schedule) and n_stages > 1
            orders = self.short_orders(_LEAN if is_fitted else schedule, n_stages)
            held, between = zip(*map(most_held, orders), strict=True)
            self._held[key] = (
                [round(self.longer(orders, most)) for most in zip(*held, strict=True)],
                [round(self.longer(orders, most)) for most in zip(*between, strict=True)],
            )
        return self._held[key]

    def short_orders(self, schedule: str, n_stages: int) -> list[pipesched.Schedule]:
        """The schedule in few microbatches, and in some more; by itself if it has no more anyway.

        Between its warm-up and its cool-down every schedule of pipesched repeats itself, so that
        two short ones say what a long one takes and holds (`longer`). One that a user has
        registered may exist in other numbers only, so it comes by itself, too.

        Raises:
            InfeasibleError: The schedule cannot run with this number of stages.
        """
        n, period = self._pricer.microbatches, 2 * n_stages
        few = _WARM * n_stages + n % period
        if n <= few + period or not _is_of_pipesched(schedule):
            return [self.order(schedule, n_stages)]
        return [self.order(schedule, n_stages, short) for short in (few, few + period)]

    def longer(self, orders: Sequence[pipesched.Schedule], numbers: Sequence[float]) -> float:
        """A number for all microbatches, from those for each of `short_orders`."""
        first, last = orders[0].n_microbatches, orders[-1].n_microbatches
        if first == last:
            return numbers[0]
        share = (self._pricer.microbatches - first) / (last - first)
        return numbers[0] + share * (numbers[-1] - numbers[0])

    def order(
        self, schedule: str, n_stages: int, n_microbatches: int | None = None
    ) -> pipesched.Schedule:
        """The schedule of a name; `InfeasibleError` if it cannot run with this number of stages.

        With one stage all schedules are the same, so every name has one. A text is of one schedule.

        Args:
            schedule: Its name or text.
            n_stages: Number of stages, without replicas.
            n_microbatches: By default those of the step.
        """
        if not pipesched.is_schedule(schedule):
            return pipesched.Schedule.parse(schedule)
        number = n_microbatches or self._pricer.microbatches
        try:
            order = pipesched.make(schedule, n_stages, number)
        except (pipesched.ArgumentError, pipesched.InfeasibleError) as error:
            if n_stages == 1:
                return pipesched.make(_OF_ONE_STAGE, 1, number)
            raise autoshard.InfeasibleError(str(error)) from error
        if reason := lonely(order):
            raise autoshard.InfeasibleError(reason)
        return order

    def plan(
        self, spans: Sequence[stagecut.Span], schedule: str, of_stage: Pricer, *, try_hard: bool
    ) -> Plan | None:
        """The plan of some stages, each sharded on its own; None if they do not fit.

        Args:
            spans: Layers and submesh of each stage, without replicas.
            schedule: Name of the schedule.
            of_stage: Prices stages, with the memory limit of one stage.
            try_hard: Whether to search stages under that limit if they do not fit without.
        """
        schedule = schedule if len(spans) > 1 else _OF_ONE_STAGE
        n_stages = len(spans)
        order = self.short_orders(schedule, n_stages)[0]
        routes = order.placement.routes
        (route,) = each_copy(order).placement.routes
        spans_of_copies = [*spans] * len(routes)
        on_rank = {rank: span[2] for rank, span in zip(route, spans_of_copies, strict=True)}
        devices = self._pool.assign([on_rank[rank] for rank in sorted(on_rank)])
        held, between = self.held_by(schedule, n_stages)
        all_priced: list[Priced] = []
        for stage, (first, last, submesh) in enumerate(spans):
            most, split = max(held[stage::n_stages]), max(between[stage::n_stages]) > 0
            priced = of_stage.price(first, last, submesh, most, split=split, try_hard=try_hard)
            if priced is None:
                return None
            all_priced.append(priced)
        if len(routes) > 1:
            order = self.order(schedule, n_stages)
            all_priced = [
                self._copy(all_priced[i % n_stages], order, spans, i) for i in range(len(route))
            ]
        stages = []
        for (first, last, _), rank, priced in zip(spans_of_copies, route, all_priced, strict=True):
            mesh = replace(priced.sharding.mesh, device_ids=devices[rank])
            stages.append((first, last, mesh, priced))
        try:
            plan = self.join(stages, schedule, len(routes))
        except autoshard.InfeasibleError:  # of a schedule that is made for the memory that there is
            return None
        return plan if self.fits(plan) else None

    def fits(self, plan: Plan) -> bool:
        """Whether no device of a plan needs more memory than it has."""
        return all(n <= self._pool.limit_of((device,)) for device, n in plan.device_bytes.items())

    def _copies(self, n_routes: int) -> CopiedStep:
        if n_routes not in self._copied:
            self._copied[n_routes] = with_copies(self._layered, n_routes)
        return self._copied[n_routes]

    def _copy(
        self,
        priced: Priced,
        order: pipesched.Schedule,
        spans: Sequence[stagecut.Span],
        index: int,
    ) -> Priced:
        """A replica of a stage that was priced in the step without replicas.

        For the first one, this adds the sums over the replicas.
        """
        held, between = (n[index] for n in self.held_by(order.name, len(spans)))
        copied = self._copies(len(order.placement.routes))
        route, stage = divmod(index, len(spans))
        first, last = (layer + route * copied.n_layers for layer in spans[stage][:2])
        n = microbatches_at(order, index)
        sharding = sharding_of_copy(priced.sharding, copied, first, last, n)
        sharding = with_memory(sharding, held, split=between > 0)
        return Priced(sharding.graph, sharding, stage_cost(sharding.graph, sharding, held))

    def join(
        self, stages: Sequence[tuple[int, int, Mesh, Priced]], schedule: str, n_routes: int = 1
    ) -> Plan:
        """The plan of priced stages, with the transfers between them.

        Args:
            stages: First and last layer, mesh and price of each stage; replicas come last.
            schedule: Name of the schedule.
            n_routes: Number of replicas of each stage.
        """
        schedule = schedule if len(stages) > 1 else _OF_ONE_STAGE
        n_stages = len(stages) // n_routes
        is_made = COSTS in options_of(schedule) and n_stages > 1  # for these stages
        order = (
            self.short_orders(schedule, n_stages)[-1] if is_made else self.order(schedule, n_stages)
        )
        held, between = most_held(order)
        copied = self._copies(n_routes)
        layers_before = [index // n_stages * copied.n_layers for index in range(len(stages))]
        spans = [(s[0] + n, s[1] + n) for s, n in zip(stages, layers_before, strict=True)]
        exchanges = list(copied.layered.exchanges(spans))
        between_bytes = [0] * len(stages)
        for index, (_, _, _, priced) in enumerate(stages):
            if between[index]:
                leaving = {
                    v for v, phase, src, _ in exchanges if (phase, src) == ("backward", index)
                }
                between_bytes[index] = parts_of(priced.sharding, leaving).between_bytes

        def made(held: Sequence[int], between: Sequence[int]) -> list[Stage]:
            return [
                planned_stage(
                    first,
                    last,
                    mesh,
                    priced,
                    self._pool.cluster,
                    held[index],
                    priced.cost.peak_bytes(held[index]) + between[index] * between_bytes[index],
                )
                for index, (first, last, mesh, priced) in enumerate(stages)
            ]

        graph = copied.layered.step.graph
        planned = made(held, between)
        transfers = tuple(self._transfer(graph, planned, *exchange) for exchange in exchanges)

        def running(order: pipesched.Schedule, planned: list[Stage]) -> list[Stage]:
            return with_levels(with_waiting(planned, transfers, order), graph)

        if is_made:
            prices = [priced.cost for _, _, _, priced in stages]
            limit = self._pool.least_limit
            fitter = Fitter(
                planned,
                transfers,
                prices,
                between_bytes,
                limit,
                lambda order: running(order, made(*most_held(order))),
            )
            # First in few microbatches: it is quick, and what does not fit there does not in more.
            fit = fitter.fit(order, limit)
            if order.n_microbatches < self._pricer.microbatches:
                order = self.order(schedule, n_stages)
                fit = fitter.fit(order, fit.bound)
            planned = fit.stages
            if fit.order != order:  # then its name does not say what it is
                order, schedule = fit.order, str(fit.order)
        else:
            planned = running(order, planned)
        limits = [self._pool.limit_of(stage.mesh.device_ids) for stage in planned]
        return Plan(
            step=self._layered.step.fingerprint,
            cluster=self._pool.cluster.name,
            memory_limit_bytes=max(limits),
            memory_limits=tuple(limits) if len({*limits}) > 1 else (),
            microbatches=self._pricer.microbatches,
            schedule=schedule,
            stages=tuple(planned),
            transfers=transfers,
            step_s=predict_step_s(planned, transfers, order),
            lower_bound_s=self._bounds.step_bound_s(),
            unsharded=self._unsharded,
            alternatives=(),
        )

    def _transfer(
        self,
        graph: autoshard.Graph,
        stages: Sequence[Stage],
        name: str,
        phase: TransferPhase,
        source: int,
        to: int,
    ) -> Transfer:
        value = graph.value(name)
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
        hosts = {d: self._pool.cluster.host(d) for m in (src.mesh, dst.mesh) for d in m.device_ids}
        inside = slowest_link(self._pool.cluster.hosts[host].link for host in {*hosts.values()})
        network = self._pool.cluster.inter_host if self._pool.cluster.levels else inside
        links = crossmesh.Links(
            network.bandwidth_bytes_per_s,
            device_bytes_per_s=inside.bandwidth_bytes_per_s,
            latency_s=network.latency_s,
        )
        return crossmesh.simulate(crossmesh.plan(src, dst, dtype, hosts, links)).time_s


def _is_of_pipesched(schedule: str) -> bool:
    """Whether a schedule is one of pipesched's own, by name."""
    is_name = pipesched.is_schedule(schedule)
    return is_name and pipesched.schedule_entry(schedule).name.partition(":")[0] in pipesched.NAMES
