"""Make a `StagePlan`: search, then price what it is compared with.

Compared are the best slicing into every other number of stages, which the search knows; the obvious
plans of `stagecut.baseline` with every number of equal submeshes; the caller's own cuts; and the
neighbours of the best slicing, each one change away: a layer moved over a boundary, the submeshes
of two successive stages exchanged, or the two joined.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stagecut import words
from stagecut.baseline import equal_spans
from stagecut.errors import InfeasibleStagesError, InvalidInputError, SubmeshError
from stagecut.given import price_stages
from stagecut.plan import (
    BoundaryFunction,
    BoundFunction,
    CostFunction,
    Slicing,
    Span,
    StageCost,
    Submesh,
)
from stagecut.schedule import in_flight_of
from stagecut.slice import slice_stages
from stagecut.stage_plan import PlannedStage, Rival, StagePlan
from stagecut.submesh import assign_devices, submesh_shapes


def plan_stages(
    n_layers: int,
    cluster_shape: tuple[int, int],
    n_microbatches: int,
    cost: CostFunction,
    memory_bytes: int | None = None,
    *,
    schedule: str = "1f1b",
    bound_s: BoundFunction | None = None,
    boundary_s: BoundaryFunction | None = None,
    gap: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
    flops: Sequence[float] | None = None,
    n_operators: Sequence[int] | None = None,
    manual: Mapping[str, Sequence[Span]] | None = None,
    title: str = "",
) -> StagePlan:
    """Find the stages and submeshes with the shortest step, and say what they were chosen over.

    Args:
        n_layers: Layers of the model; this and what is not told here is as for `slice_stages`.
        cluster_shape: Hosts, and devices per host.
        n_microbatches: Of a step.
        cost: Of first layer, last layer and submesh. Asked once for each.
        memory_bytes: Of one device; None for no limit.
        schedule: A name in `SCHEDULES`: how many microbatches a stage holds.
        bound_s: A time that `cost` never falls below.
        boundary_s: Time to bring a microbatch's values into a stage.
        gap: How much longer than the best a plan may take, as a fraction.
        progress: Called after each price with how many there are, and how many there can be.
        flops: Of each layer, to compare with stages of equal FLOPs.
        n_operators: Of each layer, to compare with stages of equally many operators.
        manual: Cuts of your own to compare with, by name.
        title: What is planned, for people.

    Raises:
        InvalidInputError: As `slice_stages`; or a manual cut has not all layers, or `flops` or
            `n_operators` not one number for each.
        InfeasibleStagesError: No slicing fits, or none has a price.
        InvalidBoundError: As `slice_stages`.

    Examples:
        >>> from stagecut import StageCost
        >>> def cost(first, last, submesh):
        ...     return StageCost((last - first + 1) / submesh[1], last - first + 1, 0)
        >>> plan = plan_stages(4, (1, 4), 8, cost, memory_bytes=2)
        >>> print(plan)
        2 stages on 1x4 devices, 8 microbatches, 1f1b
        9 s a step, no slicing takes less; 17 stages priced
        <BLANKLINE>
        stage  layers  submesh  a microbatch    memory  idle
            0  0-1     1x2               1 s  2 of 2 B  11 %
            1  2-3     1x2               1 s  2 of 2 B  11 %
        <BLANKLINE>
        instead                 a step
        3 stages                10 s, +11.1 %
        4 stages                11 s, +22.2 %
        equal layers, 2 stages  this plan
        equal layers, 4 stages  11 s, +22.2 %
        equal layers, 1 stage   memory of stage 0: 4 of 2 B
    """
    _check(n_layers, flops=flops, n_operators=n_operators)
    in_flight = in_flight_of(schedule)
    known: dict[Span, StageCost | None] = {}

    def remembered(first: int, last: int, submesh: Submesh) -> StageCost | None:
        span = first, last, submesh
        if span not in known:
            known[span] = cost(first, last, submesh)
        return known[span]

    def price(spans: Sequence[Span]) -> Slicing:
        return price_stages(
            spans,
            n_microbatches,
            remembered,
            memory_bytes,
            boundary_s=boundary_s,
            in_flight=in_flight,
        )

    slicing = slice_stages(
        n_layers,
        cluster_shape,
        n_microbatches,
        remembered,
        memory_bytes,
        bound_s=bound_s,
        boundary_s=boundary_s,
        in_flight=in_flight,
        gap=gap,
        progress=progress,
    )
    spans = tuple((each.first, each.last, each.submesh) for each in slicing.stages)
    devices = assign_devices([submesh for *_, submesh in spans], cluster_shape)
    candidates = _Candidates(n_layers, cluster_shape, memory_bytes, price)
    weights = {"layers": [1.0] * n_layers, "operators": n_operators, "FLOPs": flops}
    rivals = [
        *_other_counts(slicing),
        *candidates.equal(weights),
        *(candidates.manual(name, tuple(cut)) for name, cut in (manual or {}).items()),
        *candidates.neighbours(spans),
    ]
    return StagePlan(
        title=title,
        cluster_shape=cluster_shape,
        n_microbatches=n_microbatches,
        schedule=schedule,
        memory_bytes=memory_bytes,
        stages=tuple(
            PlannedStage(
                *span,
                devices=grid,
                cost=each.cost,
                received_s=boundary_s(each.first) if boundary_s and each.first else 0.0,
                in_flight=in_flight(len(spans) - number, n_microbatches),
            )
            for number, (span, each, grid) in enumerate(
                zip(spans, slicing.stages, devices, strict=True)
            )
        ),
        time_s=slicing.time_s,
        lower_bound_s=slicing.lower_bound_s,
        n_priced=slicing.n_priced,
        rivals=tuple(rivals),
    )


def _other_counts(slicing: Slicing) -> Iterator[Rival]:
    """The best slicing into each number of stages but the chosen one."""
    for other in slicing.alternatives:
        n_stages = len(other.spans)
        if n_stages != len(slicing.stages):
            name = _count(n_stages)
            yield Rival("stages", name, other.spans, other.time_s, is_bound=not other.is_priced)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Slicings that nobody searched for, priced."""

    n_layers: int
    cluster_shape: tuple[int, int]
    memory_bytes: int | None
    price: Callable[[Sequence[Span]], Slicing]

    def equal(self, weights: Mapping[str, Sequence[float] | None]) -> Iterator[Rival]:
        """Every number of equal submeshes, with layers of equal weight, for each known weight."""
        n_devices = self.cluster_shape[0] * self.cluster_shape[1]
        for what, each in weights.items():
            for n_stages in range(1, min(self.n_layers, n_devices) + 1):
                if each is None or n_devices % n_stages:
                    continue
                kind, name = f"equal {what}", f"equal {what}, {_count(n_stages)}"
                try:
                    spans = equal_spans(each, self.cluster_shape, n_stages)
                except InvalidInputError:
                    parts = f"{n_stages} equal parts"
                    yield Rival(kind, name, (), None, self._uncovered(parts))
                else:
                    yield self._priced(kind, name, spans)

    def manual(self, name: str, spans: tuple[Span, ...]) -> Rival:
        """The caller's own cut."""
        if not spans or spans[-1][1] != self.n_layers - 1:
            raise InvalidInputError(
                f"a manual cut has all {self.n_layers} layers; got {spans} for {name!r}"
            )
        try:
            assign_devices([submesh for *_, submesh in spans], self.cluster_shape)
        except SubmeshError:
            parts = " + ".join(words.shape(submesh) for *_, submesh in spans)
            return Rival("manual", name, spans, None, self._uncovered(parts))
        return self._priced("manual", name, spans)

    def neighbours(self, spans: Sequence[Span]) -> Iterator[Rival]:
        """The slicings that differ from this one in one boundary between two stages."""
        by_size = {n * m: (n, m) for n, m in submesh_shapes(*self.cluster_shape)}
        for left, ((first, end, submesh), (start, last, its)) in enumerate(pairwise(spans)):
            right = left + 1
            changed: dict[str, tuple[Span, ...]] = {}
            if first < end:
                moved = (first, end - 1, submesh), (end, last, its)
                changed[f"layer {end} to stage {right}"] = moved
            if start < last:
                moved = (first, start, submesh), (start + 1, last, its)
                changed[f"layer {start} to stage {left}"] = moved
            if submesh != its:
                exchanged = (first, end, its), (start, last, submesh)
                changed[f"submeshes of stages {left} and {right} exchanged"] = exchanged
            joined = by_size.get(submesh[0] * submesh[1] + its[0] * its[1])
            if joined is not None:
                changed[f"stages {left} and {right} as one"] = ((first, last, joined),)
            for name, new in changed.items():
                candidate = (*spans[:left], *new, *spans[right + 1 :])
                yield self._priced("neighbour", name, candidate, (left, right))

    def _priced(
        self, kind: str, name: str, spans: tuple[Span, ...], changes: tuple[int, ...] = ()
    ) -> Rival:
        """A candidate with its time, or with the reason why it has none."""
        try:
            return Rival(kind, name, spans, self.price(spans).time_s, changes=changes)
        except InfeasibleStagesError as error:
            if error.peak_bytes is None or self.memory_bytes is None:
                reason = f"stage {error.stage} cannot run on its submesh"
            else:
                used = words.of(error.peak_bytes, self.memory_bytes)
                reason = f"memory of stage {error.stage}: {used}"
            return Rival(kind, name, spans, None, reason, changes=changes)

    def _uncovered(self, parts: str) -> str:
        return f"cannot cover {words.shape(self.cluster_shape)} with {parts}"


def _count(n_stages: int) -> str:
    return "1 stage" if n_stages == 1 else f"{n_stages} stages"


def _check(n_layers: int, **weights: Sequence[float] | None) -> None:
    for name, values in weights.items():
        if values is not None and (len(values) != n_layers or min(values) < 0):
            raise InvalidInputError(
                f"{name} has a number for each of the {n_layers} layers, none of them negative; "
                f"got {name}={tuple(values)}"
            )
