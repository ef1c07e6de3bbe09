"""`picture`: draws a layout, or the steps of a resharding, with matplotlib (extra `plot`)."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, pairwise, product

import numpy as np

from shardspec.amounts import count_text
from shardspec.layout.layout import Layout
from shardspec.report.block_owners import Blocks
from shardspec.report.canvas import (
    DeviceGrid,
    Part,
    Parts,
    Picture,
    Sheet,
    inside,
    palette,
    tensor_size,
    text_width,
)
from shardspec.report.crop import Box, Frame
from shardspec.report.explain import bound_text, partial_lines, step_lines
from shardspec.report.phrases import (
    axes_text,
    devices_text,
    holders_text,
    index_text,
    layout_text,
    mesh_text,
    span_text,
)
from shardspec.resharding.reshard import reshard
from shardspec.resharding.step import ReshardPlan, Step
from shardspec.resharding.transfer import transfers

_MARGIN = 0.3
_COMBINED = "#9a9a9a"
"""Colour of parts that are combined from all devices of a group."""
_MANY = 256
"""Most devices for which a picture of a step shows who sent what."""
_RUNS = 16
"""Most intervals of a strided dim that are drawn for a device."""


def picture(what: Layout | ReshardPlan, dst: Layout | None = None) -> Picture:
    """Picture of which devices hold which block of a tensor `A`, or of each step of a plan.

    A layout is drawn as the tensor, cut into blocks labelled with their devices, beside the
    devices, each with its part of the tensor. A step is drawn as the devices before and after it;
    the colour of a part tells from which device of the group it comes. Partial results are hatched.

    Args:
        what: A layout, or a plan by `reshard`; with `dst`, the source of a resharding.
        dst: The destination of a resharding from `what`, with `reshard`'s defaults.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ReshardError: `reshard` cannot turn `what` into `dst`.
    """
    sheet = Sheet()
    if not isinstance(what, Layout):
        _draw_plan(sheet, what)
    elif dst is not None:
        _draw_plan(sheet, reshard(what, dst))
    else:
        _draw_layout(sheet, what)
    return sheet.picture(_MARGIN)


def _draw_layout(sheet: Sheet, layout: Layout) -> None:
    """Draws the tensor at the left and the devices at the right."""
    blocks = Blocks(layout)
    frame = Frame.of([blocks])
    most = max((len(scale.pieces) for scale in frame.scales), default=1)
    width, height = tensor_size(layout, frame, 2.8 if most <= 4 else 3.6 if most <= 8 else 4.8)
    left, top = _MARGIN + _left_room(frame), 1.4 if frame.panels != ((),) else 1.15
    right = left + width + 0.9
    filled = np.flatnonzero(~blocks.is_empty).tolist()
    colours = dict(zip(filled, palette(len(filled)), strict=True))

    sheet.text(_MARGIN, 0.4, layout_text(layout), 12, weight="bold")
    if 0 in layout.shape:
        sheet.box((left, top, width, height), facecolor="0.95", edgecolor="0.5")
        sheet.label((left, top, width, height), "no elements")
    else:
        _draw_tensor(sheet, (left, top, width, height), blocks, frame, colours)

    number_of = blocks.number_of
    parts = _own_parts(layout, lambda device: colours.get(number_of[device], "none"))
    kinds = [p.kind for p in layout.spec.partial]
    sheet.text(right, top - 0.3, "what each device holds", color="0.3")
    in_proportion = Frame.of([blocks, blocks])
    DeviceGrid.of(layout, in_proportion, 5.5).draw(sheet, (right, top - 0.16), kinds, parts)
    y = sheet.height + 0.1
    for line in "\n".join(_notes(blocks)).splitlines():
        y += 0.2
        sheet.text(_MARGIN, y, line, color="0.3")


def _draw_tensor(
    sheet: Sheet, box: Box, blocks: Blocks, frame: Frame, colours: Mapping[int, str]
) -> None:
    """Draws the tensor's blocks, labelled with their devices, and where they start and stop."""
    layout = blocks.layout
    kinds = [p.kind for p in layout.spec.partial]
    for panel, cell in product(frame.panels, product(*(scale.pieces for scale in frame.scales))):
        at = dict(panel) | dict(zip(frame.dims, cell, strict=True))
        runs = [at.get(dim, (0, n)) for dim, n in enumerate(layout.shape)]
        pieces = [
            next(cuts.pieces(start)) for cuts, (start, _) in zip(blocks.cuts, runs, strict=True)
        ]
        number = blocks.number(
            cuts.part(piece) for cuts, piece in zip(blocks.cuts, pieces, strict=True)
        )
        for part in frame.boxes([[run] for run in runs]):
            place = inside(box, part)
            sheet.block(place, colours[number], kinds, linewidth=1.5)
            text = holders_text(blocks.devices(number), kinds, int(18 * place[2]))
            back = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
            sheet.label(place, text, **({"bbox": {**back, "alpha": 0.8}} if kinds else {}))
    for part, panel in zip(frame.panel_boxes, frame.panels, strict=True):
        left, top, width, height = inside(box, part)
        if panel:
            at = dict(panel)
            dims = [span_text(at[dim]) if dim in at else ":" for dim in range(len(layout.shape))]
            sheet.label((left, top - 0.62, width, 0.2), f"A[{', '.join(dims)}]")
        if frame.dims:
            _name_columns(sheet, (left, top, width, height), layout, frame)
    if len(frame.dims) == 2:
        _name_rows(sheet, box, layout, frame)


