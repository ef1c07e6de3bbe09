"""From a step and a cluster to a plan: Alpa's two levels, each by its own package (Alpa Alg. 1).

stagecut slices layers and devices into stages. It asks for the prices of a run of layers on a
submesh: those of autoshard's shardings over the logical meshes of that submesh (see `pricing`). The
best slicings are simulated with the bytes that cross their cuts; the stages of the best ones are
sharded on their own, joined by transfers that crossmesh plans, ordered by each pipesched schedule
that runs, and simulated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import autoshard
import stagecut
from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.errors import NoPlanError
from frontends.layers.layers import LayeredStep
from frontends.plan.plan_fields import Alternative
from frontends.plan.schedule import PLAIN
from frontends.price.pins import pins_of
from frontends.price.pricing import Pricer
from frontends.search.candidates import BASELINES, EQUAL_LAYERS, SEARCH, Candidates
from frontends.search.plan_options import PlanOptions


class Planner:
    """Searches stages, submeshes and shardings for a step; needs no devices, makes nothing twice.

    The obvious plans are priced too, and taken if one of them is faster (design, principle 2).

    Args:
        layered: The step in layers.
        cluster: What it is to run on.
        options: How to plan; the step is in the microbatches that it is in.
        undivided: The same step with one microbatch: without a pipeline, cutting the batch only
            costs time, so that the obvious plans are tried both ways.
        keep_microbatches: Whether a plan for `undivided` is priced only, and not taken.
        unsharded: Kinds of operators without a rule, for the report.

    Raises:
        NoPlanError: Nothing fits the memory.
        PlanError: Nothing has the name of a pin.
    """

    def __init__(
        self,
        layered: LayeredStep,
        cluster: Cluster,
        options: PlanOptions = PlanOptions(),  # noqa: B008 (it is frozen)
        *,
        undivided: LayeredStep | None = None,
        keep_microbatches: bool = False,
        unsharded: Sequence[str] = (),
    ) -> None:
        self.memory_bytes = options.memory_limit(cluster)
        self.layered, self.cluster, self.options = layered, cluster, options
        self.keep_microbatches = keep_microbatches
        pin, strategy = options.pin or {}, options.strategy
        schedules = PLAIN if options.schedule is None else (options.schedule,)
        candidates: list[Candidates] = []
        for step in (layered, undivided):
            if step is None:
                continue
            pins = pins_of(step, pin, cluster.n_devices)
            pricer = Pricer(
                step,
                cluster,
                self.memory_bytes,
                level=options.level,
                memory_rule=options.memory_rule,
                pins=pins.specs,
            )
            candidates.append(Candidates(pricer, schedules, unsharded, pins.stages))
        self._searched = candidates[0]
        state_bytes = self._searched.pricer.bounds.state_bytes()
        if state_bytes > self.memory_bytes * cluster.n_devices:
            raise NoPlanError(
                f"parameters, optimizer state and sums of gradients must fit the devices; they "
                f"take {state_bytes} bytes, and the {cluster.n_devices} devices of cluster "
                f"{cluster.name!r} have {self.memory_bytes} each: raise the memory or take more "
                "devices"
            )
        tries = [(SEARCH, self._searched)]
        tries += [(name, each) for name in BASELINES for each in candidates]
        tries.append((EQUAL_LAYERS, self._searched))
        self._tries = {
            name if each is self._searched else f"{name}, 1 microbatch": (name, each)
            for name, each in tries
            if strategy in ("auto", name)
        }
        self._found: dict[str, Plan | str] = {}
        self._like: list[Plan] = []
        self._misfit = ""

    def best(self) -> Plan:
        """The fastest plan of the strategy, with the others as alternatives."""
        return self._of(list(self._tries))

    def usual(self) -> Plan:
        """The fastest of those that need no search; of a search alone, what it is to beat."""
        return self._of([label for label in self._tries if label != SEARCH] or [EQUAL_LAYERS])

    def like(self, other: Plan) -> Plan | None:
        """The plan with another one's stages, if it fits; from then on `best` may take it.

        Args:
            other: Of the same function in another number of microbatches.
        """
        return self._kept(lambda: self._searched.with_stages_of(other))

    def in_one_stage(self) -> Plan | None:
        """The fastest searched plan without a pipeline, if one fits; `best` may take it as well."""
        return self._kept(self._searched.in_one_stage)

    def one_stage_bound_s(self) -> float:
        """A time that `in_one_stage` does not beat, for less work; infinite if it is not wanted."""
        is_wanted = SEARCH in self._tries and not self._searched.stage_of_layer
        return self._searched.one_stage_bound_s() if is_wanted else math.inf

    def _kept(self, make: Callable[[], Plan | None]) -> Plan | None:
        """A plan for `best` to take, if searched ones are wanted and it can be made."""
        if SEARCH in self._tries and not self._searched.stage_of_layer:
            with suppress(autoshard.AutoshardError):
                found = make()
                if found is not None:
                    self._like.append(found)
                return found
        return None

    def _of(self, labels: Sequence[str]) -> Plan:
        """The fastest of some tries."""
        for done, label in enumerate(labels):
            name, each = self._tries.get(label, (label, self._searched))
            if label not in self._found:
                self._found[label] = self._made(name, each)
            if name != SEARCH:
                self.options.tell("pricing others", done + 1, len(labels))
        found = {label: self._found[label] for label in labels}
        if SEARCH in found:
            searched = [p for p in (found[SEARCH], *self._like) if isinstance(p, Plan)]
            found[SEARCH] = min(searched, key=lambda p: p.step_s, default=found[SEARCH])
        chosen = _choose(found, self.layered.step.microbatches if self.keep_microbatches else None)
        if chosen is None:
            raise self._nothing(found)
        return chosen

    def _made(self, name: str, each: Candidates) -> Plan | str:
        """A plan, or why there is none."""
        try:
            return each.make(name, self.options.progress)
        except (autoshard.AutoshardError, stagecut.StagecutError) as error:
            if isinstance(error, autoshard.PinError):
                self._misfit = f"{error}; "
            return str(error)

    def _nothing(self, found: Mapping[str, Plan | str]) -> NoPlanError:
        where, less = f"cluster {self.cluster.name!r}", ""
        if self.options.pin:
            where, less = f"{where} with pins of {', '.join(self.options.pin)}", ", or pin less"
        strategy = self.options.strategy
        if strategy != "auto":
            reason = next(str(why) for why in found.values())
            return NoPlanError(f"no {strategy} plan runs on {where}: {reason}{less}")
        return NoPlanError(
            f"no plan fits {self.memory_bytes} bytes a device of {where}: {self._misfit}raise the "
            f"memory, cut the batch into more microbatches, or take more devices{less}"
        )


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
        ratio = other.step_s / best.step_s if best.step_s else math.inf
        if name not in allowed:
            reason = f"{microbatches} microbatches were asked for"
        else:
            reason = f"{ratio:.2f} times as long a step" if ratio > 1.005 else "no faster"
        alternatives.append(Alternative(name, other.step_s, other.memory_bytes, reason))
    return replace(best, strategy=taken, alternatives=tuple(alternatives))
