"""Which parts of a cluster a stage may have, and which devices it gets (Alpa 5.2, appendix A)."""

import itertools
from collections.abc import Sequence

from stagecut.base.checks import is_count
from stagecut.base.types import Submesh
from stagecut.errors import InvalidInputError, SubmeshError
from stagecut.placement.assign_hosts import nearest_hosts
from stagecut.placement.offers import Places

_Grid = tuple[tuple[int, ...], ...]


def submesh_shapes(n_hosts: int, devices_per_host: int) -> tuple[Submesh, ...]:
    """Shapes a stage's submesh may have, smallest first, on hosts of one kind.

    Parts of one host, `(1, m)`, and whole hosts, `(n, devices_per_host)`. On a host of 2^p devices
    m runs over the powers of two, as in Alpa; elsewhere over all divisors if these cover whatever
    is asked of them (see `HostKind`). For other parts, and hosts of several kinds, see `Places`.

    Raises:
        InvalidInputError: There is not at least one host with one device.

    Examples:
        >>> submesh_shapes(3, 4)
        ((1, 1), (1, 2), (1, 4), (2, 4), (3, 4))
        >>> submesh_shapes(1, 6)
        ((1, 1), (1, 2), (1, 3), (1, 6))
    """
    return Places.uniform(n_hosts, devices_per_host).shapes


def assign_devices(
    submeshes: Sequence[Submesh], cluster: Places | tuple[int, int], *, steps: int = 20_000
) -> tuple[_Grid, ...]:
    """Give each stage its devices, so that none is taken twice and neighbours are close.

    Args:
        submeshes: Of each stage in pipeline order, of the shapes that the cluster offers.
        cluster: Hosts and devices per host, if all hosts are of one kind and all are used.
            Device ids count through the hosts.
        steps: How many fillings of a host to try before the best so far is taken. The default is
            ours: about a second at most; a few hundred do where stages fill hosts in their order.

    Returns:
        For each stage its device ids: one row per host, consecutive within it. If the steps are
        enough, and no submesh is of several kinds, then no assignment has fewer hosts between
        neighbours, or as few and more neighbours that share a host (see `assign_hosts`). In a host
        the largest part comes first, so that parts which divide each other are aligned.

    Raises:
        InvalidInputError: There are fewer steps than none.
        SubmeshError: A shape is not one of the possible ones, or they cannot be used together.

    Examples:
        >>> assign_devices(((1, 1), (1, 2), (1, 1), (1, 4)), (2, 4))
        (((2,),), ((0, 1),), ((3,),), ((4, 5, 6, 7),))
        >>> assign_devices(((1, 3), (1, 2)), Places.uniform(1, 6, use_all=False))
        (((0, 1, 2),), ((3, 4),))
    """
    places = cluster if isinstance(cluster, Places) else Places.uniform(*cluster)
    if not is_count(steps, least=0):
        raise InvalidInputError(f"steps are not negative; got steps={steps!r}")
    _check(submeshes, places)
    takes = [places.takes[places.shapes.index(each)] for each in submeshes]
    return _grids(nearest_hosts(takes, places, steps), submeshes, places)


def _check(submeshes: Sequence[Submesh], places: Places) -> None:
    for stage, shape in enumerate(submeshes):
        if shape not in places.shapes:
            raise SubmeshError(
                f"a stage takes a submesh of one of the shapes {places.shapes}; "
                f"got submeshes[{stage}]={shape!r} on {places}"
            )
    if not places.can_hold(submeshes):
        n_devices = sum(n * m for n, m in submeshes)
        raise SubmeshError(
            f"the stages' submeshes together take {'every' if places.use_all else 'a'} device "
            f"{'' if places.use_all else 'at most '}once; got {n_devices} devices in "
            f"submeshes={tuple(submeshes)} and {places.n_devices} on {places}"
        )


def _grids(
    hosts: Sequence[tuple[int, ...]], submeshes: Sequence[Submesh], places: Places
) -> tuple[_Grid, ...]:
    """Lay the stages down on their hosts."""
    sizes = [kind.n_devices for kind, n in places.hosts for _ in range(n)]
    next_free = [0, *itertools.accumulate(sizes)]
    grids: dict[int, _Grid] = {}
    for stage in sorted(range(len(submeshes)), key=lambda stage: (-submeshes[stage][1], stage)):
        m = submeshes[stage][1]
        grids[stage] = tuple(
            tuple(range(next_free[host], next_free[host] + m)) for host in hosts[stage]
        )
        for host in hosts[stage]:
            next_free[host] += m
    return tuple(grids[stage] for stage in range(len(submeshes)))