def _name_columns(sheet: Sheet, box: Box, layout: Layout, frame: Frame) -> None:
    """Writes where the pieces of the last drawn dim start and stop, above a panel."""
    left, top, width, height = box
    scale = frame.scales[-1]
    places = [left + scale.at(border) * width for border in scale.borders]
    texts = [index_text(border) for border in scale.borders]
    room = min(b - a for a, b in pairwise(places))
    size = min(7.5, room / text_width(f"{max(texts, key=len)} ", 1))
    for x, text in zip(places, texts, strict=True):
        sheet.text(x, top - 0.1, text, size, ha="center", color="0.3")
    if scale.left_out:
        x = left + width * sum(map(scale.at, scale.left_out)) / 2
        sheet.text(x, top + height / 2, "…", ha="center")
    text = _dim_text(layout, frame.dims[-1])
    sheet.label((left, top - 0.4, width, 0.2), text, color="0.3")


def _name_rows(sheet: Sheet, box: Box, layout: Layout, frame: Frame) -> None:
    """Writes where the pieces of the first of two drawn dims start and stop, at the left."""
    left, top, width, height = box
    scale = frame.scales[0]
    for border in scale.borders:
        y = top + scale.at(border) * height
        sheet.text(left - 0.06, y, index_text(border), 7.5, ha="right", color="0.3")
    if scale.left_out:
        y = top + height * sum(map(scale.at, scale.left_out)) / 2
        sheet.text(left + width / 2, y, "⋮", ha="center")
    text = _dim_text(layout, frame.dims[0])
    sheet.text(_MARGIN + 0.07, top + height / 2, text, color="0.3", rotation=90, ha="center")


def _left_room(frame: Frame) -> float:
    """Width that the names of the rows take at the left of the tensor."""
    if len(frame.dims) < 2:
        return 0.0
    return 0.3 + max((text_width(index_text(b), 7.5) for b in frame.scales[0].borders), default=0.0)


def _dim_text(layout: Layout, dim: int) -> str:
    axes = layout.spec.sharding_of(dim)
    return f"dim {dim}" + (f", along {axes_text(layout.mesh, axes)}" if axes else "")


