"""What any resharding must move: pairs of a device and an element, counted over all devices.

Without partial results a device receives what it wants and does not hold; plans reach that.

With `u` devices that hold different partial results of an element and `r` devices that want it
combined, at least `u - 1` messages pass before any device knows everything, and after that each
other device that wants it still has to receive one: `u + r - 2` messages, and one more if no device
holds a partial result of the element and also wants it. A message carries one element, as what is
sent on can be combined first. Devices that keep different partial results do not mix.

Of an axis that only the destination has partial results on, one device in the group will do.
"""

import math
from collections.abc import Iterable

from shardspec.errors import ReshardError
from shardspec.layout.layout import Layout
from shardspec.layout.spec import Spec
from shardspec.refine.refine import Refined, refine


def held_elements(layout: Layout) -> int:
    """Elements that all devices hold together, replicas counted each time, padding not at all."""
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
    """Elements that a device wants and does not hold: of the device that lacks most."""
    units = refine(src, dst)
    if units is None:
        devices = src.mesh.device_ids
        return max(kept_of(dst, dst, device) - kept_of(src, dst, device) for device in devices)
    wanted = dst.local_bytes(1)
    standing = {place: atom for atom, place in enumerate(units.src) if place >= 0}
    if any(standing.get(place, atom) != atom for atom, place in enumerate(units.dst)):
        return wanted  # where the coordinates along the two atoms differ, nothing is kept
    kept = _agreeing(units, range(len(units.atoms)), src.mesh.size)
    return wanted - wanted * kept // max(1, held_elements(dst))


def lower_bound_elements(src: Layout, dst: Layout) -> int:
    """Elements that all devices together receive at least, whatever the collectives."""
    units = refine(src, dst)
    partial = units or partial_units(src, dst)
    reduced, made, kept = 1, 1, 1
    for size, before, after in zip(
        partial.sizes, partial.src_kinds, partial.dst_kinds, strict=True
    ):
        if before and before == after:
            kept *= size
        else:
            reduced *= size if before else 1
            made *= size if after else 1
    whole = math.prod(src.shape)
    wanted = held_elements(dst) // made
    if units is None:
        # Where cuts do not nest, it is not counted who both holds a result and wants the element,
        # and which devices of a group with new partial results have it.
        if reduced > 1:
            return max(0, whole * kept * (reduced - 2) + wanted)
        return max(0, wanted - kept_elements(src, dst))
    atoms = [i for i, kind in enumerate(units.dst_kinds) if not kind or kind == units.src_kinds[i]]
    if reduced == 1:
        return wanted - _agreeing(units, atoms, src.mesh.size // made)
    met = math.prod(n for n, _, digits in _components(units, atoms) if digits)
    # Digits of left-out dims cancel, but need not divide the tensor's size.
    unmet = kept * (whole - whole * met // math.prod(units.digits))
    return whole * kept * (reduced - 2) + wanted + unmet


def partial_units(src: Layout, dst: Layout) -> Refined:
    """Common units of the partial results alone, whatever the dims.

    Raises:
        ReshardError: There are none.
    """
    units = refine(*(Layout((), src.mesh, Spec((), each.spec.partial)) for each in (src, dst)))
    if units is None:
        raise ReshardError(
            "the parts of an axis that hold partial results before and after nest; "
            f"got {src.spec} and {dst.spec}"
        )
    return units


def _agreeing(units: Refined, atoms: Iterable[int], n_devices: int) -> int:
    """Pairs of an element and one of `n_devices` that holds it in both layouts, in `atoms` only."""
    spread = 1
    for n, nodes, _ in _components(units, atoms):
        spread *= n ** (nodes - 1)
    # The left-out dims are cut the same way in both layouts.
    shards = zip(units.layout.shards, units.left, strict=True)
    spread *= math.prod(n for n, left in shards if left < 0)
    return math.prod(units.layout.shape) * n_devices // spread


def _components(units: Refined, atoms: Iterable[int]) -> list[tuple[int, int, int]]:
    """Connected atoms and digits, joined by standing on one another in either layout.

    The coordinates of a device that holds an element in both layouts equal the element's digits
    throughout a component: `n` choices instead of `n ** nodes`.

    Returns:
        Size `n`, number of atoms and digits, and number of digits of each component.
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
