"""`reshard`: from one layout of a tensor to another on the same mesh, as collectives."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from shardspec.base.integers import natural
from shardspec.base.partial import Partial
from shardspec.errors import ReshardError, UnevenLayoutError
from shardspec.layout.layout import Layout
from shardspec.refine.lower_bound import partial_units
from shardspec.refine.refine import PARTIAL, Refined, changed_dims, refine
from shardspec.resharding.construct import Move, fewest_bytes
from shardspec.resharding.search_view import searched
from shardspec.resharding.step import ReshardPlan, Step, step
from shardspec.resharding.uneven import exchanged

WHOLE_AXES: frozenset[str] = frozenset(
    ["slice", "all_gather", "all_to_all", "reduce_scatter", "all_reduce"]
)
"""Steps over whole axes that are the minor-most of their dim: one call each in `jax.lax`."""

COLLECTIVES: frozenset[str] = WHOLE_AXES | {"collective_permute", "exchange", "fill", "transpose"}
"""All kinds of steps, and `transpose`: steps on any blocks of the local array, moved in place
before and after the collective. Without it, all layouts on the way are of whole axes, unstrided."""

Cost = Callable[[Step], float]
"""What a step costs, not negative: it may depend on its kind, axes, reduction and sizes."""


def reshard(
    src: Layout,
    dst: Layout,
    *,
    collectives: Iterable[str] = COLLECTIVES,
    cost: Cost | None = None,
    max_local_elements: int | None = None,
) -> ReshardPlan:
    """The collectives that turn `src` into `dst`.

    With the defaults, the plan moves the fewest bytes, summed over devices, that collectives among
    all devices can: without partial results the lower bound, and it has at most one exchange and
    one gather; no shard on the way is larger than the larger of source and destination (as in
    arXiv 2112.01075). `construct` says how, and why. Where layouts are uneven in different ways, or
    are cut at points that do not nest (2 and 3), partial results are combined first and everything
    else is one exchange.

    If a cost is given, or the kinds of steps above are not allowed, then plans of whole axes (of
    common parts of them and of the dims, with `transpose`) are searched too, and the cheapest of
    all is returned: by the cost, or by bytes received by one device and then steps.

    Args:
        src: Where the tensor is.
        dst: The same shape and mesh. It may hold partial results that `src` does not: they are
            filled up with neutral elements, without communication.
        collectives: The kinds of steps that may be used, out of `COLLECTIVES`.
        cost: Price of a step, for example seconds by `costmodel.step_time`.
        max_local_elements: No shard on the way is larger, in elements; the larger one of `src` and
            `dst` if left out.

    Raises:
        UnevenLayoutError: an uneven layout has to change, and `exchange` is not allowed.
        ReshardError: shape or mesh differ; partial results would have to be made in a way that
            changes them; `collectives` has an unknown one, or no plan.

    Examples:
        >>> from shardspec import Mesh, Spec
        >>> mesh = Mesh((2, 2), ("x", "y"))
        >>> plan = reshard(
        ...     Layout((8, 4), mesh, Spec.parse("S0S1")), Layout((8, 4), mesh, Spec.parse("S01R"))
        ... )
        >>> print(plan)
        all_to_all dim 1 to dim 0 over axis 1: S0S1 -> S01R
        >>> plan.received_bytes(itemsize=4), plan.total_bytes(itemsize=4), plan.gap
        (16, 64, 0.0)

    Reference:
        Alpa 4.1, Table 2; partial sums as in AutoDDL 4.1; strided shards as in Rhino 4.1.
    """
    kinds = _kinds(collectives)
    _check(src, dst, kinds)
    if src == dst:
        return ReshardPlan(src, dst, ())
    cost = cost and _checked(cost)
    limit = _limit(src, dst, max_local_elements)
    units = refine(src, dst) if "transpose" in kinds else None
    plans: list[ReshardPlan] = []
    if units is not None:
        moves = fewest_bytes(units, one_exchange="exchange" in kinds)
        if all(move.kind in kinds for move in moves):
            plans.append(ReshardPlan(src, dst, tuple(_built(units, moves, src, dst))))
    if not plans and "exchange" in kinds:
        plan = exchanged(src, dst, kinds)
        if all(step.kind in kinds for step in plan.steps):
            plans.append(plan)
    if not plans or "transpose" not in kinds:
        # In front, as of plans that cost the same theirs are the simpler steps.
        plans = [*searched(units, kinds, None, math.inf, limit, src, dst), *plans]
    # Common units are more and smaller steps; what is one step over whole axes is found without.
    views = [] if cost is None else [None] if units is None else [units, None]
    for view in views:
        below = min((_price(plan, cost)[0] for plan in plans), default=math.inf)
        plans += searched(view, kinds, cost, below, limit, src, dst)
    if not plans:
        raise ReshardError(
            f"steps lead from source to destination; none of the kinds {sorted(kinds)} were found "
            f"from {src.spec} to {dst.spec} of shape {src.shape} on {src.mesh.shape} with at most "
            f"{limit} elements on a device; allow more collectives or a larger max_local_elements"
        )
    return min(plans, key=lambda plan: _price(plan, cost))


def reshard_whole_axes(src: Layout, dst: Layout) -> ReshardPlan:
    """The same with `WHOLE_AXES` only, and without a limit on memory: for programs in `jax.lax`.

    Between layouts of whole axes, even and unstrided, there is always a plan, as all can be
    gathered. Layouts on the way use only axes that `src` or `dst` uses. Plans are cached.

    Raises:
        UnevenLayoutError: an uneven layout would have to change.
        ReshardError: as for `reshard`; or a layout uses parts of axes, or is strided.
    """
    whole = math.prod(src.shape)
    return reshard(src, dst, collectives=WHOLE_AXES, max_local_elements=whole)


def _kinds(collectives: Iterable[str]) -> frozenset[str]:
    if isinstance(collectives, str) or not isinstance(collectives, Iterable):
        raise ReshardError(
            f"collectives are several names, as in {{'all_gather', 'slice'}}; got {collectives!r}"
        )
    return frozenset(collectives)


def _checked(cost: Cost) -> Cost:
    """The same, but refused where it is no price."""

    def price(step: Step) -> float:
        found = cost(step)
        if not found >= 0:
            raise ReshardError(f"a cost is a number >= 0; got {found!r} for the step: {step}")
        return found

    return price


def _check(src: Layout, dst: Layout, kinds: frozenset[str]) -> None:
    for layout in (src, dst):
        if not isinstance(layout, Layout):
            raise ReshardError(f"reshard goes from a Layout to a Layout; got {layout!r}")
    if src.shape != dst.shape:
        raise ReshardError(
            "reshard keeps the tensor's shape; "
            f"got {src.shape} as source and {dst.shape} as destination"
        )
    if src.mesh != dst.mesh:
        raise ReshardError(
            "reshard stays on one mesh (crossmesh moves between meshes); "
            f"got {src.mesh} as source and {dst.mesh} as destination"
        )
    if unknown := kinds - COLLECTIVES:
        raise ReshardError(
            f"collectives are among {sorted(COLLECTIVES)}; got also {sorted(unknown)}"
        )
    if src == dst:
        return
    for layout in (src, dst) if "exchange" not in kinds else ():
        changed = range(len(src.shape)) if "transpose" not in kinds else changed_dims(src, dst)
        if dims := tuple(dim for dim in changed if dim in layout.uneven_dims):
            raise UnevenLayoutError(
                "without `exchange`, reshard needs shards of equal size, but in dims that stay if "
                f"`transpose` is allowed; got dims {dims} of shape {layout.shape} in "
                f"{layout.shards} shards ({layout.spec} on {layout.mesh.shape}); pad these dims to "
                "a multiple of their shards, or shard others"
            )
        if "transpose" not in kinds and not layout.spec.is_plain:
            raise ReshardError(
                "without `transpose`, reshard needs layouts of whole axes, unstrided; "
                f"got {layout.spec}"
            )
    if src.spec.partial or dst.spec.partial:
        _check_partial(src, dst, kinds)


def _check_partial(src: Layout, dst: Layout, kinds: frozenset[str]) -> None:
    units = partial_units(src, dst)
    change = list(zip(units.atoms, units.src_kinds, units.dst_kinds, strict=True))
    made = [(axis, new) for axis, old, new in change if new and new != old]
    if made and "fill" not in kinds:
        needs = ", ".join(f"{kind} over axis {axis}" for axis, kind in made)
        raise ReshardError(
            f"partial results are made by `fill` only; {src.spec} -> {dst.spec} needs {needs}; "
            "allow it, or ask for a destination without them"
        )
    for (first, old, new), (later, _, kept) in itertools.combinations(
        [c for c in change if c[1] or c[2]], 2
    ):
        stays = kept is not None and (later, kept, kept) in change
        for kind in (old, new):
            if not (kind and kept and stays) or old == new:
                continue
            if not Partial(0, kind).commutes_with(Partial(1, kept)):
                raise ReshardError(
                    "partial results combine from the last axis to the first, and different kinds "
                    f"do not commute; {src.spec} -> {dst.spec} would combine or make {kind} over "
                    f"axis {first} inside {kept} over axis {later}; reduce both"
                )


def _limit(src: Layout, dst: Layout, max_local_elements: int | None) -> int:
    limit = max(src.local_bytes(1), dst.local_bytes(1))
    if max_local_elements is None:
        return limit
    if natural(max_local_elements) < limit:
        raise ReshardError(
            "the limit is a whole number into which the larger of source and destination fits; "
            f"got max_local_elements={max_local_elements}, and shards of {src.local_bytes(1)} "
            f"({src.spec}) and {dst.local_bytes(1)} elements ({dst.spec})"
        )
    return max_local_elements


def _price(plan: ReshardPlan, cost: Cost | None) -> tuple[float, int]:
    if cost is None:
        return plan.received_bytes(1), len(plan.steps)
    return sum(map(cost, plan.steps)), len(plan.steps)


def _built(units: Refined, moves: list[Move], src: Layout, dst: Layout) -> Iterator[Step]:
    """The steps of moves in common units."""
    before, places = src, units.src
    for count, move in enumerate(moves, 1):
        after = dst if count == len(moves) else units.at(move.places, move.kinds)
        atoms = [a for a, (p, q) in enumerate(zip(places, move.places, strict=True)) if p != q]
        if move.kind == "fill":
            atoms = [atom for atom in atoms if move.places[atom] == PARTIAL]
        # Axes are named in the order of the parts that they cut the tensor into, if they do.
        at = None
        if move.kind in ("all_gather", "all_to_all"):
            at = places
        elif move.kind in ("slice", "reduce_scatter"):
            at = move.places
        yield step(move.kind, units.axes(atoms, at), move.reduction, before, after)
        before, places = after, move.places
