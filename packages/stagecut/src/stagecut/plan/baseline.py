"""The obvious plans, to compare with: equal layers, operators or FLOPs on equal submeshes.

Each is a rule for cutting the layers; the submeshes are as many equal parts of the cluster. What a
rule's plan takes is priced as the search prices its own, by `price_stages`.
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
    """Price the slicing into `n_stages` stages of equal submeshes and, up to one, equal layers.

    The arguments mean what they mean for `price_stages`. The first stages get the layers left over.

    Returns:
        This one slicing, in the form of a searched one: its lower bound is its own time, and it has
        no alternatives.

    Raises:
        InvalidInputError: There are fewer layers than stages, or no submesh that many times.
        InfeasibleStagesError: A stage has no price or does not fit.
    """
    n_devices = cluster_shape[0] * cluster_shape[1]
    by_size = {n * m: (n, m) for n, m in submesh_shapes(*cluster_shape)}
    can_be = is_count(n_stages) and is_count(n_layers, least=n_stages)
    submesh = by_size.get(n_devices // n_stages) if can_be else None
    if submesh is None or n_devices % n_stages:
        raise InvalidInputError(
            "equal stages need a layer each, and as many devices each as a submesh can have; got "
            f"n_stages={n_stages}, n_layers={n_layers}, cluster_shape={tuple(cluster_shape)} "
            f"with submeshes of {tuple(by_size)} devices"
        )
    spans = even_spans(n_layers, submesh, n_stages)
    return price_stages(
        spans, n_microbatches, cost, memory_bytes, boundary_s=boundary_s, in_flight=in_flight
    )


def even_spans(n_layers: int, submesh: Submesh, n_stages: int) -> tuple[Span, ...]:
    """Stages of equally many layers, the first ones of one more if there are layers left over.

    Examples:
        >>> even_spans(5, (1, 4), n_stages=3)
        ((0, 1, (1, 4)), (2, 3, (1, 4)), (4, 4, (1, 4)))
    """
    each, more = divmod(n_layers, n_stages)
    ends = [each * stage + min(stage, more) for stage in range(n_stages + 1)]
    return tuple((first, end - 1, submesh) for first, end in pairwise(ends))


def equal_spans(weights: Sequence[float], submesh: Submesh, n_stages: int) -> tuple[Span, ...]:
    """Stages on equal submeshes whose largest sum of weights is as small as it can be.

    Args:
        weights: Of each layer: its FLOPs or its number of operators.
        submesh: Of each stage.
        n_stages: How many stages, at most as many as layers.

    Examples:
        >>> equal_spans((4.0, 1.0, 1.0, 2.0), (1, 4), n_stages=2)
        ((0, 0, (1, 4)), (1, 3, (1, 4)))
    """
    return tuple((first, last, submesh) for first, last in balanced_runs(weights, n_stages))


def balanced_runs(weights: Sequence[float], n_runs: int) -> tuple[tuple[int, int], ...]:
    """Cut into runs whose largest sum is least; then the first runs are as long as they can be.

    Takes O(L^2) time and memory for each run.

    Examples:
        >>> balanced_runs((1.0, 1.0, 1.0, 1.0, 1.0), 3)
        ((0, 1), (2, 3), (4, 4))
    """
    n = len(weights)
    done = np.concatenate(([0.0], np.cumsum(np.asarray(weights, dtype=np.float64))))
    # work[k, e]: of the layers from k to e - 1, which are a run only if there are any.
    work = np.where(np.arange(n + 1) > np.arange(n + 1)[:, None], done - done[:, None], np.inf)
    rest = np.where(np.arange(n + 1) == n, 0.0, np.inf)  # largest sum of the runs from k on
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
