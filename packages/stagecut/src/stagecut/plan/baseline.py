"""Baselines to compare with: stages of equal layers, operators or FLOPs on equal submeshes.

Each baseline is a rule for cutting the layers; the submeshes are equal parts of the cluster, one
for each stage. `price_stages` prices the result in the same way as the search prices its slicings.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from stagecut.base.checks import is_count
from stagecut.base.held_microbatches import InFlightFunction, one_f_one_b
from stagecut.base.types import BoundaryFunction, CostFunction, Slicing, Span, Submesh
from stagecut.errors import InvalidInputError
from stagecut.placement.submesh import submesh_shapes
from stagecut.plan.price_stages import price_stages


def equal_layers(
    n_layers: int,
    cluster_shape: tuple[int, int],
    n_microbatches: int,
    cost: CostFunction,
    memory_bytes: int | None = None,
    *,
    n_stages: int,
    boundary_s: BoundaryFunction | None = None,
    in_flight: InFlightFunction = one_f_one_b,
) -> Slicing:
    """The slicing into `n_stages` stages on equal submeshes, with its price.

    The numbers of layers of the stages differ by one at most; the first stages get the layers that
    are left over. The arguments are as for `price_stages`.

    Returns:
        A slicing as of `slice_stages`, but its lower bound is its own time, and it has no
        alternatives.

    Raises:
        InvalidInputError: There are fewer layers than stages, or the cluster cannot be divided into
            `n_stages` equal submeshes.
        InfeasibleStagesError: A stage has no price or does not fit.
    """
    n_devices = cluster_shape[0] * cluster_shape[1]
    by_size = {n * m: (n, m) for n, m in submesh_shapes(*cluster_shape)}
    can_be = is_count(n_stages) and is_count(n_layers, least=n_stages)
    submesh = by_size.get(n_devices // n_stages) if can_be else None
    if submesh is None or n_devices % n_stages:
        raise InvalidInputError(
            "equal stages have at least one layer each, and as many devices as some submesh; got "
            f"n_stages={n_stages}, n_layers={n_layers}, cluster_shape={tuple(cluster_shape)} "
            f"with submeshes of {tuple(by_size)} devices"
        )
    spans = even_spans(n_layers, submesh, n_stages)
    return price_stages(
        spans, n_microbatches, cost, memory_bytes, boundary_s=boundary_s, in_flight=in_flight
    )


def even_spans(n_layers: int, submesh: Submesh, n_stages: int) -> tuple[Span, ...]:
    """Stages with equally many layers; if some layers are left over, the first have one more.

    Examples:
        >>> even_spans(5, (1, 4), n_stages=3)
        ((0, 1, (1, 4)), (2, 3, (1, 4)), (4, 4, (1, 4)))
    """
    each, more = divmod(n_layers, n_stages)
    ends = [each * stage + min(stage, more) for stage in range(n_stages + 1)]
    return tuple((first, end - 1, submesh) for first, end in pairwise(ends))


def equal_spans(weights: Sequence[float], submesh: Submesh, n_stages: int) -> tuple[Span, ...]:
    """Stages on equal submeshes with the smallest possible maximum of the sums of their weights.

    Args:
        weights: For each layer its FLOPs, or its number of operators.
        submesh: The submesh of each stage.
        n_stages: Number of stages; at most the number of layers.

    Examples:
        >>> equal_spans((4.0, 1.0, 1.0, 2.0), (1, 4), n_stages=2)
        ((0, 0, (1, 4)), (1, 3, (1, 4)))
    """
    return tuple((first, last, submesh) for first, last in balanced_runs(weights, n_stages))


def balanced_runs(weights: Sequence[float], n_runs: int) -> tuple[tuple[int, int], ...]:
    """Cut into runs whose largest sum is smallest; ties go to the longest first runs.

    For L weights it takes O(L^2) time and memory for each run.

    Examples:
        >>> balanced_runs((1.0, 1.0, 1.0, 1.0, 1.0), 3)
        ((0, 1), (2, 3), (4, 4))
    """
    n = len(weights)
    done = np.concatenate(([0.0], np.cumsum(np.asarray(weights, dtype=np.float64))))
    # work[k, e] is the sum of the weights from k to e - 1; inf if there are none, as no run is
    # empty.
    work = np.where(np.arange(n + 1) > np.arange(n + 1)[:, None], done - done[:, None], np.inf)
    rest = np.where(np.arange(n + 1) == n, 0.0, np.inf)  # rest[k]: largest sum of the runs from k
    tables = [rest]
    for _ in range(n_runs):
        rest = np.maximum(work, rest).min(axis=1)
        tables.append(rest)
    limit = rest[0]
    runs, first = [], 0
    for left in reversed(tables[:-1]):
        end = int(np.nonzero((work[first] <= limit) & (left <= limit))[0][-1])
        runs.append((first, end - 1))
        first = end
    return tuple(runs)
