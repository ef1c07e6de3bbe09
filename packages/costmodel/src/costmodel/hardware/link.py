"""Links in the alpha-beta model, and the links that groups of a mesh see on a cluster."""

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
        QuantityError: The latency is negative, the bandwidth not positive, one is not finite, or
            the duplex is not from 0.5 to 1.

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
    """Bytes a second in one direction while nothing moves in the other (1 / beta)."""
    duplex: float = 1.0
    """Part of this bandwidth that each direction has while both are in use: 1 in full duplex, 0.5
    in half duplex, where they share it; between them on a way over links of both kinds."""

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
        """Bytes a second in each direction while both are in use, as in a ring or an exchange."""
        return self.bandwidth_bytes_per_s * self.duplex

    def times(self, factor: float) -> Link:
        """So many such links side by side, or a part of one.

        Raises:
            QuantityError: The factor is no finite number > 0.
        """
        several = positive("the factor of Link.times", factor)
        return replace(self, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * several)


def slowest(links: Iterable[Link]) -> Link:
    """The way over all of `links`: largest latency, smallest bandwidth one way, and both ways."""
    links = tuple(links)
    one_way = min(link.bandwidth_bytes_per_s for link in links)
    both_ways = min(link.both_ways_bytes_per_s for link in links)
    return Link(max(link.latency_s for link in links), one_way, both_ways / one_way)


@dataclass(frozen=True, slots=True)
class Tier:
    """How one level of a cluster divides a group, and what the group has there for itself."""

    size: int
    """Parts of the group under each unit of the next tier; each of the innermost is a device."""
    link: Link
    """What connects one part to the others, for all devices of this group in the part together:
    what concurrent groups take is already divided out. So when each of the devices sends to its
    peer in another part, as in a hierarchical all-reduce, it gets an equal fraction."""


@dataclass(frozen=True, slots=True)
class GroupLinks:
    """What one group of a collective sees of the cluster; of several groups, the worst placed.

    Worked case, 2 hosts x 4 devices with one card a host, one group of all eight: `flat` is the
    slower of the link in a host and the card, which the ring leaves a host by once; so is `single`.
    `spread` is a quarter of the card. `tiers` are 4 devices at the link in a host, then 2 hosts at
    a card each.

    Raises:
        QuantityError: It has no member.
    """

    size: int
    """Number of members."""
    flat: Link
    """The slowest link of a ring over all members that is ordered by host. Where a host has several
    network cards, rings that leave it by different members run side by side."""
    single: Link
    """What one message between two members has, at worst, while one of each group is on its way: as
    `flat`, but by one card."""
    spread: Link
    """What each member has while all members of all groups send out of their units at once."""
    tiers: tuple[Tier, ...] = ()
    """Innermost first, those of size 1 left out; their sizes multiply to `size`. `()` for a group
    of one, and where the hosts or units do not all hold equally many members."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Prices are looked up by the group, and its hash would be half of the time of that."""

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
    """What the groups along each set of axes of a mesh see, as `Cluster.links` finds it.

    As a sequence it holds one link per mesh axis. The link of a *set* of axes does not follow from
    these: the groups along axis 0 of a 2x4 mesh over two hosts are four and share each host's
    network card, while a collective over both axes is one group and has the card to itself.
    """

    ndim: int
    """Axes of the mesh."""
    find: Callable[[frozenset[Axis]], GroupLinks]
    """What the groups along a set of axes see; called once for each set that is asked for."""
    _found: dict[frozenset[Axis], GroupLinks] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def group(self, axes: Iterable[Axis]) -> GroupLinks:
        """What a group of a collective over `axes` sees; axes or parts of them, in any order."""
        key = frozenset(axes)
        if key not in self._found:
            self._found[key] = self.find(key)
        return self._found[key]

    def over(self, axes: Iterable[Axis]) -> Link:
        """Slowest link of a ring over the members of each group along `axes`, in any order."""
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
