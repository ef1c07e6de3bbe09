"""Time of collectives over a single link: rings (AutoDDL, Table 2), the chain, one message.

Let `p` devices form one group and let a link carry `n` bytes in `alpha + n * beta`. Then, after
AutoDDL, Table 2 (`n` is the input of a reduce-scatter and the output of the others, per device):

    all-reduce                              (2p - 1) alpha + 2 (p - 1)/p n beta
    all-gather, reduce-scatter, all-to-all   (p - 1) alpha +   (p - 1)/p n beta

We keep these latency counts, including the `2p - 1` of the all-reduce, although its ring (a
reduce-scatter and an all-gather) has `2(p - 1)` steps. A group of one does not communicate: we
return 0.0, although the printed formula of the all-reduce would leave one alpha. A device of a ring
sends while it receives, so each direction has the link's `both_ways_bytes_per_s`, which is half the
bandwidth of a half-duplex link.

Other algorithms, and groups on several levels of a network, are in `costmodel.time.choose`.

All functions take numbers, or numpy arrays that broadcast; the result is a float or an array.

Reference:
    AutoDDL, section 3.1 and Table 2 (its ceiling brackets around `(p - 1)/p` are typesetting).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray

from costmodel.base.checks import Quantity, checked
from costmodel.hardware.link import Link

Bytes = TypeVar("Bytes", float, NDArray[Any])
"""A number of bytes, or an array of them; times have the same type."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the busiest device of a collective does, independent of the link.

    Fields are numbers; they are arrays if the size of the group is an array.
    """

    messages: Any
    """Number of messages, one after the other; each costs the link's latency."""
    exchanged: Any
    """Bytes that the device sends while it receives as many, as a multiple of the collective's."""
    one_way: Any = 0
    """Bytes that it sends, or receives, while nothing goes the other way; likewise a multiple."""

    def seconds(self, n_bytes: Bytes, link: Link) -> Bytes:
        """Time with a link that every device has for itself."""
        seconds: Bytes = (
            self.messages * link.latency_s
            + n_bytes * self.exchanged / link.both_ways_bytes_per_s
            + n_bytes * self.one_way / link.bandwidth_bytes_per_s
        )
        return seconds


def once_around(n: Any) -> Rounds:
    """Rounds of a ring in which every device passes on `n - 1` of `n` parts."""
    return Rounds(n - 1, (n - 1) / n)


def twice_around(n: Any) -> Rounds:
    """Rounds of the ring of an all-reduce, with the latencies of Table 2."""
    return Rounds((2 * n - 1) * (n > 1), 2 * (n - 1) / n)


def swap(n: Any) -> Rounds:
    """Rounds of one message from each device and one to each device."""
    return Rounds(1 * (n > 1), 1 * (n > 1))


def message(n: Any) -> Rounds:
    """Rounds of one message from one device to another."""
    return Rounds(1 * (n > 1), 0, 1 * (n > 1))


def chain(n: Any, n_chunks: Any) -> Rounds:
    """Rounds of a pipelined broadcast along a chain of devices that pass on each chunk at once.

    The last of `n` devices gets the first chunk after `n - 1` steps, and then one in each step.
    """
    steps = (n - 2 + n_chunks) * (n > 1)
    # In all steps but the first and the last, some devices receive one chunk and send another.
    relayed = (steps - 2) * ((n > 2) & (n_chunks > 1))
    return Rounds(steps, relayed / n_chunks, (steps - relayed) / n_chunks)


def all_gather_time(n: Quantity, n_bytes: Bytes, link: Link) -> Bytes:
    """Time until every device of a group holds the shards of all of them.

    Args:
        n: Number of devices in the group.
        n_bytes: Bytes of one device's output, that is, of all shards together.
        link: Link between neighbours of the ring.

    Returns:
        Seconds; 0.0 if `n == 1`.

    Raises:
        QuantityError: `n` is not a whole number >= 1, or `n_bytes` is negative or not finite.

    Examples:
        >>> all_gather_time(4, 4_000_000, Link(latency_s=0.0, bandwidth_bytes_per_s=1e9))
        0.003
        >>> import numpy as np
        >>> all_gather_time(2, np.array([0, 8e6, 16e6]), Link(1e-3, 1e9))
        array([0.001, 0.005, 0.009])

    Reference:
        AutoDDL, Table 2.
    """
    return once_around(_devices(n)).seconds(_bytes(n_bytes), link)


def reduce_scatter_time(n: Quantity, n_bytes: Bytes, link: Link) -> Bytes:
    """Time until every device of a group holds its shard of the group's sum.

    `n_bytes` is one device's input, a whole addend; everything else is as in `all_gather_time`.
    """
    return once_around(_devices(n)).seconds(_bytes(n_bytes), link)


def all_to_all_time(n: Quantity, n_bytes: Bytes, link: Link) -> Bytes:
    """Time until every device of a group has sent one `n`-th of its shard to each other device.

    `n_bytes` is one device's shard, before or after; everything else is as in `all_gather_time`.
    """
    return once_around(_devices(n)).seconds(_bytes(n_bytes), link)


def all_reduce_time(n: Quantity, n_bytes: Bytes, link: Link) -> Bytes:
    """Time until every device of a group holds the group's whole sum (or maximum, or minimum).

    `n_bytes` is one device's addend, which is as large as the result; everything else is as in
    `all_gather_time`.
    """
    return twice_around(_devices(n)).seconds(_bytes(n_bytes), link)


def broadcast_time(n: Quantity, n_bytes: Bytes, link: Link, n_chunks: Quantity = 100) -> Bytes:
    """Time until every device of a group has the data of one of them, along a pipelined chain.

    Args:
        n: Number of devices in the group, including the sender.
        n_bytes: Bytes of the data.
        link: Link between neighbours of the chain.
        n_chunks: Parts that are passed on one by one; about 100 in the experiments of the source.

    Returns:
        Seconds, `(n - 2 + K)(alpha + n_bytes/K beta)` with `K` chunks; 0.0 if `n == 1`.

    Raises:
        QuantityError: As for `all_gather_time`, or `n_chunks` is not a whole number >= 1.

    Examples:
        >>> one_gb_a_second = Link(latency_s=0.0, bandwidth_bytes_per_s=1e9)
        >>> broadcast_time(5, 1e9, one_gb_a_second), broadcast_time(5, 1e9, one_gb_a_second, 1)
        (1.03, 4.0)

    Reference:
        Cross-mesh resharding, section 3.1. It counts one more step, `t + A t/K` for `A` receivers,
        as if the first receiver's chunk came through another device.
    """
    n_chunks = checked("n_chunks", n_chunks, least=1, whole=True)
    return chain(_devices(n), n_chunks).seconds(_bytes(n_bytes), link)


def permute_time(n: Quantity, n_bytes: Bytes, link: Link) -> Bytes:
    """Time until every device of a group has sent `n_bytes` to one device and received as many.

    Everything else is as in `all_gather_time`.
    """
    return swap(_devices(n)).seconds(_bytes(n_bytes), link)


def point_to_point_time(n_bytes: Bytes, link: Link) -> Bytes:
    """Time of one message of `n_bytes` between two devices: `alpha + n beta` (AutoDDL, 3.1).

    Raises:
        QuantityError: `n_bytes` is negative or not finite.
    """
    return message(2).seconds(_bytes(n_bytes), link)


def _devices(n: Quantity) -> Any:
    return checked("n", n, least=1, whole=True)


def _bytes(n_bytes: Bytes) -> Bytes:
    amount: Any = checked("n_bytes", n_bytes)
    same_type: Bytes = amount
    return same_type
