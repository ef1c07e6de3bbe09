"""Alpa's prices of collectives, to reproduce the objectives of its solver.

Along a mesh axis of `d` devices with the coefficients `a` and `b`, `n` bytes cost

    all-gather        a + b (d - 1)/d n + 0.1
    all-reduce        a + 2 b (d - 1)/d n + 0.01
    reduce-scatter    a + b (d - 1)/d n + 0.001
    all-to-all        a + b (d - 1)/d^2 n d/2 + 0.001

The constants break ties; `d/2` makes the all-to-all match V100 with NVLink. `n` is as in
`costmodel.time.ring`, except that for an all-to-all it is the whole tensor of the group, `d` times
one device's. Costs have the unit of `a` and `b`, not seconds: Alpa's tests take 1 for both on every
axis.

Reference:
    Alpa's repository, `LogicalDeviceMesh` in `alpa/shard_parallel/auto_sharding.py`. XLA's
    `cluster_environment.h`, which prices what the solver sees, rounds all but the constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from shardspec import Step

from costmodel.base.checks import assign, checked, count, number
from costmodel.errors import QuantityError, UnknownNameError, shown
from costmodel.time.ring import Bytes

_FACTOR_AND_CONSTANT = {
    "all_gather": (1.0, 0.1),
    "all_reduce": (2.0, 0.01),
    "reduce_scatter": (1.0, 0.001),
    "all_to_all": (0.5, 0.001),
}


@dataclass(frozen=True, slots=True)
class AlpaMesh:
    """A logical mesh with Alpa's coefficients.

    Raises:
        QuantityError: The three tuples differ in length, an axis has no device, or a coefficient is
            not a finite number >= 0.

    Examples:
        >>> mesh = AlpaMesh(shape=(2, 4), alpha=(1.0, 1.0), beta=(1.0, 0.1))
        >>> mesh.cost("all_reduce", 1024, (0,)), mesh.cost("all_gather", 1024, (1,))
        (1025.01, 77.9)
    """

    shape: tuple[int, ...]
    """Number of devices along each axis."""
    alpha: tuple[float, ...]
    """For each axis, the cost of a collective of any size along it."""
    beta: tuple[float, ...]
    """For each axis, the cost of a byte along it."""
    rounded: bool = False
    """Whether costs are rounded before the constant is added, as in the compiled solver."""

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.alpha) == len(self.beta):
            raise QuantityError(
                "an Alpa mesh has one alpha and one beta for each axis; "
                f"got shape={self.shape}, alpha={self.alpha} and beta={self.beta}"
            )
        assign(
            self,
            shape=tuple(count("an axis's devices", size, least=1) for size in self.shape),
            alpha=tuple(number("alpha", alpha) for alpha in self.alpha),
            beta=tuple(number("beta", beta) for beta in self.beta),
        )

    def cost(self, kind: str, n_bytes: Bytes, axes: Iterable[int]) -> Bytes:
        """Cost of one collective.

        Args:
            kind: "all_gather", "all_reduce", "reduce_scatter" or "all_to_all".
            n_bytes: As in the module; a number or an array.
            axes: Mesh axes that the groups run over, one or more. Several axes have the largest
                alpha and beta among them, which XLA does only for all-reduces.

        Raises:
            QuantityError: `n_bytes` is negative or not finite, or `axes` is empty, has an axis
                twice, or one that this mesh does not have.
            UnknownNameError: Alpa has no price for this collective.
        """
        if kind not in _FACTOR_AND_CONSTANT:
            raise UnknownNameError(
                f"Alpa prices {', '.join(_FACTOR_AND_CONSTANT)}; got {shown(kind)}", str(kind)
            )
        factor, constant = _FACTOR_AND_CONSTANT[kind]
        axes = tuple(axes)
        if not axes or len({*axes} & {*range(len(self.shape))}) < len(axes):
            raise QuantityError(
                "axes of an Alpa mesh are one or more different ones of "
                f"{', '.join(map(str, range(len(self.shape))))}; got {shown(axes)}"
            )
        d = math.prod(self.shape[axis] for axis in axes)
        alpha = max(self.alpha[axis] for axis in axes)
        beta = max(self.beta[axis] for axis in axes)
        sizes: Any = checked("n_bytes", n_bytes)
        cost: Any = alpha + beta * factor * (d - 1) / d * sizes
        if self.rounded:
            cost = np.floor(cost + 0.5)  # halves are rounded up, as by C's `round` if positive
        total: Bytes = cost + constant
        return total

    def step_cost(self, step: Step, itemsize: int) -> float:
        """Cost of one step of a resharding, for the argument `cost` of `shardspec.reshard`.

        Returns:
            0.0 for a local step; infinity for a permutation, an exchange, or a step over parts of
            an axis, none of which Alpa considers.
        """
        if step.is_local:
            return 0.0
        if step.kind not in _FACTOR_AND_CONSTANT or step.mesh_axes != step.axes:
            return math.inf
        n_bytes = step.dst.local_bytes(itemsize)
        if step.kind in ("reduce_scatter", "all_to_all"):  # whole input, whole tensor
            n_bytes *= step.group_size
        return self.cost(step.kind, float(n_bytes), step.mesh_axes)