def _notes(blocks: Blocks) -> Iterator[str]:
    """Lines about what the drawing does not show."""
    layout = blocks.layout
    names = layout.mesh.axis_names
    if len(names) > 1:
        yield f"devices as in the mesh: {names[-1]} to the right, {' and '.join(names[:-1])} down"
    if blocks.n_copies > 1:
        axes = [axis for axis in blocks.copy_axes if layout.mesh.length(axis) > 1]
        yield f"{blocks.n_copies:,} copies of each block, along {axes_text(layout.mesh, axes)}"
    yield from partial_lines(layout)
    if blocks.is_empty.any() and 0 not in layout.shape:
        idle = sorted(blocks.devices(blocks.is_empty).reshape(-1).tolist())
        yield f"nothing on {count_text(len(idle), 'device')}: {devices_text(idle)}"


def _draw_plan(sheet: Sheet, plan: ReshardPlan) -> None:
    """Draws a row for each step: the devices before it and after it."""
    src, dst = plan.src, plan.dst
    frame = Frame.of([Blocks(layout) for layout in (src, dst, *(s.dst for s in plan.steps))])
    grid = DeviceGrid.of(src, frame, 4.4)
    right = _MARGIN + max(grid.size[0], 2.0) + 0.9
    title = f"A {src.shape} from {src.spec} to {dst.spec} on {mesh_text(src.mesh)}"
    sheet.text(_MARGIN, 0.4, title, 12, weight="bold")
    sheet.text(_MARGIN, 0.66, f"all devices receive {bound_text(plan, None)}", color="0.3")
    y = 1.1
    for number, step in enumerate(plan.steps, 1):
        first, *others = step_lines(step, None)
        sheet.text(_MARGIN, y, f"{number}. {first}", 10, weight="bold")
        for line in others:
            y += 0.2
            sheet.text(_MARGIN, y, line, color="0.3")
        before, after = _step_parts(step)
        for left, layout, parts in ((_MARGIN, step.src, before), (right, step.dst, after)):
            grid.draw(sheet, (left, y + 0.15), [p.kind for p in layout.spec.partial], parts)
        middle = y + 0.15 + grid.size[1] / 2
        sheet.arrow((right - 0.65, middle), (right - 0.2, middle))
        y += grid.size[1] + 0.5
    if not plan.steps:
        sheet.text(_MARGIN, y, "nothing to do: every device has what it needs")
        kinds = [p.kind for p in src.spec.partial]
        grid.draw(sheet, (_MARGIN, y + 0.15), kinds, _own_parts(src, lambda _: palette(1)[0]))
    elif src.mesh.size <= _MANY:
        note = "colour: the device of the group that a part comes from; grey: combined from all"
        sheet.text(_MARGIN, sheet.height + 0.25, note, color="0.3")


def _step_parts(step: Step) -> tuple[Parts, Parts]:
    """What devices hold before and after a step, coloured by the device that it comes from."""
    groups = step.groups
    colours = palette(len(groups[0]))
    colour_of = {device: colours[i] for group in groups for i, device in enumerate(group)}
    before = _own_parts(step.src, colour_of.__getitem__)
    if step.kind in ("reduce_scatter", "all_reduce"):
        return before, _own_parts(step.dst, lambda _: _COMBINED)
    if step.is_local or step.src.mesh.size > _MANY:
        return before, _own_parts(step.dst, colour_of.__getitem__)
    received: dict[int, list[Part]] = {}
    for t in transfers(step.src, step.dst, step.axes):
        runs = [of_dim[:_RUNS] for of_dim in t.runs]
        received.setdefault(t.receiver, []).append((runs, colour_of[t.sender]))
    return before, lambda device: received.get(device, [])


def _own_parts(layout: Layout, colour: Callable[[int], str]) -> Parts:
    """What each device holds, in one colour."""
    blocks = Blocks(layout)
    number_of = blocks.number_of

    def parts(device: int) -> list[Part]:
        of_dim = zip(blocks.cuts, blocks.parts(number_of[device]), strict=True)
        return [([islice(cuts.runs(part), _RUNS) for cuts, part in of_dim], colour(device))]

    return parts
