"""`explain`: describes a layout, or a resharding plan, in words."""

import itertools
import math
import textwrap
from collections.abc import Iterator

from shardspec.amounts import count_text
from shardspec.base.axis import Split
from shardspec.base.chunking import all_sizes
from shardspec.base.partial import Operation, Reduction
from shardspec.layout.layout import Layout
from shardspec.report.block_owners import Blocks
from shardspec.report.phrases import (
    amount_text,
    axes_text,
    axis_text,
    devices_text,
    holders_text,
    layout_text,
    mesh_text,
    parts_text,
    sizes_text,
)
from shardspec.resharding.construct import StepKind
from shardspec.resharding.reshard import reshard
from shardspec.resharding.step import ReshardPlan, Step

_LINES = 16
"""Most lines of listed blocks; of more blocks, the first ones and the last are listed."""

_MANY_PIECES = 1 << 16
"""If a dim has more pieces than this, their sizes are not listed."""

_RESULTS: dict[Reduction, str] = {
    "sum": "term{s} of a sum",
    "avg": "term{s} of an average",
    "max": "candidate{s} for the maximum",
    "min": "candidate{s} for the minimum",
    "product": "factor{s} of a product",
}
_OPERATIONS: dict[Operation, str] = {
    "slice": "cut or transposed",
    "add": "added to a tensor that is partial in the same way",
    "add_whole": "added to a tensor that is not partial",
    "scale": "scaled",
    "scale_positive": "scaled by a number >= 0",
    "multiply": "multiplied by a tensor that is partial in the same way",
}
_MEANINGS: dict[StepKind, str] = {
    "slice": "every device keeps a part of what it holds, nothing is sent",
    "fill": "copies become partial results, nothing is sent",
    "all_gather": "every device gets all shards of its group",
    "all_to_all": "every device sends an equal part to each other device",
    "collective_permute": "every device gets the shard of one other device",
    "exchange": "every device sends each other device what that device needs",
    "reduce_scatter": "partial results are combined, every device gets a part",
    "all_reduce": "partial results are combined, every device gets all",
}


def explain(
    what: Layout | ReshardPlan, dst: Layout | None = None, *, itemsize: int | None = None
) -> str:
    """Text that says which devices hold which block of a tensor `A`, or what each step does.

    Devices that hold copies are listed as `0,1`; those whose results add up to a block as `0+2`.

    Args:
        what: A layout, or a plan by `reshard`; with `dst`, the source of a resharding.
        dst: The destination of a resharding from `what`, with `reshard`'s defaults.
        itemsize: Bytes per element; without it amounts are in elements.

    Raises:
        ReshardError: `reshard` cannot turn `what` into `dst`.

    Examples:
        >>> from shardspec import Mesh, Spec
        >>> print(explain(Layout((5, 4), Mesh((2, 2), ("x", "y")), Spec.parse("S0R")), itemsize=4))
        A (5, 4) as S0R on 4 devices (x=2, y=2)
        <BLANKLINE>
        dim 0 (5): cut in 2 along x; sizes 3, 2 (ceil)
        dim 1 (4): whole
        copies: 2 of each block, along y
        <BLANKLINE>
        devices 0,1  A[0:3, 0:4]
        devices 2,3  A[3:5, 0:4]
        <BLANKLINE>
        a device holds (3, 4) at most, 48 B; all devices 160 B; A is 80 B
    """
    if isinstance(what, Layout):
        return _plan_text(reshard(what, dst), itemsize) if dst else _layout_text(what, itemsize)
    return _plan_text(what, itemsize)


def _layout_text(layout: Layout, itemsize: int | None) -> str:
    blocks = Blocks(layout)
    lines = [f"dim {dim} ({n}): {cut_text(blocks, dim)}" for dim, n in enumerate(layout.shape)]
    if blocks.n_copies > 1:
        axes = [axis for axis in blocks.copy_axes if layout.mesh.length(axis) > 1]
        along = axes_text(layout.mesh, axes)
        lines.append(f"copies: {blocks.n_copies:,} of each block, along {along}")
    lines += partial_lines(layout)
    lines = [layout_text(layout), "", *lines, *([""] if lines else []), *_block_lines(blocks), ""]
    local, held = layout.local_bytes(itemsize=1), blocks.held_elements
    most = "" if local * layout.mesh.size == held else " at most"
    lines.append(
        f"a device holds {blocks.largest_shape}{most}, {amount_text(local, itemsize)}; "
        f"all devices {amount_text(held, itemsize)}; "
        f"A is {amount_text(math.prod(layout.shape), itemsize)}"
    )
    return "\n".join(lines)


def _plan_text(plan: ReshardPlan, itemsize: int | None) -> str:
    src, dst = plan.src, plan.dst
    lines = [
        f"A {src.shape} from {src.spec} to {dst.spec} on {mesh_text(src.mesh)}, "
        f"in {count_text(len(plan.steps), 'step')}",
        "",
    ]
    for number, step in enumerate(plan.steps, 1):
        first, *others = step_lines(step, itemsize)
        lines += [f"{number}. {first}", *(f"   {line}" for line in others)]
    if not plan.steps:
        lines.append("nothing to do: every device has what it needs")
    most, peak = plan.received_bytes(1), plan.peak_bytes(1)
    lines += [
        "",
        f"all devices receive {bound_text(plan, itemsize)}",
        f"a device receives at most {amount_text(most, itemsize)}; "
        f"input and output of a step are at most {amount_text(peak, itemsize)}",
    ]
    return "\n".join(lines)


