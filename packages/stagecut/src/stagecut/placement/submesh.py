"""The submesh shapes that a stage may have, and the devices it gets (Alpa 5.2, appendix A)."""

import itertools
from collections.abc import Sequence

from stagecut.base.checks import is_count
from stagecut.base.types import Submesh
from stagecut.errors import InvalidInputError, SubmeshError
from stagecut.placement.assign_hosts import nearest_hosts
from stagecut.placement.offers import Places

_Grid = tuple[tuple[int, ...], ...]


def submesh_shapes(n_hosts: int, devices_per_host: int) -> tuple[Submesh, ...]:
    """The shapes that a stage's submesh may have on hosts of one kind, smallest first.

    A submesh is a part of one host, `(1, m)`, or whole hosts, `(n, devices_per_host)`. On a host of
    2^p devices m runs over the powers of two, as in Alpa. On other hosts it runs over all divisors,
    if counting devices decides which of them fit together, and else over some of them (see
    `HostKind.parts`). For other parts, and for hosts of several kinds, see `Places`.

    Raises:
        InvalidInputError: The number of hosts or of devices per host is below 1.

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
    """The device ids of each stage: no device is taken twice, and neighbouring stages are close.

    Args:
        submeshes: The submesh of each stage in pipeline order; each has a shape that the cluster
            offers.
        cluster: Hosts and devices per host, if all hosts are of one kind and all are used; else
            `Places`. Device ids count through the hosts.
        steps: How many fillings of a host to try before the best assignment so far is taken. The
            default is our choice: it takes about a second at most. A few hundred steps are enough
            where the stages fill the hosts in pipeline order.

    Returns:
        For each stage its device ids: one row per host, consecutive within it. If the steps are
        enough, and no submesh is of several kinds, then the number of hosts between neighbouring
        stages is minimal, and among the assignments with this number as many neighbours as possible
        share a host (see `assign_hosts`). In each host the largest part comes first, so that parts
        which divide each other are aligned.

    Raises:
        InvalidInputError: `steps` is negative.
        SubmeshError: A shape is not one that the cluster offers, or the submeshes cannot be placed
            together.

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
            f"the submeshes of all stages together take {'every' if places.use_all else 'a'} "
            f"device {'' if places.use_all else 'at most '}once; got {n_devices} devices in "
            f"submeshes={tuple(submeshes)} and {places.n_devices} on {places}"
        )


def _grids(
    hosts: Sequence[tuple[int, ...]], submeshes: Sequence[Submesh], places: Places
) -> tuple[_Grid, ...]:
    """Number the devices of each stage on its hosts, the stages with the largest parts first."""
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
