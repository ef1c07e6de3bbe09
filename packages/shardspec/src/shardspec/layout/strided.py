"""Strided shards in Rhino's notation, `(dim, stride)`, and all regular specs on one axis.

A tensor sharded by `(dim, stride)` over `k` devices is dealt out in pieces of `stride` consecutive
units, device 0 first: unit `u` of the dim is on device `u // stride % k`. A dim of 8 on 2 devices:

    stride 4   0 0 0 0 1 1 1 1   S0      the largest stride: one piece each, ordinary sharding
    stride 2   0 0 1 1 0 0 1 1   S[2]0
    stride 1   0 1 0 1 0 1 0 1   S[4]0

Reference:
    Zhang et al., "Rhino", 4.1 (the notation, figure 3) and 4.3.3 (how many there are).
"""

import math

from shardspec.base.axis import Axis, Split
from shardspec.base.integers import natural, naturals, shown
from shardspec.base.partial import Partial
from shardspec.errors import LayoutError, SpecError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.layout.spec import Spec


def rhino_spec(shape: tuple[int, ...], mesh: Mesh, axis: Axis, dim: int, stride: int) -> Spec:
    """The spec of a tensor that Rhino calls `(dim, stride)`, sharded along one axis.

    Args:
        shape: Shape of the tensor.
        mesh: Only the length of `axis` matters.
        axis: An axis or a sub-axis.
        dim: The dim that is sharded.
        stride: Number of consecutive units of a piece, a factor of the units a device holds.

    Raises:
        UnknownAxisError: the mesh does not have the axis.
        SpecError: the tensor does not have the dim, the number of devices does not divide it, or
            the stride does not divide a device's share.

    Examples:
        >>> mesh = Mesh((2,), ("x",))
        >>> [rhino_spec((4, 2), mesh, 0, dim, stride) for dim, stride in ((0, 2), (0, 1), (1, 1))]
        [Spec.parse('S0R'), Spec.parse('S[2]0R'), Spec.parse('RS0')]
    """
    sizes, at, length = naturals(shape), natural(dim), natural(stride)
    devices = mesh.length(axis)
    if not 0 <= at < len(sizes) or min(sizes) < 0:
        raise SpecError(
            f"a dim is an index into a shape; got dim={shown(dim)} and shape={shown(shape)}"
        )
    share, rest = divmod(sizes[at], devices)
    if rest or share < 1 or length < 1 or share % length:
        raise SpecError(
            "devices share a dim evenly, and a stride is a factor of a device's share; got "
            f"stride={shown(stride)} for {sizes[at]} units on {devices} devices (dim {at})"
        )
    dims = [()] * at + [(Split(share // length), axis)] + [()] * (len(sizes) - at - 1)
    return Spec(tuple(dims))


def strides(layout: Layout) -> tuple[int | None, ...]:
    """For each dim Rhino's stride: the consecutive units of a piece. None if nothing shards it.

    Raises:
        LayoutError: the pieces of a dim differ in size.

    Examples:
        >>> strides(Layout((8, 3), Mesh((2,), ("x",)), Spec.parse("S[2]0R")))
        (2, None)
    """
    if not layout.is_even:
        raise LayoutError(
            f"a stride is the size of all pieces of a dim; got {layout}, with unequal pieces"
        )
    return tuple(
        n // math.prod(parts) if parts else None
        for n, parts in zip(layout.shape, layout.cuts, strict=True)
    )


def candidates(shape: tuple[int, ...], mesh: Mesh, axis: Axis) -> tuple[Spec, ...]:
    """All regular specs of a tensor on one axis: sharded by each stride, replicated, partial sums.

    For each dim that the axis divides, in order, every stride from the largest down; then
    replicated; then partial sums. A dim of `n` units on `k` devices has as many strides as `n / k`
    has factors.

    Args:
        shape: Shape of the tensor.
        mesh: Only the length of `axis` matters.
        axis: An axis or a sub-axis.

    Raises:
        UnknownAxisError: the mesh does not have the axis.
        SpecError: a size that is not an integer >= 0.

    Examples:
        >>> [str(spec) for spec in candidates((4, 2), Mesh((2,), ("x",)), 0)]
        ['S0R', 'S[2]0R', 'RS0', 'RR', 'RR+P0']
    """
    sizes, devices = naturals(shape), mesh.length(axis)
    if sizes and min(sizes) < 0:
        raise SpecError(f"a shape has sizes >= 0; got shape={shown(shape)}")
    sharded = [
        rhino_spec(sizes, mesh, axis, dim, stride)
        for dim, n in enumerate(sizes)
        if n % devices == 0
        for stride in _factors(n // devices)
    ]
    whole = Spec.replicated(len(sizes))
    return (*sharded, whole, Spec(whole.dims, (Partial(axis),)))


def _factors(n: int) -> list[int]:
    """The factors of `n`, largest first; none of 0."""
    small = [i for i in range(1, math.isqrt(n) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)}, reverse=True)
