"""The rate of complex arithmetic on a device that states none.

A complex number is a pair of real ones: a product of two takes four real products and two real
sums. A complex multiply-add is thus four real ones (Golub, Van Loan, "Matrix Computations", 4th
ed., section 1.1.15 counts so), on the same units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from costmodel import Cluster, Device

_PARTS = {"complex64": "float32", "complex128": "float64"}
_PRODUCTS = 4


def with_complex(cluster: Cluster, dtypes: Iterable[str]) -> Cluster:
    """The cluster with a rate for each complex dtype for which its devices state none.

    Args:
        cluster: The cluster to plan for.
        dtypes: The dtypes of a step's values. Without complex ones, the cluster is returned
            unchanged.
    """
    wanted = _PARTS.keys() & {*dtypes}
    if not wanted:
        return cluster
    hosts = (replace(host, device=_with(host.device, wanted)) for host in cluster.hosts)
    return replace(cluster, hosts=tuple(hosts))


def _with(device: Device, dtypes: Iterable[str]) -> Device:
    rates = dict(device.flops_per_s)
    for dtype in sorted(dtypes):
        if _PARTS[dtype] in rates:
            rates.setdefault(dtype, rates[_PARTS[dtype]] / _PRODUCTS)
    return replace(device, flops_per_s=tuple(rates.items()))
