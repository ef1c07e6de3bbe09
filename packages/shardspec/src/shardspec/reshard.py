"""`reshard`: from one layout of a tensor to another, as collectives over mesh axes."""

import itertools
import math

from .errors import ReshardError, UnevenLayoutError
from .layout import Layout
from .search import cheapest_moves
from .step import ReshardPlan, Step


def reshard(src: Layout, dst: Layout) -> ReshardPlan:
    """The collectives that turn `src` into `dst` with the fewest bytes received by a device.

    Among plans with equally few bytes the one with the fewest steps, and among those always the
    same. All layouts on the way are even. A step uses only axes that `src` or `dst` uses.

    Args:
        src: Where the tensor is.
        dst: The same shape and mesh. Axes that hold partial results here must hold results of the
            same kind in `src`: reshard reduces them, but makes none.

    Raises:
        UnevenLayoutError: `src` or `dst` has shards of different sizes (and they are not equal).
        ReshardError: shape or mesh differ, or partial results would have to be made.

    Examples:
        >>> from shardspec import Mesh, Spec
        >>> mesh = Mesh((2, 2), ("x", "y"))
        >>> plan = reshard(
        ...     Layout((8, 4), mesh, Spec.parse("S0S1")), Layout((8, 4), mesh, Spec.parse("S01R"))
        ... )
        >>> print(plan)
        all_to_all dim 1 to dim 0 over axis 1: S0S1 -> S01R
        >>> plan.received_bytes(itemsize=4)
        16

    Reference:
        Alpa 4.1, Table 2; partial sums as in AutoDDL 4.1.
    """
    _check(src, dst)
    if src.spec == dst.spec:
        return ReshardPlan(src, dst, ())
    # Which splits are even depends on the shape only through these divisors: few searches do.
    sizes = tuple(math.gcd(n, src.mesh.size) for n in src.shape)
    steps = []
    before = src
    for move in cheapest_moves(src.spec, dst.spec, sizes, src.mesh.shape):
        after = Layout(src.shape, src.mesh, move.spec)
        steps.append(Step(*move[:5], before, after))
        before = after
    return ReshardPlan(src, dst, tuple(steps))


def _check(src: Layout, dst: Layout) -> None:
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
    if src.spec == dst.spec:
        return
    for layout in (src, dst):
        if not layout.is_even:
            sizes = zip(layout.shape, layout.shards, strict=True)
            dims = tuple(dim for dim, (n, k) in enumerate(sizes) if n % k)
            raise UnevenLayoutError(
                f"reshard needs shards of equal size; got dims {dims} of shape {layout.shape} in "
                f"{layout.shards} shards ({layout.spec} on {layout.mesh.shape}); "
                "pad these dims to a multiple of their shards, or shard others"
            )
    held = src.spec.partial
    if new := [p for p in dst.spec.partial if p not in held]:
        needs = ", ".join(f"{p.kind} over axis {p.axis}" for p in new)
        raise ReshardError(
            "reshard reduces partial results but makes none; "
            f"{src.spec} -> {dst.spec} needs {needs}; ask for a destination without them"
        )
    for p, later in itertools.combinations(held, 2):
        if p not in dst.spec.partial and later in dst.spec.partial and p.kind != later.kind:
            raise ReshardError(
                "partial results combine from the last axis to the first, and different kinds do "
                f"not commute; {src.spec} -> {dst.spec} would combine {p.kind} over axis {p.axis} "
                f"before {later.kind} over axis {later.axis}; reduce both"
            )
