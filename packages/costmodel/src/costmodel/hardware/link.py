"""Links in the alpha-beta model, and the links that groups of a mesh use on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from shardspec import Axis

from costmodel.base.checks import assign, count, number, positive


@dataclass(frozen=True, slots=True)
class Link:
    """A connection that moves `n` bytes in `latency_s + n / bandwidth_bytes_per_s`.

    Raises:
        QuantityError: The latency is negative, the bandwidth is not positive, one of them is not
            finite, or the duplex is not from 0.5 to 1.

    Examples:
        >>> ethernet = Link(latency_s=50e-6, bandwidth_bytes_per_s=125e6)  # 1 Gbit/s
        >>> ethernet.both_ways_bytes_per_s
        125000000.0
        >>> Link(50e-6, 125e6, duplex=0.5).both_ways_bytes_per_s
        62500000.0

    Reference:
        AutoDDL, section 3.1: alpha is the latency, beta the inverse of the bandwidth.
    """

    latency_s: float
    """Seconds before the first byte arrives (alpha)."""
    bandwidth_bytes_per_s: float
    """Bytes per second in one direction while nothing moves in the other (1 / beta)."""
    duplex: float = 1.0
    """Part of the bandwidth that each direction has while both are in use: 1 in full duplex, 0.5 in
    half duplex (the two share it), in between for a path over links of both kinds."""

    def __post_init__(self) -> None:
        assign(
            self,
            latency_s=number("latency_s of a link", self.latency_s),
            bandwidth_bytes_per_s=positive(
                "bandwidth_bytes_per_s of a link", self.bandwidth_bytes_per_s
            ),
            duplex=number(
                "duplex of a link, 1 for full and 0.5 for half,", self.duplex, least=0.5, most=1
            ),
        )

    @property
    def both_ways_bytes_per_s(self) -> float:
        """Bytes per second in each direction while both are in use, as in a ring or an exchange."""
        return self.bandwidth_bytes_per_s * self.duplex

    def times(self, factor: float) -> Link:
        """The link with `factor` times the bandwidth: several links side by side, or part of one.

        Raises:
            QuantityError: The factor is not a finite number > 0.
        """
        checked_factor = positive("the factor of Link.times", factor)
        return replace(self, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * checked_factor)


def slowest_link(links: Iterable[Link]) -> Link:
    """A path over all `links`: the largest latency, the smallest bandwidths one and both ways."""
    links = tuple(links)
    one_way = min(link.bandwidth_bytes_per_s for link in links)
    both_ways = min(link.both_ways_bytes_per_s for link in links)
    return Link(max(link.latency_s for link in links), one_way, both_ways / one_way)


@dataclass(frozen=True, slots=True)
class Tier:
    """How one level of a cluster divides a group into parts, and the link between the parts."""

    size: int
    """Number of parts of the group under each unit of the next tier; in the innermost tier, a part
    is a device."""
    link: Link
    """Link between one part and the others, for all devices of this group in the part together. It
    does not include what concurrent groups take. If each device of the part sends to its peer in
    another part, as in a hierarchical all-reduce, each gets an equal fraction."""


@dataclass(frozen=True, slots=True)
class GroupLinks:
    """The links that one group of a collective uses; of several groups, the worst placed one.

    Worked case: 2 hosts of 4 devices, with one network card per host, and one group of all eight.
    `flat` is the slower of the link inside a host and the card, because the ring leaves each host
    once; so is `single`. `spread` is a quarter of the card. `tiers` are 4 devices with the link
    inside a host, then 2 hosts with a card each.

    Raises:
        QuantityError: The group has no member.
    """

    size: int
    """Number of members."""
    flat: Link
    """The slowest link of a ring over all members that is ordered by host. If a host has several
    network cards, rings that leave it by different members run side by side."""
    single: Link
    """Link of a message between two members, in the worst case, while each group sends one message:
    like `flat`, but over one card."""
    spread: Link
    """Link of each member while all members of all groups send out of their units at once."""
    tiers: tuple[Tier, ...] = ()
    """Innermost first, without those of size 1; the product of their sizes is `size`. `()` for a
    group of one, and if the hosts or units do not all hold the same number of members."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Stored, because prices are looked up by group, and hashing took half the time of that."""

    def __post_init__(self) -> None:
        assign(
            self,
            size=count("size of a group", self.size, least=1),
            tiers=tuple(self.tiers),
            _hash=hash((self.size, self.flat, self.single, self.spread, *self.tiers)),
        )

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class MeshLinks(Sequence[Link]):
    """The links that groups along each set of axes of a mesh use; from `Cluster.links`.

    As a sequence it holds one link per mesh axis. The link of a *set* of axes does not follow from
    these. On a 2x4 mesh over two hosts, the four groups along axis 0 share each host's network
    card, while a collective over both axes is one group and has the card to itself.
    """

    ndim: int
    """Number of axes of the mesh."""
    find: Callable[[frozenset[Axis]], GroupLinks]
    """Computes the links of groups along a set of axes; called once for each requested set."""
    _cache: dict[frozenset[Axis], GroupLinks] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def group(self, axes: Iterable[Axis]) -> GroupLinks:
        """Links of a group of a collective over `axes`: axes or parts of axes, in any order."""
        key = frozenset(axes)
        if key not in self._cache:
            self._cache[key] = self.find(key)
        return self._cache[key]

    def over(self, axes: Iterable[Axis]) -> Link:
        """The slowest link of a ring over the members of a group along `axes`, in any order."""
        return self.group(axes).flat

    def __len__(self) -> int:
        return self.ndim

    @overload
    def __getitem__(self, axis: int) -> Link: ...
    @overload
    def __getitem__(self, axis: slice) -> tuple[Link, ...]: ...
    def __getitem__(self, axis: int | slice) -> Link | tuple[Link, ...]:
        if isinstance(axis, slice):
            return tuple(self[one] for one in range(*axis.indices(self.ndim)))
        return self.over((range(self.ndim)[axis],))
