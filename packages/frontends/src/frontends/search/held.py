"""Plan a step in held layouts: the state that it shares with an earlier plan stays where it is.

A step that is called with another shape of batch, or in another mode, is another program with the
same weights. If its plan chose layouts freely, all state would move whenever calls alternate. So
the stages of the first plan are kept, with their devices and logical meshes, and the state in them
is pinned to its layouts; only the strategies of operators are searched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import pipesched
from autoshard import Value
from costmodel import Cluster
from shardspec import Mesh, Spec
from shardspec.amounts import bytes_text

from frontends.answer.plan import Plan
from frontends.errors import HeldLayoutError, PlanError
from frontends.layers.expand import local_elements
from frontends.plan.plan_fields import Stage
from frontends.plan.schedule import first_microbatches, most_held, schedule_of
from frontends.price.device_pool import DevicePool
from frontends.price.parallel_options import ParallelPins
from frontends.price.pins import OperandSpecs, Pin, pins_of
from frontends.price.pricing import Priced, Pricer
from frontends.search.assemble import Joiner
from frontends.search.held_layers import layers_of_held, without_copies
from frontends.search.plan_options import PlanOptions
from frontends.step.step import STATE, TrainingStep

HELD = "held"
"""`Plan.strategy` of a plan in held layouts."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a value is kept between steps."""

    devices: tuple[int, ...]
    shape: tuple[int, ...]
    """Shape of their logical mesh."""

    spec: Spec

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{self.spec} on devices {', '.join(map(str, self.devices))} ({shape})"


def homes_of(plan: Plan) -> dict[str, frozenset[Home]]:
    """By name, where state is kept between steps; copies that a step makes do not count.

    A plan of format 1 does not say which arguments are state, so all are included.
    """
    received = {(t.destination, t.value) for t in plan.transfers}
    homes_by_name: dict[str, set[Home]] = {}
    for index, stage in enumerate(plan.stages):
        graph = None if stage.sharding is None else stage.sharding.graph
        for stored in stage.inputs:
            is_state = graph is None or graph.value(stored.value).role in STATE
            if is_state and (index, stored.value) not in received:
                home = Home(tuple(stage.mesh.device_ids), stage.mesh.shape, stored.spec)
                homes_by_name.setdefault(stored.value, set()).add(home)
    return {name: frozenset(homes) for name, homes in homes_by_name.items()}


def same_homes(plan: Plan, other: Plan, names: Collection[str] | None = None) -> list[str]:
    """How two plans differ in where they keep values; empty if state need not move between them.

    Args:
        plan: A plan.
        other: The plan to compare it with.
        names: Names of arguments; by default all state of both. A value that only one of the plans
            keeps is not a difference.

    Returns:
        A line for each value that is not kept on the same devices in the same layout.
    """
    homes, other_homes = homes_of(plan), homes_of(other)
    both = [name for name in homes if name in other_homes and (names is None or name in names)]
    return [
        f"{name}: {_listed(homes[name])} here, {_listed(other_homes[name])} there"
        for name in both
        if homes[name] != other_homes[name]
    ]


def _listed(homes: Collection[Home]) -> str:
    return " and ".join(sorted(map(str, homes)))


def updated_by(plan: Plan) -> frozenset[str]:
    """The arguments that a plan's step updates; empty for a plan of format 1, which is silent."""
    graphs = (stage.sharding.graph for stage in plan.stages if stage.sharding is not None)
    return frozenset(o.alias for graph in graphs for o in graph.outputs if o.alias is not None)


