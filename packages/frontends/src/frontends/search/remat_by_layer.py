"""Let some layers compute less again than others.

A plan in which all layers make one choice (`remat`) seldom fills the memory: less computed again
would take more than there is, if all layers did it. So layers are sliced into stages anew, each of
which makes the choice that fits it, as the first stages of a pipeline hold most. Then each layer of
a stage gets a choice of its own. Of those that fit, we take the ones with the least time, by the
prices of the layers in the stage's layouts: a knapsack with one choice for each layer, solved
exactly but for the rounding of bytes. Of equal layers, the first ones compute most again, as
Megatron's `recompute-method block` has it: when backward reaches them, little else is held.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from stagecut import Span, StageCost, Submesh

from frontends.answer.plan import Plan
from frontends.plan.plan_fields import REMATS, Remat, Remats
from frontends.price.device_pool import DevicePool
from frontends.price.parallel_options import Option
from frontends.price.pricing import Pricer, undominated
from frontends.search.candidates import spans_of_plan
from frontends.search.planner import Planner

_ROOMS = (1.06, 1.0, 0.9)
"""Parts of the memory that stages may seem to take, in the order in which they are tried [chosen].
What seems to fit may not, and the other way round: what is held in the last layers does not count
when backward reaches the first ones, which compute most again."""

_SEEMS_FASTER, _IS_FASTER = 0.98, 0.99
"""Other choices are worth a plan if the slowest stage then seems to take less than the first part
of its time, and the plan is taken if a step takes less than the second one [chosen]."""

_SLICINGS = 2
"""How many slicings are planned, besides that of the plan [chosen]."""

_PIECES = 4096
"""Into how many pieces the memory of activations is cut, to which bytes are rounded up [chosen]."""

Costs = Mapping[Remat, StageCost]
"""The cost of a layer by what it computes again."""


def faster_by_layer(
    plan: Plan, planner_of: Callable[[Remats], Planner], pool: DevicePool
) -> tuple[Plan, Remats] | None:
    """A faster plan in which some layers compute less again, and what they compute; None if none.

    Its stages have as many devices as those of the plan. There is none if stages of the plan share
    devices, or if stages are not searched.

    Args:
        plan: A plan in which all layers make one choice.
        planner_of: Returns what plans the step in the plan's number of microbatches.
        pool: The devices that the plan is for.
    """
    spans = spans_of_plan(plan, pool)
    devices = {stage.mesh.device_ids for stage in plan.stages}
    if plan.remat == "none" or len(devices) < len(spans):
        return None
    usual = planner_of(plan.remat)
    held = usual.held(plan.schedule_name, len(spans))
    if held is None or not usual.searches:
        return None
    choices = REMATS[: REMATS.index(plan.remat) + 1]
    stages = MixedStages({remat: planner_of(remat).pricer for remat in choices}, spans, held)
    others = usual.slicings(stages.costs)[:_SLICINGS] if len(spans) > 1 else []
    most_s = _SEEMS_FASTER * stages.slowest_s(spans, held)
    best, limit_s = None, _IS_FASTER * plan.step_s
    for each in dict.fromkeys(map(tuple, (*others, spans))):
        held = usual.held(plan.schedule_name, len(each))
        for room in _ROOMS:
            chosen = None if held is None else stages.choose(each, held, room)
            if chosen is None or chosen[1] > most_s:
                break
            remats: Remats = chosen[0] if len({*chosen[0]}) > 1 else chosen[0][0]
            found = planner_of(remats).in_stages(each)
            if found is not None and found.step_s < limit_s:
                best, limit_s = (found, remats), found.step_s
                break
    return best


class MixedStages:
    """Prices and chooses what the layers of stages compute again.

    Args:
        pricers: By choice, the prices of the layers; the last one computes most again.
        spans: The stages of a plan in which all layers make the last choice; others run in the same
            layouts, on submeshes of the same shapes.
        held: By stage, the most microbatches that it holds.
    """

    def __init__(
        self, pricers: Mapping[Remat, Pricer], spans: Sequence[Span], held: Sequence[int]
    ) -> None:
        self._pricers = pricers
        self._most, self._usual = [*pricers.items()][-1]
        self._options: dict[Submesh, dict[Option, None]] = defaultdict(dict)
        for (first, last, submesh), n_held in zip(spans, held, strict=True):
            whole = self._as_planned(first, last, submesh, n_held)
            if whole is not None and isinstance(whole.option, Option):
                self._options[submesh][whole.option] = None

    def costs(
        self, first: int, last: int, submesh: Submesh, held: int = 1
    ) -> tuple[StageCost, ...] | None:
        """The cost of a stage by the choice of all of its layers; None if it fits with none.

        Args:
            first: First layer.
            last: Last layer, included.
            submesh: The submesh that they run on.
            held: Not used: what fits with one microbatch is returned.
        """
        costs: list[StageCost] = []
        for option in self._options.get(submesh, ()):
            for pricer in self._pricers.values():
                cost = pricer.cost(first, last, submesh, option)
                if cost is not None and cost.peak_bytes(1) <= pricer.pool.limit(submesh):
                    costs.append(cost)
        return tuple(undominated(costs)) or None

    def choose(
        self, spans: Sequence[Span], held: Sequence[int], room: float = 1.0
    ) -> tuple[tuple[Remat, ...], float] | None:
        """By layer what to compute again, and the time of a microbatch in the slowest stage.

        None if a stage does not fit.

        Args:
            spans: The stages.
            held: By stage, the most microbatches that it holds.
            room: The part of the memory limit that a stage may seem to take.
        """
        chosen: list[Remat] = []
        slowest_s = 0.0
        for (first, last, submesh), n_held in zip(spans, held, strict=True):
            whole = self._as_planned(first, last, submesh, n_held)
            if whole is None or not isinstance(whole.option, Option):
                return None
            each = [self._of_layer(k, submesh, whole.option) for k in range(first, last + 1)]
            least = whole.fixed_bytes + whole.temporary_bytes
            free = room * self._usual.pool.limit(submesh) - least
            remats = least_time(each, free / n_held) or (self._most,) * len(each)
            chosen += first_layers_most(remats, each)
            seconds = (costs[r].time_s for r, costs in zip(remats, each, strict=True))
            slowest_s = max(slowest_s, sum(seconds))
        return tuple(chosen), slowest_s

    def slowest_s(self, spans: Sequence[Span], held: Sequence[int]) -> float:
        """The time of a microbatch in the slowest stage if all layers make the last choice."""
        stages = (self._as_planned(*span, n) for span, n in zip(spans, held, strict=True))
        return max(math.inf if cost is None else cost.time_s for cost in stages)

    def _as_planned(self, first: int, last: int, submesh: Submesh, held: int) -> StageCost | None:
        """The last choice in the fastest way that fits the memory; None if none does."""
        costs = self._usual.costs(first, last, submesh, held) or ()
        limit = self._usual.pool.limit(submesh)
        fitting = [c for c in costs if c.peak_bytes(held) <= limit]
        return min(fitting, key=lambda cost: cost.time_s, default=None)

    def _of_layer(self, layer: int, submesh: Submesh, option: Option) -> Costs:
        costs: dict[Remat, StageCost] = {}
        for remat, pricer in self._pricers.items():
            cost = pricer.cost(layer, layer, submesh, option)
            if cost is not None:
                costs[remat] = cost
        return costs


def least_time(costs: Sequence[Costs], free: float) -> tuple[Remat, ...] | None:
    """By layer the choice with which all layers together take the least time.

    None if none fits.

    Args:
        costs: By layer, the cost of each choice.
        free: The bytes that one microbatch may take in all layers together.
    """
    if free <= 0:
        return None
    piece = free / _PIECES
    best: dict[int, tuple[float, tuple[Remat, ...]]] = {0: (0.0, ())}
    for layer in costs:
        more: dict[int, tuple[float, tuple[Remat, ...]]] = {}
        for taken, (time_s, choices) in best.items():
            for remat, cost in layer.items():
                pieces = taken + math.ceil(cost.activation_bytes / piece)
                other_s = time_s + cost.time_s
                if pieces <= _PIECES and other_s < more.get(pieces, (math.inf,))[0]:
                    more[pieces] = other_s, (*choices, remat)
        best = {}
        fastest_s = math.inf
        for pieces in sorted(more):  # what takes more memory and no less time is no use
            if more[pieces][0] < fastest_s:
                fastest_s = more[pieces][0]
                best[pieces] = more[pieces]
    return min(best.values(), default=(0.0, None))[1]


def first_layers_most(chosen: Sequence[Remat], costs: Sequence[Costs]) -> list[Remat]:
    """The same choices, such that of equal layers the first ones compute most again."""
    equal: dict[tuple[tuple[Remat, int, str], ...], list[int]] = defaultdict(list)
    for layer, each in enumerate(costs):
        kind = ((r, c.activation_bytes, f"{c.time_s:.6g}") for r, c in each.items())
        equal[tuple(kind)].append(layer)
    ordered = list(chosen)
    for layers in equal.values():
        most = sorted((chosen[k] for k in layers), key=REMATS.index, reverse=True)
        for layer, remat in zip(layers, most, strict=True):
            ordered[layer] = remat
    return ordered
