"""XLA's `HloSharding`, as in HLO text and `str(sharding._to_xla_hlo_sharding(ndim))`.

There are three versions; `parse` reads all of them, and `dump` writes the requested one. In these
examples, four devices shard a matrix's columns in 2, each half on two devices:

    1  {devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}
    2  {devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}
    3  {mesh['a'=2,'b'=2], [{}, {'b'}]}

Versions 1 and 2 arrange the devices in a grid with a dim for each dim of the tensor, then one for
each subgroup of devices: those that hold the same (`replicated`) or partial sums (`unreduced`).
Version 1 lists the devices; in version 2, `<=[2,2]T(1,0)` stands for the numbers from 0, in a 2×2
grid, transposed. These texts have no mesh; they are read as one whose devices are in rising order.
Version 3 names the axes and has parts of axes (`'b':(1)2`); XLA prints it when it works with named
shardings (jaxlib 0.10).

We take the numbers for device ids. In a compiled program they are indices into its list of devices,
which are the same unless the program runs on a part of the machine or in another order.

Parts of a text that are only for the compiler are dropped: `metadata`, `shard_as`, `shard_like`,
and the axes that version 3 lists as replicated. Texts that do not say where a tensor lies are
errors: `manual`, `unknown`, and open dims of version 3 (`{'a', ?}`).

Reference:
    OpenXLA, `hlo/ir/{hlo_sharding,tile_assignment,named_sharding,mesh_and_axis}.cc`, and what
    jaxlib 0.10.2 reads and prints, with which our tests compare. jaxlib aborts the process if a
    version 3 text contradicts itself; this parser never does.
"""

from collections.abc import Sequence
from typing import Literal

from shardspec.base.partial import Partial
from shardspec.errors import LayoutError, NotationError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.notation._build import build, check_rule
from shardspec.notation._hlo_named import dump_named, read_named
from shardspec.notation._hlo_parts import HloPlacement, HloScanner
from shardspec.notation._hlo_tiled import dump_tiled, read_tiled
from shardspec.remesh import on_mesh


def parse(text: str, *, shape: tuple[int, ...] | None = None, mesh: Mesh | None = None) -> Layout:
    """The layout that an `HloSharding` of any version describes.

    Args:
        text: The sharding, with its braces.
        shape: Shape of the tensor; None for the smallest one that is cut evenly, a scalar if the
            text does not say the rank.
        mesh: Required if the text names no devices (`{replicated}`, `{unreduced}`); otherwise the
            layout is rewritten for this mesh, if one is passed.

    Raises:
        NotationError: the text is not a sharding, is one that a layout cannot hold, or is a tuple
            of shardings; it contradicts itself or the shape; or `mesh` is missing or cannot
            express the layout.

    Examples:
        >>> parse("{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}", shape=(8, 3))
        Layout((8, 3), Mesh((2, 4), ('a', 'b')), Spec.parse('S1R'))
        >>> parse("{mesh['x'=2,'y'=4], [{'y':(2)2, 'x'}], unreduced={'y':(1)2}}")
        Layout((4,), Mesh((2, 4), ('x', 'y')), Spec.parse('S(1:(2)2)(0)+P(1:(1)2)'))
    """
    is_tuple, placements = _read(text)
    if is_tuple:
        raise NotationError(
            f"this is a tuple of {len(placements)} shardings; parse_all gives a layout for each",
            text=text,
            position=0,
        )
    return _layout(text, placements[0], shape, mesh)


