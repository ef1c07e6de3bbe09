"""Makes a `StagePlan`: searches for the best slicing, then prices the plans to compare it with.

These rivals are the best slicing with every other number of stages, which the search returns; the
baselines of `stagecut.plan.baseline` with every number of equal submeshes; the caller's own cuts;
and the neighbours of the best slicing, which differ from it in one change: a layer moved to the
next stage, the submeshes of two successive stages exchanged, or the two stages joined.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from shardspec.amounts import count_text

from stagecut.base.checks import is_amount
from stagecut.base.edges import Boundary
from stagecut.base.held_microbatches import in_flight_of
from stagecut.base.progress import Progress
from stagecut.base.types import (
    BoundaryFunction,
    BoundFunction,
    CostFunction,
    Slicing,
    Span,
    StageCost,
    Submesh,
)
from stagecut.errors import InfeasibleStagesError, InternalError, InvalidInputError
from stagecut.placement.offers import Places
from stagecut.placement.submesh import assign_devices
from stagecut.plan.baseline import equal_spans, even_spans
from stagecut.plan.price_stages import price_stages
from stagecut.plan.stage_plan import StagePlan
from stagecut.plan.stage_plan_fields import PlannedStage, Rival
from stagecut.slice import phrases
from stagecut.slice.exchange import exchange
from stagecut.slice.price_requests import PriceCache
from stagecut.slice.slice import slice_stages
from stagecut.slice.transfers import TransferFunction

_Rule = Callable[[Submesh, int], tuple[Span, ...]]
"""Cuts the layers into stages. Arguments: the submesh of each stage, and the number of stages."""
_Answer = StageCost | Sequence[StageCost] | None


def plan_stages(
    n_layers: int,
    cluster_shape: tuple[int, int] | Places,
    n_microbatches: int | Sequence[int],
    cost: CostFunction,
    memory_bytes: int | None = None,
    *,
    schedule: str = "1f1b",
    bound_s: BoundFunction | None = None,
    boundary_s: BoundaryFunction | None = None,
    edges: Sequence[Boundary] = (),
    transfer_s: TransferFunction | None = None,
    n_stages: int | Sequence[int] | None = None,
    structure: Sequence[Hashable] | None = None,
    gap: float = 0.0,
    alternatives: bool = False,
    processes: int = 1,
    cache: PriceCache | None = None,
    progress: Progress | bool | None = None,
    flops: Sequence[float] | None = None,
    n_operators: Sequence[int] | None = None,
    manual: Mapping[str, Sequence[Span]] | None = None,
    title: str = "",
) -> StagePlan:
    """Find the stages and submeshes with the shortest step, and price the rivals of this plan.

    Args:
        n_layers: Layers of the model. The arguments are described in full at `slice_stages`.
        cluster_shape: Hosts, and devices per host; or `Places` for any other cluster.
        n_microbatches: Microbatches of a step, or several numbers to choose from.
        cost: The cost of a stage, from its first layer, last layer and submesh. The rivals need a
            few more stages than the search. Each stage is asked for once; but with several
            `processes`, the rivals ask for theirs again, in this process.
        memory_bytes: Memory of one device; None for no limit.
        schedule: A name in `SCHEDULES`.
        bound_s: A lower bound of the times that `cost` returns.
        boundary_s: The time to bring the values of one microbatch into a stage.
        edges: Values between layers, in place of `boundary_s`.
        transfer_s: The time to send one of them.
        n_stages: The number of stages, or several numbers to choose from; None for any.
        structure: For each layer, a value that is equal for equal layers.
        gap: How much longer than the best a plan may take, as a fraction.
        alternatives: Whether the best slicings with every other number of stages are rivals, too;
            each needs a search of its own.
        processes: How many processes call `cost`.
        cache: Keeps costs from one run to the next.
        progress: True for a progress bar. A function is called after each price of the search.
        flops: FLOPs of each layer, to compare with stages of equal FLOPs.
        n_operators: Operators of each layer, to compare with stages of equally many operators.
        manual: The caller's own cuts to compare with, by name.
        title: What the plan is for, in words for people.

    Raises:
        InvalidInputError: As `slice_stages`; or a manual cut does not have all layers, or `flops`
            or `n_operators` does not have one number for each layer.
        InfeasibleStagesError: No slicing fits, or none has a price.
        InvalidBoundError: As `slice_stages`.
        UnfinishedSearchError: As `slice_stages`.

    Examples:
        >>> from stagecut import StageCost
        >>> def cost(first, last, submesh):
        ...     return StageCost((last - first + 1) / submesh[1], last - first + 1, 0)
        >>> plan = plan_stages(4, (1, 4), 8, cost, memory_bytes=2, alternatives=True)
        >>> print(plan)
        2 stages on 4 devices, 8 microbatches, 1f1b
        9 s a step, no slicing takes less; 17 stages priced
        <BLANKLINE>
        stage  layers  submesh  a microbatch    memory  idle
            0  0-1     1x2               1 s  2 of 2 B  11 %
            1  2-3     1x2               1 s  2 of 2 B  11 %
        <BLANKLINE>
        instead                 a step
        3 stages                10 s, +11.1 %
        4 stages                11 s, +22.2 %
        1 stage                 memory of stage 0: 4 of 2 B
        equal layers, 2 stages  this plan
        equal layers, 4 stages  11 s, +22.2 %
        equal layers, 1 stage   memory of stage 0: 4 of 2 B
    """
    _check(n_layers, flops=flops, n_operators=n_operators)
    in_flight = in_flight_of(schedule)
    known: dict[Hashable, _Answer] = {}

    def remembered(first: int, last: int, submesh: Submesh, *count: int) -> _Answer:
        layers = (first, last) if structure is None else tuple(structure[first : last + 1])
        key = layers, submesh, count
        if key not in known:
            known[key] = cost(first, last, submesh, *count)
        return known[key]

    slicing = slice_stages(
        n_layers,
        cluster_shape,
        n_microbatches,
        remembered if processes == 1 else cost,  # other processes cannot share `known`
        memory_bytes,
        bound_s=bound_s,
        boundary_s=boundary_s,
        edges=edges,
        transfer_s=transfer_s,
        schedule=schedule,
        n_stages=n_stages,
        structure=structure,
        gap=gap,
        alternatives=alternatives,
        processes=processes,
        cache=cache,
        progress=progress,
    )
    chosen = slicing.n_microbatches
    if chosen is None:
        raise InternalError(f"a search says which number of microbatches it chose; got {slicing}")
    # The caller's functions get the number of microbatches if there are several to choose from.
    extra = (chosen,) if isinstance(n_microbatches, Iterable) else ()

    def enter_s(layer: int) -> float:
        return boundary_s(layer, *extra) if boundary_s else 0.0

    def send_s(n_bytes: int, source: Submesh, target: Submesh) -> float:
        return transfer_s(n_bytes, source, target, *extra) if transfer_s else 0.0

    def price(spans: Sequence[Span]) -> Slicing:
        return price_stages(
            spans,
            chosen,
            lambda *span: remembered(*span, *extra),
            memory_bytes,
            boundary_s=enter_s,
            edges=edges,
            transfer_s=send_s,
            in_flight=in_flight,
        )

    places = cluster_shape if isinstance(cluster_shape, Places) else Places.uniform(*cluster_shape)
    spans = tuple((each.first, each.last, each.submesh) for each in slicing.stages)
    between = exchange(spans, enter_s, edges, send_s)
    candidates = _Candidates(n_layers, places, memory_bytes, price)
    rules: dict[str, _Rule] = {"layers": partial(even_spans, n_layers)}
    if n_operators is not None:
        rules["operators"] = partial(equal_spans, n_operators)
    if flops is not None:
        rules["FLOPs"] = partial(equal_spans, flops)
    rivals = [
        *_of_the_search(slicing),
        *candidates.equal(rules),
        *(candidates.manual(name, tuple(cut)) for name, cut in (manual or {}).items()),
        *candidates.neighbours(spans),
    ]
    return StagePlan(
        title=title,
        n_microbatches=chosen,
        schedule=schedule,
        memory_bytes=memory_bytes,
        stages=tuple(
            PlannedStage(
                *span,
                devices=devices,
                cost=each.cost,
                received_s=received_s,
                held_bytes=held_bytes,
                in_flight=in_flight(len(spans) - number, chosen),
            )
            for number, (span, each, devices, received_s, held_bytes) in enumerate(
                zip(
                    spans,
                    slicing.stages,
                    assign_devices([submesh for *_, submesh in spans], places),
                    between.received_s,
                    between.held_bytes,
                    strict=True,
                )
            )
        ),
        time_s=slicing.time_s,
        lower_bound_s=slicing.lower_bound_s,
        n_priced=slicing.n_priced,
        rivals=tuple(rivals),
    )


def _of_the_search(slicing: Slicing) -> Iterator[Rival]:
    """The best slicing with each other number of stages, or the reason why there is none."""
    for other in slicing.alternatives:
        n_stages = len(other.spans)
        if n_stages != len(slicing.stages):
            name = count_text(n_stages, "stage")
            yield Rival("stages", name, other.spans, other.time_s, is_bound=not other.is_priced)
    for rejection in slicing.rejected:
        kind = rejection.what.split()[-1]
        reason = rejection.reason.partition(";")[0]  # the rest of an error message is not needed
        yield Rival(kind, rejection.what, (), None, reason)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Makes rivals that do not come from the search, and prices them."""

    n_layers: int
    places: Places
    memory_bytes: int | None
    price: Callable[[Sequence[Span]], Slicing]

    def equal(self, rules: Mapping[str, _Rule]) -> Iterator[Rival]:
        """A rival for each rule and each number of equal submeshes."""
        for what, rule in rules.items():
            for n_stages in range(1, min(self.n_layers, self.places.n_devices) + 1):
                if self.places.n_devices % n_stages:
                    continue
                kind = f"equal {what}"
                name = f"{kind}, {count_text(n_stages, 'stage')}"
                submesh = self._of_size(self.places.n_devices // n_stages)
                if submesh is None or not self.places.can_hold([submesh] * n_stages):
                    parts = count_text(n_stages, "equal part")
                    yield Rival(kind, name, (), None, self._uncovered(parts))
                else:
                    yield self._priced(kind, name, rule(submesh, n_stages))

    def manual(self, name: str, spans: tuple[Span, ...]) -> Rival:
        """The rival that is the caller's own cut."""
        if not spans or spans[-1][1] != self.n_layers - 1:
            raise InvalidInputError(
                f"a manual cut has all {self.n_layers} layers; got {spans} for {name!r}"
            )
        submeshes = [submesh for *_, submesh in spans]
        if not (set(submeshes) <= set(self.places.shapes) and self.places.can_hold(submeshes)):
            parts = " + ".join(map(phrases.shape, submeshes))
            return Rival("manual", name, spans, None, self._uncovered(parts))
        return self._priced("manual", name, spans)

    def neighbours(self, spans: Sequence[Span]) -> Iterator[Rival]:
        """The slicings that differ from this one in one change at two successive stages."""
        for left, ((first, end, submesh), (start, last, next_submesh)) in enumerate(
            pairwise(spans)
        ):
            right = left + 1
            changed: dict[str, tuple[Span, ...]] = {}
            if first < end:
                moved = (first, end - 1, submesh), (end, last, next_submesh)
                changed[f"layer {end} to stage {right}"] = moved
            if start < last:
                moved = (first, start, submesh), (start + 1, last, next_submesh)
                changed[f"layer {start} to stage {left}"] = moved
            if submesh != next_submesh:
                exchanged = (first, end, next_submesh), (start, last, submesh)
                changed[f"submeshes of stages {left} and {right} exchanged"] = exchanged
            joined = self._of_size(submesh[0] * submesh[1] + next_submesh[0] * next_submesh[1])
            if joined is not None:
                changed[f"stages {left} and {right} as one"] = ((first, last, joined),)
            for name, new in changed.items():
                candidate = (*spans[:left], *new, *spans[right + 1 :])
                if self.places.can_hold([each for *_, each in candidate]):
                    yield self._priced("neighbour", name, candidate, (left, right))

    def _of_size(self, n_devices: int) -> Submesh | None:
        """The shape with `n_devices` devices on the fewest hosts; None if there is none."""
        shapes = (shape for shape in self.places.shapes if shape[0] * shape[1] == n_devices)
        return min(shapes, key=lambda shape: shape[0], default=None)

    def _priced(
        self, kind: str, name: str, spans: tuple[Span, ...], changes: tuple[int, ...] = ()
    ) -> Rival:
        """The candidate as a rival, with its time or with the reason why it cannot run."""
        try:
            return Rival(kind, name, spans, self.price(spans).time_s, changes=changes)
        except InfeasibleStagesError as error:
            if error.peak_bytes is None or self.memory_bytes is None:
                reason = f"stage {error.stage} cannot run on its submesh"
            else:
                used = phrases.of(error.peak_bytes, self.memory_bytes)
                reason = f"memory of stage {error.stage}: {used}"
            return Rival(kind, name, spans, None, reason, changes=changes)

    def _uncovered(self, parts: str) -> str:
        return f"cannot cover {count_text(self.places.n_devices, 'device')} with {parts}"


def _check(n_layers: int, **weights: Sequence[float] | None) -> None:
    for name, values in weights.items():
        if values is not None and not (len(values) == n_layers and all(map(is_amount, values))):
            raise InvalidInputError(
                f"{name} has a number for each of the {n_layers} layers, finite and not negative; "
                f"got {name}={tuple(values)}"
            )