def bound_text(plan: ReshardPlan, itemsize: int | None) -> str:
    """The amount that all devices together receive, compared with the lower bound."""
    total, least = plan.total_bytes(1), plan.lower_bound_bytes(1)
    if total == least:
        return f"{amount_text(total, itemsize)}; no plan can move less"
    above = f", {plan.gap:.1%} above the lower bound of" if least else "; the lower bound is"
    return f"{amount_text(total, itemsize)}{above} {amount_text(least, itemsize)}"


def step_text(step: Step) -> str:
    """A step in one line, with the names of its axes."""
    reduction = f" ({step.reduction})" if step.reduction else ""
    along = f" along {axes_text(step.src.mesh, step.axes)}" if step.axes else ""
    dims = "" if step.dim is None else f", dim {step.dim}"
    dims += "" if step.to_dim is None else f" to dim {step.to_dim}"
    name = step.kind.replace("_", "-")
    return f"{name}{reduction}{along}{dims}: {step.src.spec} -> {step.dst.spec}"


def step_lines(step: Step, itemsize: int | None) -> list[str]:
    """What a step does, in which groups, what a device receives and what it holds afterwards."""
    after = amount_text(step.dst.local_bytes(1), itemsize)
    if step.is_local:
        return [f"{step_text(step)}", f"{_MEANINGS[step.kind]}; a device then holds {after}"]
    device = step.src.mesh.device_ids[0]
    groups = [devices_text(group, 24) for group in step.groups[:4]]
    more = f" and {len(step.groups) - 4:,} more" if len(step.groups) > 4 else ""
    # Along a single dim, libraries cut and join arrays themselves.
    transposes = (("before", step.pack(device)), ("after", step.unpack(device)))
    orders = [
        f"{when}, {order}"
        for when, order in transposes
        if step.dim is None and order and not order.is_reshape
    ]
    received = amount_text(step.received_bytes(1), itemsize)
    return [
        step_text(step),
        f"{_MEANINGS[step.kind]}, among {' | '.join(groups)}{more}",
        *([f"local transpose {'; '.join(orders)}"] if orders else []),
        f"a device receives {received}, and then holds {after}",
    ]


def cut_text(blocks: Blocks, dim: int) -> str:
    """How a dim is cut, and the sizes of its pieces."""
    cuts, entries = blocks.cuts[dim], blocks.layout.spec.dims[dim]
    if not entries:
        return "whole"
    levels = [
        str(count)
        if isinstance(entry, Split)
        else f"{count} along {axis_text(blocks.layout.mesh, entry)}"
        for count, entry in zip(cuts.parts, entries, strict=True)
    ]
    strided = "strided, " if any(cuts.is_split) else ""
    text = f"{strided}cut in {', then each part in '.join(levels)}; "
    if cuts.is_even:
        return f"{text}{cuts.n // cuts.n_pieces} each"
    if cuts.n_pieces > _MANY_PIECES:
        return f"{text}uneven"
    rule = f" ({cuts.rule})" if isinstance(cuts.rule, str) else ""
    return f"{text}sizes {sizes_text(all_sizes(cuts.n, cuts.rule, cuts.parts))}{rule}"


def partial_lines(layout: Layout) -> Iterator[str]:
    """Which partial results a layout has, how they combine, and what may be done before that."""
    mesh, partial = layout.mesh, layout.spec.partial
    for p in partial:
        count = mesh.length(p.axis)
        what = _RESULTS[p.kind].format(s="" if count == 1 else "s")
        yield f"partial: {count:,} {what} along {axis_text(mesh, p.axis)}"
    if not all(a.commutes_with(b) for a, b in itertools.combinations(partial, 2)):
        order = ", then ".join(f"{p.kind} along {axis_text(mesh, p.axis)}" for p in partial[::-1])
        yield f"  in this order: {order}"
    if partial:
        may = [text for name, text in _OPERATIONS.items() if all(p.allows(name) for p in partial)]
        if _OPERATIONS["scale"] in may:
            may.remove(_OPERATIONS["scale_positive"])
        if len(may) > 1:
            may[-1] = f"or {may[-1]}"
        text = f"until they are combined, A may be {', '.join(may)}"
        yield textwrap.fill(text, 80, initial_indent="  ", subsequent_indent="  ")


def _block_lines(blocks: Blocks) -> list[str]:
    """A line for each block; of many, for some of them."""
    kinds = [p.kind for p in blocks.layout.spec.partial]
    filled = blocks.in_mesh_order[~blocks.is_empty[blocks.in_mesh_order]].tolist()
    left_out = len(filled) - _LINES
    rows = []
    for number in filled if left_out <= 0 else [*filled[: _LINES - 1], filled[-1]]:
        devices = blocks.devices(number)
        parts = zip(blocks.cuts, blocks.parts(number), strict=True)
        rows.append((devices.size, holders_text(devices, kinds), parts_text(parts)))
    if blocks.is_empty.any():
        idle = sorted(blocks.devices(blocks.is_empty).reshape(-1).tolist())
        rows.append((len(idle), devices_text(idle), "nothing"))
    width = max(len(holders) for _, holders, _ in rows)
    plural = "s" if any(count > 1 for count, _, _ in rows) else ""
    lines = [f"device{plural} {holders:<{width}}  {held}" for _, holders, held in rows]
    if left_out > 0:
        lines.insert(_LINES - 1, f"... and {count_text(left_out, 'more block')} ...")
    return lines
