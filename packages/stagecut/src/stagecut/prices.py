"""What a search knows about the cost of every stage it may use, and how it learns more."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stagecut.errors import InvalidBoundError, InvalidInputError
from stagecut.plan import (
    BoundaryFunction,
    BoundFunction,
    CostFunction,
    Span,
    StageCost,
)
from stagecut.submesh import submesh_shapes
from stagecut.table import Cut, Floats

_ROUNDING = 1e-9
"""Relative; a cost may miss a bound that was summed up in another order by this much."""


class Prices:
    """Times and memory of the usable stages, as arrays over shape, first layer and last layer.

    Before it is priced, a stage takes its bound and no memory.
    """

    def __init__(
        self,
        n_layers: int,
        cluster_shape: tuple[int, int],
        cost: CostFunction,
        bound_s: BoundFunction | None,
        boundary_s: BoundaryFunction | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.shapes = submesh_shapes(*cluster_shape)
        self.sizes = tuple(n * m for n, m in self.shapes)
        self.n_layers, self.n_devices = n_layers, self.sizes[-1]
        self.costs: dict[Cut, StageCost | None] = {}
        self.usable = _usable(n_layers, self.n_devices, self.sizes)
        self._cost, self._progress = cost, progress
        self._boundary_s = [0.0] * n_layers
        if boundary_s is not None:
            for first in range(1, n_layers):
                self._boundary_s[first] = boundary_s(first)
                if not 0 <= self._boundary_s[first] < math.inf:
                    raise InvalidInputError(
                        "a boundary's time is finite and not negative; "
                        f"got boundary_s({first})={self._boundary_s[first]}"
                    )
        everything = (len(self.shapes), n_layers, n_layers)
        self.time_s: Floats = np.full(everything, np.inf)
        self._fixed_bytes: Floats = np.zeros(everything)
        self._activation_bytes: Floats = np.zeros(everything)
        for first, last, h in self.usable:
            bound = 0.0 if bound_s is None else bound_s(first, last, self.shapes[h])
            if not bound >= 0:
                raise InvalidBoundError(
                    "a bound is a time and not negative; "
                    f"got bound_s({first}, {last}, {self.shapes[h]})={bound}"
                )
            self.time_s[h, first, last] = bound + self._boundary_s[first]

    def learn(self, cuts: Iterable[Cut]) -> None:
        """Ask for the cost of those stages whose cost is not known yet."""
        for first, last, h in cuts:
            if (first, last, h) in self.costs:
                continue
            cost = self._cost(first, last, self.shapes[h])
            self.costs[first, last, h] = cost
            at = h, first, last
            if cost is None:
                self.time_s[at] = np.inf
            else:
                time_s = cost.time_s + self._boundary_s[first]
                if time_s < self.time_s[at] * (1 - _ROUNDING):
                    raise InvalidBoundError(
                        "bound_s must never exceed the cost of a stage; "
                        f"got bound_s={self.time_s[at] - self._boundary_s[first]} and "
                        f"time_s={cost.time_s} for layers {first}-{last} on {self.shapes[h]}"
                    )
                self.time_s[at] = time_s
                self._fixed_bytes[at] = cost.peak_bytes(0)
                self._activation_bytes[at] = cost.activation_bytes
            if self._progress is not None:
                self._progress(len(self.costs), len(self.usable))

    def peak_bytes(self, in_flight: int) -> Floats:
        """Memory of each stage with so many microbatches in flight (Eq. 5)."""
        return self._fixed_bytes + in_flight * self._activation_bytes

    def are_known(self, cuts: Iterable[Cut]) -> bool:
        """Whether all of these stages were priced."""
        return all(cut in self.costs for cut in cuts)

    def span(self, cut: Cut) -> Span:
        """The same stage as the caller names it."""
        return cut[0], cut[1], self.shapes[cut[2]]


def _usable(n_layers: int, n_devices: int, sizes: Sequence[int]) -> tuple[Cut, ...]:
    """Stages that some slicing of all layers over all devices contains, smallest submesh first.

    A stage can stay if the layers before it can use up some number of devices, and those after it
    the rest. So few layers cannot follow a small submesh on a large cluster, for example.
    """
    fewest = [0]  # stages that take exactly x devices
    for x in range(1, n_devices + 1):
        fewest.append(1 + min(fewest[x - size] for size in sizes if size <= x))
    layers = np.arange(n_layers + 1)[:, None]
    fills: NDArray[np.bool_] = np.asarray(fewest) <= layers  # (layers, devices)
    fills[1:, 0] = False  # layers that get no device
    cuts = []
    for h, size in enumerate(sizes):
        before = fills[:, : n_devices - size + 1].astype(np.int64)
        possible = before @ before[:, ::-1].T  # (layers before, layers after)
        cuts += [
            (first, last, h)
            for first in range(n_layers)
            for last in range(first, n_layers)
            if possible[first, n_layers - 1 - last]
        ]
    return tuple(cuts)