def parse_all(
    text: str,
    *,
    shapes: Sequence[tuple[int, ...]] | None = None,
    mesh: Mesh | None = None,
) -> tuple[Layout, ...]:
    """The layouts that a tuple of shardings describes; for a single sharding, just its layout.

    Args:
        text: Shardings in braces, `{{replicated}, {devices=[2]0,1}}`, as HLO has them for a tuple.
        shapes: Shapes of the tensors; None as for `parse`.
        mesh: As for `parse`, for all tensors.

    Raises:
        NotationError: as for `parse`, or there are more or fewer shapes than shardings.

    Examples:
        >>> layouts = parse_all("{{replicated}, {devices=[2]0,1}}", mesh=Mesh((2,), ("x",)))
        >>> [str(layout.spec) for layout in layouts]
        ['()', 'S0']
    """
    _, placements = _read(text)
    of_each = [None] * len(placements) if shapes is None else [*shapes]
    if len(of_each) != len(placements):
        raise NotationError(
            f"each sharding of a tuple has a shape; got {len(of_each)} shapes for "
            f"{len(placements)}",
            text=text,
            position=0,
        )
    pairs = zip(placements, of_each, strict=True)
    return tuple(_layout(text, placement, shape, mesh) for placement, shape in pairs)


def dump(layout: Layout, version: Literal[1, 2, 3] = 2) -> str:
    """The layout as an `HloSharding`.

    Versions 1 and 2 do not keep the axes of the mesh. Version 2 lists the devices, as version 1
    does, if no `<=[...]` gives their order. A tensor on one device is `maximal`.

    Args:
        layout: Its device ids are taken for XLA's numbers.
        version: See the module.

    Raises:
        NotationError: a dim is strided, partial results are not sums, the chunks are not XLA's (the
            rule `ceil`), or, for version 3, the device ids are not 0, 1, ... in any order.

    Examples:
        >>> from shardspec import Spec
        >>> layout = Layout((6, 8), Mesh((2, 4), ("x", "y")), Spec.parse("RS1+P0"))
        >>> dump(layout)
        '{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={unreduced}}'
        >>> dump(layout, version=1)
        '{devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dims={unreduced}}'
        >>> dump(layout, version=3)
        "{mesh['x'=2,'y'=4], [{}, {'y'}], unreduced={'x'}}"
    """
    if version not in (1, 2, 3):
        raise NotationError(f"an HloSharding has version 1, 2 or 3; got {version!r}")
    if not layout.is_contiguous:
        raise NotationError(
            "XLA has no strided shards; "
            f"got {layout}; reshape the tensor so that each split is a dim"
        )
    kinds = {partial.kind for partial in layout.spec.partial}
    if kinds - {"sum"}:
        raise NotationError(
            f"XLA has partial sums, but no other partial results; got {layout}; combine them first"
        )
    check_rule(layout, "ceil", "XLA")
    return dump_named(layout) if version == 3 else dump_tiled(layout, as_iota=version == 2)


def _read(text: str) -> tuple[bool, list[HloPlacement]]:
    """Whether `text` is a tuple, and its shardings."""
    s = HloScanner(text)
    s.expect("{")
    is_tuple = s.peek("{") or s.peek("}")
    placements: list[HloPlacement] = []
    if not is_tuple:
        placements.append(_sharding(s))
    elif not s.accept("}"):
        s.expect("{")
        placements.append(_sharding(s))
        while s.accept(","):
            s.expect("{")
            placements.append(_sharding(s))
        s.expect("}")
    s.end()
    return is_tuple, placements


def _sharding(s: HloScanner) -> HloPlacement:
    """Reads one sharding, from after its opening brace to after its closing brace."""
    named = s.peek("mesh") or s.peek("maximal_mesh")
    placement = read_named(s) if named else read_tiled(s)
    s.expect("}")
    return placement


def _layout(
    text: str, placement: HloPlacement, shape: tuple[int, ...] | None, mesh: Mesh | None
) -> Layout:
    devices = placement.mesh or mesh
    if devices is None:
        raise NotationError(
            "a sharding that names no devices is read with mesh=...", text=text, position=0
        )
    dims = ((),) * len(shape or ()) if placement.dims is None else placement.dims
    unreduced = placement.unreduced
    if unreduced is None:
        unreduced = tuple(axis for axis, length in enumerate(devices.shape) if length > 1)
    layout = build(text, dims, tuple(map(Partial, unreduced)), devices, shape)
    try:
        return layout if mesh is None else on_mesh(layout, mesh)
    except LayoutError as error:
        raise NotationError(str(error), text=text, position=0) from None