class HeldPlanner:
    """Plans a step with the stages of an earlier plan, and its state in the same layouts.

    Args:
        step: The step, in a number of microbatches.
        hold: The earlier plan.
        cluster: The cluster that the earlier plan is for.
        options: How to plan. Strategy, schedule and stages are those of the earlier plan; pins of
            held state and of stages are ignored.
        unsharded: Kinds of operators without a rule, for the report.
        sends_state: See `layers_of_held`.

    Raises:
        HeldLayoutError: The step's layers or state are not those of the plan.
    """

    def __init__(
        self,
        step: TrainingStep,
        hold: Plan,
        cluster: Cluster,
        options: PlanOptions = PlanOptions(),  # noqa: B008 (it is frozen)
        *,
        unsharded: Sequence[str] = (),
        sends_state: bool = False,
    ) -> None:
        if hold.n_devices > cluster.n_devices:
            raise HeldLayoutError(
                f"state is held on the devices of a plan; this one uses {hold.n_devices}, and "
                f"cluster {cluster.name!r} has {cluster.n_devices}"
            )
        self._hold, self._cluster, self._options = hold, cluster, options
        self.layered, self._spans = layers_of_held(step, hold, sends_state=sends_state)
        self._stages = without_copies(hold)
        self._updated = self.layered.updated | updated_by(hold)
        self._unread = self._unread_bytes()
        self._pins, self._unsharded = self._free_pins(options.pin or {}), tuple(unsharded)
        self._schedule = self._schedule_text()

    def _pool(self, device_ids: Iterable[int]) -> DevicePool:
        """Some devices, with the memory that is left beside held state that this step reads not."""
        limit = self._options.memory_bytes
        return DevicePool(self._cluster, limit, device_ids, taken_bytes=self._unread)

    def _unread_bytes(self) -> int:
        """The bytes of held state on a device that are there, although this step reads none of it.

        An evaluation reads no optimizer state.
        """
        bytes_of: Counter[int] = Counter()
        mine = {*self.layered.step.graph.inputs}
        for name, homes in homes_of(self._hold).items():
            value = self._values.get(name)
            if name not in mine and value is not None:
                for home in homes:
                    n = local_elements(home.spec, value.shape, home.shape) * value.itemsize
                    bytes_of.update(dict.fromkeys(home.devices, n))
        return max(bytes_of.values(), default=0)

    @cached_property
    def _values(self) -> dict[str, Value]:
        """By name, the arguments of the earlier plan's stages."""
        graphs = [stage.sharding.graph for stage in self._stages if stage.sharding is not None]
        return {name: graph.value(name) for graph in graphs for name in graph.inputs}

    def plan(self) -> Plan:
        """The plan in held layouts.

        Raises:
            HeldLayoutError: No plan fits the memory, or state cannot be kept where it is.
        """
        order = self._order()
        per_rank = 1 if len(order.ranks) >= order.n_stages else order.n_stages // len(order.ranks)
        plan = None
        for share in dict.fromkeys((1.0, (1.0 + 1 / per_rank) / 2, 1 / per_rank)):
            plan = plan or self._planned(order, share)
        if plan is None:
            limit = self._pool(self._hold.device_ids).least_limit
            raise HeldLayoutError(
                f"a step in held layouts fits the devices with the stages of the earlier plan; in "
                f"{self.layered.step.microbatches} microbatches this one needs more than "
                f"{bytes_text(limit)} a device, or has an operator that no held "
                "layout allows: plan it on its own, and move the state"
            )
        differences = same_homes(plan, self._hold, self._updated)
        if differences:
            raise HeldLayoutError(
                "a step in held layouts keeps its state where the earlier plan does; this one does "
                f"not: {'; '.join(differences[:3])}: plan it on its own, and move the state"
            )
        return replace(plan, strategy=HELD)

    def _planned(self, order: pipesched.Schedule, share: float) -> Plan | None:
        """The plan with this share of a device's memory for each stage; None if it does not fit."""
        held, between = most_held(order)
        stages: list[tuple[int, int, Mesh, Priced]] = []
        first = self._pricer(0)
        for index, (stage, span) in enumerate(zip(self._stages, self._spans, strict=True)):
            self._options.tell("planning in held layouts", index, len(self._stages))
            pricer = self._pricer(index) if index else first
            priced = pricer.sharing(share).price(
                *span, pricer.pool.whole, held[index], split=between[index] > 0
            )
            if priced is None:
                return None
            stages.append((*span, stage.mesh, priced))
        self._options.tell("planning in held layouts", len(self._stages), len(self._stages))
        joiner = Joiner(first, self._unsharded, self._pool(self._hold.device_ids))
        plan = joiner.join(stages, self._schedule)
        return plan if joiner.fits(plan) else None

    def _pricer(self, index: int) -> Pricer:
        """A pricer for one stage, on its mesh and with its state pinned to the held layouts."""
        stage, hold = self._stages[index], self._hold
        received = {t.value for t in hold.transfers if t.destination == index}
        graph = self.layered.step.graph
        specs = dict(self._pins)
        for stored in stage.inputs:
            if stored.value in graph.inputs and graph.value(stored.value).role in STATE:
                specs.pop(stored.value, None)
                if stored.value not in received and self._is_same(stage, stored.value):
                    specs[stored.value] = stored.spec
        return Pricer(
            self.layered,
            self._pool(stage.mesh.device_ids),
            level=self._options.level,
            memory_rule=self._options.memory_rule,
            pins=specs,
            parallel=ParallelPins(mesh=stage.mesh.shape),
        )

    def _is_same(self, stage: Stage, name: str) -> bool:
        """Whether an argument has the shape and type of the one that a stage keeps.

        Scalars, and arguments that no step updates, may differ.

        Raises:
            HeldLayoutError: It differs, and one of the steps updates it.
        """
        value = self.layered.step.graph.value(name)
        kept = value if stage.sharding is None else stage.sharding.graph.value(name)
        if (value.shape, value.dtype) == (kept.shape, kept.dtype):
            return True
        if name not in self._updated or value.shape == kept.shape == ():
            self._updated -= {name}
            return False
        raise HeldLayoutError(
            "a step that shares its state with a plan has it in the same shapes and types; got "
            f"{name} of {value.dtype}{list(value.shape)} for {kept.dtype}{list(kept.shape)}"
        )

    def _free_pins(self, pin: Mapping[str, Pin]) -> Mapping[str, Spec | OperandSpecs]:
        """The specs that the user pins, for values of this step."""
        specs: dict[str, Spec | OperandSpecs] = {}
        for name, each in pin.items():
            if not isinstance(each, int):
                with suppress(PlanError):  # this step has no value of that name
                    specs.update(pins_of(self.layered, {name: each}, 1).specs)
        return specs

    def _schedule_text(self) -> str:
        """The earlier schedule for this number of microbatches, by name or as text.

        One that was made for the costs of the earlier stages is made anew. Replicas of stages are
        left out: they keep no state, and need several microbatches each.
        """
        n_stages, microbatches = len(self._stages), self.layered.step.microbatches
        if n_stages == 1 or n_stages < len(self._hold.stages):
            return "1f1b"
        name = self._hold.schedule_name
        if pipesched.is_schedule(name):
            with suppress(pipesched.PipeschedError):
                pipesched.check(pipesched.make(name, n_stages, microbatches))
                return name
        return str(first_microbatches(schedule_of(self._hold), microbatches))

    def _order(self) -> pipesched.Schedule:
        if not pipesched.is_schedule(self._schedule):
            return pipesched.Schedule.parse(self._schedule)
        n_stages = len(self._stages)
        return pipesched.make(self._schedule, n_stages, self.layered.step.microbatches)
