"""Let some layers compute less again than others.

A plan in which all layers make one choice (`remat`) seldom fills the memory: less computed again
would take more than there is, if all layers did it. So each layer of a stage gets a choice of its
own. Of those that fit, we take the ones with the least time, by the prices of the layers in the
stage's layouts: a knapsack with one choice for each layer, solved exactly but for the rounding of
bytes. Of equal layers, the first ones compute most again, as Megatron's `recompute-method block`
has it: when backward reaches them, little else is held any more.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from stagecut import StageCost

from frontends.answer.plan import Plan
from frontends.plan.plan_fields import REMATS, Remat
from frontends.price.parallel_options import Option, submesh_of
from frontends.price.pricing import Pricer

_PIECES = 4096
"""Into how many pieces the memory of activations is cut, to which bytes are rounded up [chosen]."""

_GAIN = 0.99
"""Other choices are worth a plan if the slowest stage then takes less than this part of its time
[chosen]."""

Costs = Mapping[Remat, StageCost]
"""The cost of a layer by what it computes again."""


def remats_by_layer(
    plan: Plan, held: Sequence[int], pricers: Mapping[Remat, Pricer], room: float = 1.0
) -> tuple[Remat, ...] | None:
    """By layer what to compute again so that the stages of a plan take the least time.

    None if the plan would hardly be faster.

    Args:
        plan: A plan whose layers all make one choice, with one stage on each rank.
        held: By stage, the most microbatches that it holds.
        pricers: By choice, the prices of the layers; the plan's choice is the last.
        room: The part of the memory limit that a stage may seem to take.
    """
    usual = pricers[plan.remat]
    chosen: list[Remat] = []
    before_s = after_s = 0.0
    for stage, n_held in zip(plan.stages, held, strict=True):
        layers = range(stage.first_layer, stage.last_layer + 1)
        submesh = submesh_of(len(stage.mesh.device_ids), usual.cluster)
        whole = _as_planned(usual.costs(layers[0], layers[-1], submesh, n_held), usual, n_held)
        if whole is None or not isinstance(whole.option, Option):
            return None
        costs = [_costs(pricers, layer, submesh, whole.option) for layer in layers]
        least = whole.fixed_bytes + whole.temporary_bytes
        free = room * usual.memory_bytes - least
        each = least_time(costs, free / n_held) or (plan.remat,) * len(layers)
        chosen += first_layers_most(each, costs)
        before_s = max(before_s, sum(cost[plan.remat].time_s for cost in costs))
        after_s = max(after_s, sum(cost[r].time_s for r, cost in zip(each, costs, strict=True)))
    return tuple(chosen) if after_s < _GAIN * before_s else None


def _as_planned(costs: Sequence[StageCost] | None, pricer: Pricer, held: int) -> StageCost | None:
    """The cost in the fastest way that fits the memory; None if none does."""
    fitting = [c for c in costs or () if c.peak_bytes(held) <= pricer.memory_bytes]
    return min(fitting, key=lambda cost: cost.time_s, default=None)


def _costs(
    pricers: Mapping[Remat, Pricer], layer: int, submesh: tuple[int, int], option: Option
) -> Costs:
    """The cost of a layer, by what it computes again."""
    costs: dict[Remat, StageCost] = {}
    for remat, pricer in pricers.items():
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
