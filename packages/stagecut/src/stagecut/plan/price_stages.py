"""Prices given stages: those of a baseline, a manual cut, or a neighbour of the best slicing.

Only the options of the stages are still to be chosen. With the option o_j of each of S stages, in
Alpa's Eq. 2,

    minimise  sum of t_j(o_j) + max of ((B - 1) t_j(o_j) + once_j(o_j))
    where     option o_j fits into the memory of stage j (Eq. 5)

Under a limit on the maximum, every stage takes the fastest of its options that keep to the limit.
It is enough to try, as limits, the values that the maximum is taken over.
"""

from collections.abc import Sequence
from operator import itemgetter

from stagecut.base.checks import check_memory, is_count
from stagecut.base.edges import Boundary
from stagecut.base.held_microbatches import InFlightFunction, held_by, one_f_one_b
from stagecut.base.named_cost import NamedCost
from stagecut.base.types import (
    BoundaryFunction,
    CostFunction,
    MemoryLimit,
    Slicing,
    Span,
    StageCost,
    StageSlice,
    pipeline_time_s,
)
from stagecut.errors import InfeasibleStagesError, InvalidInputError
from stagecut.slice.exchange import exchange
from stagecut.slice.phrases import of
from stagecut.slice.transfers import TransferFunction


def price_stages(
    spans: Sequence[Span],
    n_microbatches: int,
    cost: CostFunction,
    memory_bytes: MemoryLimit = None,
    *,
    boundary_s: BoundaryFunction | None = None,
    edges: Sequence[Boundary] = (),
    transfer_s: TransferFunction | None = None,
    in_flight: InFlightFunction = one_f_one_b,
) -> Slicing:
    """The slicing that consists of exactly these stages, with the best option of each.

    Args:
        spans: First layer, last layer and submesh of each stage, in order.
        n_microbatches: This argument and those after it are as for `slice_stages`.
        cost: The cost of a stage; called once for each.
        memory_bytes: Memory of one device; where devices differ, a function of the submesh; None
            for no limit.
        boundary_s: Seconds to bring the values of one microbatch into a stage.
        edges: Values between layers, in place of `boundary_s`.
        transfer_s: Seconds to send one of them.
        in_flight: How many microbatches a stage holds under the schedule.

    Returns:
        A slicing as of `slice_stages`, but its lower bound is its own time, and it has no
        alternatives.

    Raises:
        InvalidInputError: There is no microbatch, memory is negative or not finite, the stages are
            not runs of layers in order, `edges` are not between the layers, or a time is negative
            or not finite.
        InfeasibleStagesError: A stage has no price or does not fit.

    Examples:
        >>> def cost(first, last, submesh):
        ...     return StageCost(float(last - first + 1) / submesh[1], 0, 0)
        >>> price_stages([(0, 2, (1, 2)), (3, 3, (1, 2))], 4, cost).time_s
        6.5
    """
    n_layers = 0
    for first, last, _ in spans:
        n_layers = last + 1 if first == n_layers and is_count(last, least=first) else -1
    are_meshes = all(len(mesh) == 2 and all(map(is_count, mesh)) for *_, mesh in spans)
    if not is_count(n_microbatches) or n_layers < 1 or not are_meshes:
        raise InvalidInputError(
            "stages are runs of layers from layer 0 on, each directly after the previous one, on "
            "submeshes (hosts, devices per host), and there is at least one microbatch; "
            f"got spans={list(spans)} and n_microbatches={n_microbatches!r}"
        )
    limits = [memory_bytes(mesh) if callable(memory_bytes) else memory_bytes for *_, mesh in spans]
    for limit in limits:
        check_memory(limit)
    between = exchange(spans, boundary_s, edges, transfer_s)
    open_to = []
    for stage, held_bytes in enumerate(between.held_bytes):
        held = held_by(in_flight, len(spans) - stage, n_microbatches)
        open_to.append(_fitting(stage, spans, cost, limits[stage], held, held * held_bytes))
    chosen, time_s = _best_options(open_to, between.received_s, n_microbatches)
    stages = tuple(StageSlice(*span, each) for span, each in zip(spans, chosen, strict=True))
    return Slicing(stages, time_s, time_s, len(spans), ())


def _fitting(
    stage: int,
    spans: Sequence[Span],
    cost: CostFunction,
    memory_bytes: int | None,
    in_flight: int,
    held_bytes: int,
) -> list[StageCost]:
    """The options of a stage that fit in memory beside the `held_bytes` it holds for others."""
    first, last, submesh = spans[stage]
    priced = NamedCost(cost)(first, last, submesh)
    options = [priced] if isinstance(priced, StageCost) else list(priced or ())
    if not options:
        raise InfeasibleStagesError(
            f"every stage needs a cost; got None for stage {stage} of {len(spans)}, "
            f"layers {first}-{last} on {tuple(submesh)}",
            stage=stage,
            layers=(first, last),
        )
    peaks = [option.peak_bytes(in_flight) + held_bytes for option in options]
    peak = min(peaks)
    if memory_bytes is not None and peak > memory_bytes:
        raise InfeasibleStagesError(
            f"a stage must fit in memory_bytes={memory_bytes} a device; got {peak} bytes for "
            f"stage {stage} of {len(spans)}, layers {first}-{last} on {tuple(submesh)}, "
            f"{of(peak, memory_bytes)}",
            peak_bytes=peak,
            stage=stage,
            layers=(first, last),
        )
    if memory_bytes is None:
        return options
    return [option for option, each in zip(options, peaks, strict=True) if each <= memory_bytes]


def _best_options(
    open_to: Sequence[Sequence[StageCost]], extra_s: Sequence[float], n_microbatches: int
) -> tuple[list[StageCost], float]:
    """The option of each stage with the shortest step, and the time of this step."""

    def bounded(option: StageCost, extra: float) -> float:
        return (n_microbatches - 1) * (option.time_s + extra) + option.once_s

    pairs = list(zip(open_to, extra_s, strict=True))
    least = max(min(bounded(option, extra) for option in options) for options, extra in pairs)
    limits = {bounded(option, extra) for options, extra in pairs for option in options}

    def within(limit: float) -> tuple[list[StageCost], float]:
        chosen = [
            min(
                (o for o in options if bounded(o, extra) <= limit),
                key=lambda o: (o.time_s, o.once_s),
            )
            for options, extra in pairs
        ]
        times = [option.time_s + extra for option, extra in zip(chosen, extra_s, strict=True)]
        once_s = [option.once_s for option in chosen]
        return chosen, pipeline_time_s(times, n_microbatches, once_s)

    # `least` itself is one of the limits.
    return min(map(within, sorted(each for each in limits if each >= least)), key=itemgetter(1))
