"""Time and memory of each layer in one sharding of the whole model, from which stages are priced.

Runs of layers are asked for many times, so sums over the layers before each one are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from autoshard import Sharding

from frontends.layers.collapse import Repeated
from frontends.layers.expand import layer_seconds
from frontends.step.stage_memory import held
from frontends.step.step import APPLY


class Sums:
    """The sum of a quantity over any run of layers."""

    def __init__(self, of_layers: Iterable[float]) -> None:
        self.before = (0.0, *accumulate(of_layers))
        """By layer, the sum over the layers before it; the sum over all at the end."""

    def of(self, first: int, last: int) -> float:
        """The sum over layers `first` to `last`, both included."""
        return max(0.0, self.before[last + 1] - self.before[first])


@dataclass(frozen=True, slots=True)
class LayerTotals:
    """Time and memory of the layers of a model on one device of a submesh."""

    time_s: Sums
    """Forward and backward of a microbatch."""

    once_s: Sums
    """What a step takes besides, once."""

    fixed_bytes: Sums
    activation_bytes: Sums
    temporary_bytes: tuple[int, ...]
    """By layer, not summed: the most that is held on top while one of its operators runs."""

    alone_bytes: int
    """What all layers hold on top if they are one stage, which frees activations as backward goes.

    So it is less than the largest of `temporary_bytes` if that one is held late in backward.
    """

    def on_top(self, first: int, last: int) -> int:
        """The most bytes that a stage of these layers holds besides state and activations."""
        if last - first + 1 == len(self.temporary_bytes):
            return self.alone_bytes
        return max(self.temporary_bytes[first : last + 1])

    @property
    def peak_bytes(self) -> float:
        """The peak of all layers in one stage."""
        return self.fixed_bytes.before[-1] + self.activation_bytes.before[-1] + self.alone_bytes


def layer_totals(repeated: Repeated, sharding: Sharding, microbatches: int) -> LayerTotals:
    """The times and memory of all layers, from a sharding of those that stand for them.

    Args:
        repeated: The whole step and the short one.
        sharding: A sharding of the whole short step.
        microbatches: The microbatches of a step.
    """
    short, graph = repeated.short, sharding.graph
    seconds = layer_seconds(short, sharding, 0)
    fixed, saved = [0] * short.n_layers, [0] * short.n_layers
    on_top = [0] * (len(graph.operators) + 1)
    saving: list[list[tuple[int, int]]] = [[] for _ in on_top]
    for one in held(sharding):
        if one.value in graph.producers:
            layer = short.layer_of[graph.operators[graph.producers[one.value][0]].name]
        else:
            layer = short.home[one.value]
        if one.kind == "activation":
            saved[layer] += one.n_bytes
            saving[one.first].append((layer, one.n_bytes))
            saving[one.last].append((layer, -one.n_bytes))
        elif one.kind in ("parameter", "optimizer_state", "input", "gradient"):
            fixed[layer] += one.n_bytes
        else:
            on_top[one.first] += one.n_bytes
            on_top[one.last] -= one.n_bytes
    temporary, beyond_saved = [0] * short.n_layers, [-math.inf] * short.n_layers
    in_apply, alive = 0, [0] * short.n_layers
    for op, n_bytes, changes in zip(graph.operators, accumulate(on_top), saving, strict=False):
        for layer, more in changes:
            alive[layer] += more
        layer = short.layer_of[op.name]
        temporary[layer] = max(temporary[layer], n_bytes)
        if op.phase == APPLY:
            in_apply = max(in_apply, n_bytes)
        else:
            freed = saved[layer] - alive[layer]
            beyond_saved[layer] = max(beyond_saved[layer], n_bytes - freed)
    layers, _, _ = repeated.shortened(0, repeated.whole.n_layers - 1)
    activations = Sums(saved[k] for k in layers)
    *upto, every = activations.before[1:]
    # While a layer runs, nothing is saved in those after it; while apply runs, nothing at all.
    alone = (beyond_saved[k] - (every - n) for k, n in zip(layers, (*upto, every), strict=True))
    return LayerTotals(
        time_s=Sums(sum(seconds[k].total_s[:APPLY]) / microbatches for k in layers),
        once_s=Sums(seconds[k].total_s[APPLY] for k in layers),
        fixed_bytes=Sums(fixed[k] for k in layers),
        activation_bytes=activations,
        temporary_bytes=tuple(temporary[k] for k in layers),
        alone_bytes=math.ceil(max(0.0, in_apply - every, *alone)),
    )
