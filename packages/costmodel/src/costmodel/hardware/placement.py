"""Where the devices of a mesh are in a cluster, and hence which links groups along its axes use.

Let a group have `c` members under a unit (a host, or a unit of some level) and others elsewhere,
and let `g` such groups communicate at once. `rails` connect the unit to the level above. A group
can drive as many of them as it has members in the unit, but no more than its part:

    share = min(c, rails / g) rails

Rings that are ordered by host leave each unit once, one ring over each rail that the group has. So
the flat link of a group is the slowest of its smallest share at each level that it crosses, and of
the link between devices if some host has two members. Where devices are joined in pairs, that link
is the one between the group's members in the host (`Host.between`).

If each group sends one message, the message has the group's part of the rails, at most one:

    single = min(1, rails / g) rails

If all members send out of their units at once, each has an equal part of the rails, at most one:

    spread = min(1, rails / members of all such groups under the unit) rails

The link of a tier is for all members of a group under a unit together, each of which sends to its
own peers. Their bytes pass the connection to the level, and the connections below, one for each
part of the unit:

    bandwidth = min(share * rail, parts * bandwidth of the tier below)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from shardspec import Axis, Mesh

from costmodel.hardware.link import GroupLinks, Link, Tier, slowest_link
from costmodel.hardware.topology import Host, Level, link_between


@dataclass(frozen=True, slots=True)
class MeshPlacement:
    """Which devices of a mesh share a host, and which share a unit of each level.

    Axis names, and which of several equal units the mesh is on, are left out, so that meshes with
    the same links compare equal. A call does the work: a few numpy passes over the mesh.
    """

    mesh: Mesh
    """The mesh with positions, numbered row-major, in place of device ids."""
    units: tuple[tuple[int, ...], ...]
    """Host of each position, then its unit of each level; numbered in order of appearance."""
    inside: tuple[int, ...]
    """For each position, the index in `host_links` of the link inside its host."""
    host_links: tuple[Link, ...]
    """Links between the devices of a host, by kind of host."""
    pairs: tuple[tuple[tuple[float, ...], ...], ...]
    """By kind of host, what joins each two devices; see `Host`."""
    slots: tuple[int, ...]
    """For each position, the number of the device in its host; all 0 where it does not matter."""
    rails: tuple[tuple[Link, int], ...]
    """For each level, one rail and the number of rails of each unit that the level joins."""

    @classmethod
    def of(
        cls,
        mesh: Mesh,
        host_of: NDArray[np.intp],
        slot_of: NDArray[np.intp],
        kind_of: NDArray[np.intp],
        kinds: Sequence[Host],
        levels: Sequence[Level],
    ) -> MeshPlacement:
        """The placement of a mesh.

        Args:
            mesh: Only its shape matters.
            host_of: Host of each device of the mesh, row-major.
            slot_of: The number of each device in its host.
            kind_of: For each of these, the index of its host in `kinds`.
            kinds: The distinct hosts of the cluster.
            levels: The levels of the cluster.
        """
        units = [host_of, *(host_of // level.n_hosts for level in levels)]
        seen, inside = _in_order_of_appearance(kind_of)
        used = tuple(kinds[number] for number in seen.tolist())
        if not any(host.pairs for host in used):
            slot_of = np.zeros_like(slot_of)
        return cls(
            Mesh(mesh.shape, tuple(f"axis{axis}" for axis in range(mesh.ndim))),
            tuple(tuple(_in_order_of_appearance(unit)[1].tolist()) for unit in units),
            tuple(inside.tolist()),
            tuple(host.link for host in used),
            tuple(host.pairs for host in used),
            tuple(slot_of.tolist()),
            tuple((level.link, level.rails) for level in levels),
        )

    def __call__(self, axes: frozenset[Axis]) -> GroupLinks:
        """The links that the groups along `axes` use while all of them communicate.

        Raises:
            UnknownAxisError: An axis that the mesh does not have, or two that overlap.
        """
        rows = self._groups(axes)
        n_groups, n_members = rows.shape
        groups = np.arange(n_groups)[:, None]
        units = [np.array(unit)[rows] for unit in self.units]

        # One entry for each pair of a group and a unit with members of it; first, units are hosts.
        where, first, members = _distinct(groups * rows.size + units[0])
        inside = self._inside(rows.reshape(-1)[first[members > 1]])
        if any(self.pairs) and members.max() > 1:
            inside = slowest_link([inside, *self._between(rows, units[0])])
        below = [inside] if n_members == 1 or members.max() > 1 else []
        flat, single, spread = below.copy(), below.copy(), below.copy()
        tiers = [Tier(_common(members), inside)]
        for (rail, n_rails), above in zip(self.rails, units[1:], strict=True):
            group, unit = np.divmod(where, rows.size)
            leaves = np.bincount(group)[group] > 1
            if not leaves.any():
                break
            left, driven = unit[leaves], members[leaves]
            part = n_rails / np.bincount(left)[left]  # rails of each group
            share = rail.times(np.minimum(driven, part).min())
            flat.append(share)
            single.append(rail.times(min(1.0, part.min())))
            spread.append(rail.times(min(1.0, n_rails / np.bincount(left, driven).max())))
            together = slowest_link(
                [share, *(link.times(max(tiers[-1].size, 1)) for link in below)]
            )
            parents = group * rows.size + above.reshape(-1)[first]
            tiers.append(Tier(_common(_distinct(parents)[2]), together))
            below = [together]
            where, first, members = _distinct(groups * rows.size + above)
        even = all(tier.size for tier in tiers)
        return GroupLinks(
            n_members,
            slowest_link(flat),
            slowest_link(single),
            slowest_link(spread),
            tuple(tier for tier in tiers if tier.size > 1 and even),
        )

    def _groups(self, axes: frozenset[Axis]) -> NDArray[np.intp]:
        """Positions in the mesh, shape (groups, members)."""
        n_members = self.mesh.axis_size(axes)
        parts = self.mesh.parts(axes)
        order = [part for part in parts if part not in axes] + list(axes)
        grid = np.arange(self.mesh.size).reshape([self.mesh.length(part) for part in parts])
        turned = grid.transpose([parts.index(part) for part in order])
        return turned.reshape(-1, n_members)

    def _inside(self, positions: NDArray[np.intp]) -> Link:
        """The slowest link inside the hosts of these positions; of all hosts if there are none."""
        used = np.unique(np.array(self.inside)[positions]).tolist()
        return slowest_link([self.host_links[number] for number in used] or self.host_links)

    def _between(self, rows: NDArray[np.intp], hosts: NDArray[np.intp]) -> list[Link]:
        """The links inside hosts of the groups that have several devices of a host."""
        found: set[tuple[int, tuple[int, ...]]] = set()
        inside, slots = np.array(self.inside), np.array(self.slots)
        for row, on in zip(rows, hosts, strict=True):
            for host in np.unique(on):
                here = row[on == host]
                if len(here) > 1:
                    found.add((int(inside[here[0]]), tuple(sorted(slots[here].tolist()))))
        return [
            link_between(self.host_links[kind], self.pairs[kind], group)
            for kind, group in sorted(found)
        ]


def _in_order_of_appearance(
    values: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The distinct values in order of appearance, and for each value its index among them."""
    distinct, first, number = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return distinct[order], np.argsort(order)[number]


def _distinct(
    values: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """The distinct values, the flat index at which each occurs first, and how often it occurs."""
    return np.unique(values, return_index=True, return_counts=True)


def _common(counts: NDArray[np.intp]) -> int:
    """The value that all counts have; 0 if they differ."""
    return int(counts[0]) if counts.min() == counts.max() else 0
