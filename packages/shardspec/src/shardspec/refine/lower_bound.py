"""Lower bound on what any resharding moves, in elements received, summed over all devices.

Without partial results, each device receives what it wants and does not hold; plans reach this.

With partial results, let `u` devices hold different ones of an element, and let `r` devices want
the element combined. At least `u - 1` messages pass before any device has the combined value, and
after that each other device that wants it still has to receive one: `u + r - 2` messages in total,
and one more if no device both holds a partial result of the element and wants it. Each message
carries one element, because what is passed on can be combined first. Along axes whose partial
results stay, devices with different ones have nothing to send to each other.

Along an axis on which only the destination has partial results, it is enough that one device of
each group gets the element.
"""

import math
from collections.abc import Iterable

from shardspec.errors import ReshardError
from shardspec.layout.layout import Layout
from shardspec.layout.spec import Spec
from shardspec.refine.refine import Refined, refine


def held_elements(layout: Layout) -> int:
    """Elements that all devices hold together: replicas are counted each time, padding is not."""
    return math.prod(layout.shape) * layout.mesh.size // math.prod(layout.shards)


def kept_elements(src: Layout, dst: Layout) -> int:
    """Elements that a device holds in both layouts, summed over devices."""
    units = refine(src, dst)
    if units is None:
        return sum(kept_of(src, dst, device) for device in src.mesh.device_ids)
    return _agreeing(units, range(len(units.atoms)), src.mesh.size)


def kept_of(src: Layout, dst: Layout, device: int) -> int:
    """Elements that one device holds in both layouts."""
    return math.prod(
        sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in held for b in wanted)
        for held, wanted in zip(src.runs(device), dst.runs(device), strict=True)
    )


def missing_elements(src: Layout, dst: Layout) -> int:
    """Elements of its destination shard that a device lacks, for the device that lacks most."""
    units = refine(src, dst)
    if units is None:
        devices = src.mesh.device_ids
        return max(kept_of(dst, dst, device) - kept_of(src, dst, device) for device in devices)
    wanted = dst.local_bytes(1)
    standing = {place: atom for atom, place in enumerate(units.src) if place >= 0}
    if any(standing.get(place, atom) != atom for atom, place in enumerate(units.dst)):
        return wanted  # a device whose coordinates along the two atoms differ keeps nothing
    kept = _agreeing(units, range(len(units.atoms)), src.mesh.size)
    return wanted - wanted * kept // max(1, held_elements(dst))


def lower_bound_elements(src: Layout, dst: Layout) -> int:
    """The least number of elements that all devices together receive, by whatever collectives."""
    units = refine(src, dst)
    partial = units or partial_units(src, dst)
    reduced, created, kept = 1, 1, 1
    for size, before, after in zip(
        partial.sizes, partial.src_kinds, partial.dst_kinds, strict=True
    ):
        if before and before == after:
            kept *= size
        else:
            reduced *= size if before else 1
            created *= size if after else 1
    whole = math.prod(src.shape)
    wanted = held_elements(dst) // created
    if units is None:
        # Cuts that do not nest: which devices both hold a partial result and want the element, and
        # which device of a group with new partial results already has it, is not counted.
        if reduced > 1:
            return max(0, whole * kept * (reduced - 2) + wanted)
        return max(0, wanted - kept_elements(src, dst))
    atoms = [i for i, kind in enumerate(units.dst_kinds) if not kind or kind == units.src_kinds[i]]
    if reduced == 1:
        return wanted - _agreeing(units, atoms, src.mesh.size // created)
    met = math.prod(n for n, _, digits in _components(units, atoms) if digits)
    # Digits of left-out dims cancel, but need not divide the tensor's size.
    unmet = kept * (whole - whole * met // math.prod(units.digits))
    return whole * kept * (reduced - 2) + wanted + unmet


def partial_units(src: Layout, dst: Layout) -> Refined:
    """Common units of the partial results alone, without the dims.

    Raises:
        ReshardError: there are no common units.
    """
    units = refine(*(Layout((), src.mesh, Spec((), each.spec.partial)) for each in (src, dst)))
    if units is None:
        raise ReshardError(
            "the parts of an axis that hold partial results before and after nest; "
            f"got {src.spec} and {dst.spec}"
        )
    return units


def _agreeing(units: Refined, atoms: Iterable[int], n_devices: int) -> int:
    """Number of pairs of an element and a device that holds it in both layouts.

    Args:
        units: The layouts.
        atoms: The atoms that are looked at.
        n_devices: Number of devices, those that differ along other atoms counted once.
    """
    spread = 1
    for n, nodes, _ in _components(units, atoms):
        spread *= n ** (nodes - 1)
    # Left-out dims are cut the same way in both layouts.
    shards = zip(units.layout.shards, units.left, strict=True)
    spread *= math.prod(n for n, left in shards if left < 0)
    return math.prod(units.layout.shape) * n_devices // spread


def _components(units: Refined, atoms: Iterable[int]) -> list[tuple[int, int, int]]:
    """Connected components of atoms and digits; each atom is joined to its digit in either layout.

    If a device holds an element in both layouts, its coordinates equal the element's digits
    throughout a component: there are `n` choices instead of `n ** nodes`.

    Returns:
        For each component its size `n`, its number of atoms and digits, and its number of digits.
    """
    root = list(range(len(units.digits) + len(units.atoms)))

    def find(node: int) -> int:
        while root[node] != node:
            node = root[node]
        return node

    for atom in atoms:
        for places in (units.src, units.dst):
            if places[atom] >= 0:
                root[find(len(units.digits) + atom)] = find(places[atom])
    members: dict[int, list[int]] = {}
    for node in range(len(root)):
        members.setdefault(find(node), []).append(node)
    sizes = [*units.digits, *units.sizes]
    return [
        (sizes[top], len(nodes), sum(node < len(units.digits) for node in nodes))
        for top, nodes in members.items()
    ]
