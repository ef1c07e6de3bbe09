"""Where the devices of a mesh are in a cluster, and so what the groups along its axes see.

Let a group have `c` members under a unit (a host, or a unit of some level) and others elsewhere,
and let `g` such groups communicate at once. Of the `rails` that connect the unit to the level
above, a group can drive as many as it has members there, and no more than its part of them:

    share = min(c, rails / g) rails

Rings that are ordered by host leave each unit once, one by each of the rails that the group has. So
the flat link of a group is the slowest of its smallest share at every level that it crosses, and of
the link between devices where a host has two members.

One message from each of the groups has its part of the rails, and at most one:

    single = min(1, rails / g) rails

If all members send out of their units at once, each has as much of them:

    spread = min(1, rails / members of all such groups under the unit) rails

A tier is for what all members of a group under a unit send together, each to peers of its own. It
passes the level's connection, and those below, of which each part of the unit has one:

    bandwidth = min(share * rail, parts * bandwidth of the tier below)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from shardspec import Axis, Mesh

from costmodel.hardware.link import GroupLinks, Link, Tier, slowest
from costmodel.hardware.topology import Host, Level


@dataclass(frozen=True, slots=True)
class MeshPlacement:
    """Which devices of a mesh share a host, and which a unit of each level.

    Names of axes, and which of several equal units the mesh is on, are left out, so that meshes
    that see the same links are equal. Calling it is the work, some passes of numpy over the mesh.
    """

    mesh: Mesh
    """Of the positions in the mesh, row-major, instead of the device ids."""
    units: tuple[tuple[int, ...], ...]
    """Host of each position; then its unit of each level. Numbered in order of appearance."""
    inside: tuple[int, ...]
    """Which of `host_links` each position's host has inside."""
    host_links: tuple[Link, ...]
    rails: tuple[tuple[Link, int], ...]
    """Of each level: one rail, and how many each of the units that it joins has."""

    @classmethod
    def of(
        cls,
        mesh: Mesh,
        host_of: NDArray[np.intp],
        kind_of: NDArray[np.intp],
        kinds: Sequence[Host],
        levels: Sequence[Level],
    ) -> MeshPlacement:
        """The placement of a mesh.

        Args:
            mesh: Only its shape matters.
            host_of: Host of each device, row-major.
            kind_of: Index into `kinds` of this host.
            kinds: The different hosts of the cluster.
            levels: Of the cluster.
        """
        units = [host_of, *(host_of // level.n_hosts for level in levels)]
        seen, inside = _in_order_of_appearance(kind_of)
        return cls(
            Mesh(mesh.shape, tuple(f"axis{axis}" for axis in range(mesh.ndim))),
            tuple(tuple(_in_order_of_appearance(unit)[1].tolist()) for unit in units),
            tuple(inside.tolist()),
            tuple(kinds[number].link for number in seen.tolist()),
            tuple((level.link, level.rails) for level in levels),
        )

    def __call__(self, axes: frozenset[Axis]) -> GroupLinks:
        """What the groups along `axes` see while all of them communicate.

        Raises:
            UnknownAxisError: An axis that the mesh does not have, or two that overlap.
        """
        rows = self._groups(axes)
        n_groups, n_members = rows.shape
        groups = np.arange(n_groups)[:, None]
        units = [np.array(unit)[rows] for unit in self.units]

        # One entry for each group and unit where it has members, first with hosts as units.
        where, first, members = _distinct(groups * rows.size + units[0])
        inside = self._inside(rows.reshape(-1)[first[members > 1]])
        below = [inside] if n_members == 1 or members.max() > 1 else []
        flat, single, spread = below.copy(), below.copy(), below.copy()
        tiers = [Tier(_common(members), inside)]
        for (rail, n_rails), above in zip(self.rails, units[1:], strict=True):
            group, unit = np.divmod(where, rows.size)
            leaves = np.bincount(group)[group] > 1
            if not leaves.any():
                break
            here, driven = unit[leaves], members[leaves]
            part = n_rails / np.bincount(here)[here]  # of the rails, for each group
            share = rail.times(np.minimum(driven, part).min())
            flat.append(share)
            single.append(rail.times(min(1.0, part.min())))
            spread.append(rail.times(min(1.0, n_rails / np.bincount(here, driven).max())))
            together = slowest([share, *(link.times(max(tiers[-1].size, 1)) for link in below)])
            parents = group * rows.size + above.reshape(-1)[first]
            tiers.append(Tier(_common(_distinct(parents)[2]), together))
            below = [together]
            where, first, members = _distinct(groups * rows.size + above)
        even = all(tier.size for tier in tiers)
        return GroupLinks(
            n_members,
            slowest(flat),
            slowest(single),
            slowest(spread),
            tuple(tier for tier in tiers if tier.size > 1 and even),
        )

    def _groups(self, axes: frozenset[Axis]) -> NDArray[np.intp]:
        """Positions in the mesh, a row for each group."""
        n_members = self.mesh.axis_size(axes)
        parts = self.mesh.parts(axes)
        order = [part for part in parts if part not in axes] + list(axes)
        grid = np.arange(self.mesh.size).reshape([self.mesh.length(part) for part in parts])
        turned = grid.transpose([parts.index(part) for part in order])
        return turned.reshape(-1, n_members)

    def _inside(self, positions: NDArray[np.intp]) -> Link:
        """Slowest link inside the hosts of these positions; of all hosts, if there is none."""
        used = np.unique(np.array(self.inside)[positions]).tolist()
        return slowest([self.host_links[number] for number in used] or self.host_links)


def _in_order_of_appearance(
    values: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The distinct values as they appear, and which of them stands where."""
    distinct, first, number = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return distinct[order], np.argsort(order)[number]


def _distinct(
    values: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """The distinct values, where each is first in the flat array, and how often it occurs."""
    return np.unique(values, return_index=True, return_counts=True)


def _common(counts: NDArray[np.intp]) -> int:
    """What all counts are; 0 if they differ."""
    return int(counts[0]) if counts.min() == counts.max() else 0
