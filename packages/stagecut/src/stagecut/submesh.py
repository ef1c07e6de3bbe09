"""Which parts of a cluster a stage may have, and which devices it gets (Alpa 5.2, appendix A)."""

from collections.abc import Sequence
from itertools import pairwise

from stagecut.errors import InvalidInputError, SubmeshError
from stagecut.plan import Submesh


def submesh_shapes(n_hosts: int, devices_per_host: int) -> tuple[Submesh, ...]:
    """Shapes a stage's submesh may have, smallest first.

    Parts of one host, `(1, m)`, and whole hosts, `(n, devices_per_host)`. On a host of 2^p devices
    m runs over the powers of two, as in Alpa. Alpa knows no other hosts; all that the proof of its
    covering theorem uses is that each part divides the next larger one. So elsewhere m grows by the
    smallest prime factor that is left: 1, 2, 6 on a host of 6.

    Raises:
        InvalidInputError: There is not at least one host with one device.

    Examples:
        >>> submesh_shapes(3, 4)
        ((1, 1), (1, 2), (1, 4), (2, 4), (3, 4))
        >>> submesh_shapes(1, 6)
        ((1, 1), (1, 2), (1, 6))
    """
    if min(n_hosts, devices_per_host) < 1:
        raise InvalidInputError(
            "a cluster has at least one host with at least one device; "
            f"got n_hosts={n_hosts}, devices_per_host={devices_per_host}"
        )
    parts = [1]
    while parts[-1] < devices_per_host:
        rest = devices_per_host // parts[-1]
        parts.append(parts[-1] * next(f for f in range(2, rest + 1) if rest % f == 0))
    return (
        *((1, part) for part in parts),
        *((hosts, devices_per_host) for hosts in range(2, n_hosts + 1)),
    )


def assign_devices(
    submeshes: Sequence[Submesh], cluster_shape: tuple[int, int]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Give each stage its devices, so that all are used once and neighbours are close.

    Follows the proof of Alpa's theorem 1: parts of the smallest size are joined, in pipeline order,
    to parts of the next size, until all are whole hosts; these are laid down in the order of their
    first stages. Alpa's text places larger submeshes first instead; joining also covers the
    cluster, and keeps stages of different sizes that follow each other on one host.

    Args:
        submeshes: Shape of each stage in pipeline order, of those that `submesh_shapes` lists.
        cluster_shape: Hosts, and devices per host; device d is on host `d // devices_per_host`.

    Returns:
        For each stage its device ids: one row per host, consecutive within it.

    Raises:
        SubmeshError: A shape is not one of the possible ones, or the sizes do not add up.

    Examples:
        >>> assign_devices(((1, 1), (1, 2), (1, 1), (1, 4)), (2, 4))
        (((0,),), ((2, 3),), ((1,),), ((4, 5, 6, 7),))
    """
    n_hosts, devices_per_host = cluster_shape
    shapes = submesh_shapes(n_hosts, devices_per_host)
    for stage, shape in enumerate(submeshes):
        if shape not in shapes:
            raise SubmeshError(
                f"a stage takes a submesh of one of the shapes {shapes}; "
                f"got submeshes[{stage}]={shape} on cluster_shape={tuple(cluster_shape)}"
            )
    n_devices = sum(n * m for n, m in submeshes)
    if n_devices != n_hosts * devices_per_host:
        raise SubmeshError(
            "the stages' submeshes together take every device once; "
            f"got {n_devices} devices in submeshes={tuple(submeshes)} "
            f"and {n_hosts * devices_per_host} in cluster_shape={tuple(cluster_shape)}"
        )
    # A block is a tuple of stages that lie side by side; blocks of one size are kept in pipeline
    # order, which is the order of their first stages.
    whole_hosts = [(stage,) for stage, (_, m) in enumerate(submeshes) if m == devices_per_host]
    parts = [m for n, m in shapes if n == 1]
    blocks: list[tuple[int, ...]] = []
    for part, larger in pairwise(parts):
        blocks = sorted(blocks + [(stage,) for stage, (_, m) in enumerate(submeshes) if m == part])
        step = larger // part
        blocks = [sum(blocks[at : at + step], ()) for at in range(0, len(blocks), step)]
    grids: dict[int, tuple[tuple[int, ...], ...]] = {}
    start = 0
    for block in sorted(whole_hosts + blocks):
        for stage in block:
            n, m = submeshes[stage]
            rows = range(start, start + n * m, m)
            grids[stage] = tuple(tuple(range(row, row + m)) for row in rows)
            start += n * m
    return tuple(grids[stage] for stage in range(len(submeshes)))
