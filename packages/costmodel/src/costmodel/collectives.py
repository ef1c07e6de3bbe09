"""Time of ring collectives and of one message in the alpha-beta model.

Let `p` devices form one group and let a link carry `n` bytes in `alpha + n * beta`. Then, after
AutoDDL, Table 2 (`n` is the input of a reduce-scatter and the output of the others, per device):

    all-reduce                              (2p - 1) alpha + 2 (p - 1)/p n beta
    all-gather, reduce-scatter, all-to-all   (p - 1) alpha +   (p - 1)/p n beta

We keep these latency counts, also the all-reduce's `2p - 1`, although its ring, a reduce-scatter
and an all-gather, has `2(p - 1)` steps. A group of one does not communicate: we return 0.0, where
the printed all-reduce would leave one alpha.

Reference:
    AutoDDL, section 3.1 and Table 2 (its ceiling brackets around `(p - 1)/p` are typesetting).
"""

from __future__ import annotations

from costmodel.errors import QuantityError
from costmodel.link import Link


def all_gather_time(n: int, n_bytes: float, link: Link) -> float:
    """Time until every device of a group holds the shards of all of them.

    Args:
        n: Devices in the group.
        n_bytes: One device's output, that is, all shards together.
        link: Between neighbours of the ring.

    Returns:
        Seconds; 0.0 if `n == 1`.

    Raises:
        QuantityError: `n < 1` or `n_bytes < 0`.

    Examples:
        >>> all_gather_time(4, 4_000_000, Link(latency_s=0.0, bandwidth_bytes_per_s=1e9))
        0.003

    Reference:
        AutoDDL, Table 2.
    """
    _check(n, n_bytes)
    return (n - 1) * link.latency_s + (n - 1) / n * n_bytes / link.bandwidth_bytes_per_s


def reduce_scatter_time(n: int, n_bytes: float, link: Link) -> float:
    """Time until every device of a group holds its shard of the group's sum.

    `n_bytes` is one device's input, a whole addend; the rest is as in `all_gather_time`.
    """
    return all_gather_time(n, n_bytes, link)


def all_to_all_time(n: int, n_bytes: float, link: Link) -> float:
    """Time until every device of a group has sent one `n`-th of its shard to each other device.

    `n_bytes` is one device's shard, before or after; the rest is as in `all_gather_time`.
    """
    return all_gather_time(n, n_bytes, link)


def all_reduce_time(n: int, n_bytes: float, link: Link) -> float:
    """Time until every device of a group holds the group's whole sum (or maximum, or minimum).

    `n_bytes` is one device's addend, as large as the result; the rest is as in `all_gather_time`.
    """
    _check(n, n_bytes)
    if n == 1:
        return 0.0
    return (2 * n - 1) * link.latency_s + 2 * (n - 1) / n * n_bytes / link.bandwidth_bytes_per_s


def point_to_point_time(n_bytes: float, link: Link) -> float:
    """Time of one message of `n_bytes` between two devices: `alpha + n beta` (AutoDDL, 3.1).

    Raises:
        QuantityError: `n_bytes < 0`.
    """
    if n_bytes < 0:
        raise QuantityError(f"a message needs n_bytes >= 0; got n_bytes={n_bytes}")
    return link.latency_s + n_bytes / link.bandwidth_bytes_per_s


def _check(n: int, n_bytes: float) -> None:
    if n < 1 or n_bytes < 0:
        raise QuantityError(
            f"a collective needs n >= 1 devices and n_bytes >= 0; got n={n}, n_bytes={n_bytes}"
        )
