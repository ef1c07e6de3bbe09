"""The command line: `python -m shardspec show "S0R" --mesh 2x2 --shape 4x4`.

Every expected error is one line on standard error, with exit status 2.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

from shardspec import __version__
from shardspec.base.chunking import ChunkingRule
from shardspec.cli.arguments import (
    ITEMSIZES,
    chunkings,
    device_ids,
    mesh_axes,
    names,
    positive,
    sizes,
)
from shardspec.cli.shell import Parser, can_show, discard_output, print_text
from shardspec.errors import LayoutError, MeshError, NotationError, ShardspecError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.notation import NOTATIONS, notation
from shardspec.report.explain import explain
from shardspec.report.json import layout_record, plan_record
from shardspec.report.picture import picture
from shardspec.report.terminal import draw
from shardspec.resharding.reshard import COLLECTIVES, reshard

_EXAMPLES = {
    "": """
examples:
  python -m shardspec show "S0R" --mesh 2x2 --shape 4x4
  python -m shardspec reshard "S0R" "RS0" --mesh data=2,model=2 --shape 8x8
  python -m shardspec convert --from hlo --to torch "{devices=[2,2]<=[4]}" --mesh 2x2

'show --help', 'reshard --help' and 'convert --help' have more.""",
    "show": """
examples:
  python -m shardspec show "S0S1" --mesh 2x2 --shape 8x6
  python -m shardspec show "S0+P1" --mesh data=4,model=2 --shape 10 --chunking balanced
  python -m shardspec show "RS01" --mesh 2x2 --shape 8x8 --dtype float32 --picture who.svg
  python -m shardspec show --from hlo "{devices=[2,2]<=[2,2]T(1,0)}" --shape 4x4 --json

layouts, unless --from names another notation: a letter for each dim of the tensor, R (whole) or S
with the axes of the mesh that cut it, counted from 0, the first one major: S0R, RS01. Then +P0 for
partial sums along axis 0, or +Pmax0, +Pmin0, +Pproduct0, +Pavg0. S[2]0 is strided: cut in 2, and
each half along axis 0. S(0:(1)2) uses the major half of axis 0. A scalar is ().""",
    "reshard": """
examples:
  python -m shardspec reshard "S0R" "RS0" --mesh 2x2 --shape 8x8
  python -m shardspec reshard "RS1+P0" "S0S1" --mesh data=2,model=4 --shape 64x64 --dtype bfloat16
  python -m shardspec reshard "S01R" "RS01" --mesh 2x2 --shape 8x8 --dtype float32 \\
      --collectives slice,all_gather --max-local-elements 64
  python -m shardspec reshard "S0R" "S1R" --mesh 2x2 --picture steps.png""",
    "convert": """
examples:
  python -m shardspec convert --from hlo --to torch "{devices=[2,2]<=[4]}" --mesh 2x2
  python -m shardspec convert --from alpa --to jax "S01R" --mesh data=2,model=4
  python -m shardspec convert --from alpa --to hlo --style 3 "S01R" --mesh data=2,model=4""",
}

_STYLES: dict[str, dict[str, dict[str, Any]]] = {
    "alpa": {s: {"style": s} for s in ("plain", "superscript", "colossal")},
    "sbp": {s: {"style": s} for s in ("short", "python")},
    "hlo": {str(version): {"version": version} for version in (1, 2, 3)},
}
"""Arguments of `dump` for each style, for notations that have several styles."""

_MAX_PIECES = 1 << 20
"""Most pieces of a dim that is not cut evenly, as they are visited one by one."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; exits with status 2 and one line on standard error if it fails.

    Args:
        arguments: Arguments of the command; those of the process if left out.
    """
    options = _parser().parse_args(arguments)
    try:
        print_text(options.run(options))
    except BrokenPipeError:
        discard_output()
        raise SystemExit(1) from None
    except (ShardspecError, OSError) as error:
        options.parser.error(str(error))


def _show(options: argparse.Namespace) -> str:
    layout = _chunked(_read(options, options.layout), options)
    if options.picture is not None:
        picture(layout).save(options.picture)
    itemsize = options.itemsize or ITEMSIZES.get(options.dtype)
    if options.json:
        return json.dumps(layout_record(layout, itemsize))
    title, body = explain(layout, itemsize=itemsize).split("\n", 1)
    drawing = draw(layout, ascii=options.ascii or not can_show("┌⋮…"), title=False)
    return f"{title}\n\n{drawing}\n{body}"


def _reshard(options: argparse.Namespace) -> str:
    src = _read(options, options.src)
    dst = _read(options, options.dst, src.mesh)
    if options.shape is None and len(src.shape) == len(dst.shape):
        shape = tuple(map(math.lcm, src.shape, dst.shape))
        src, dst = replace(src, shape=shape), replace(dst, shape=shape)
    plan = reshard(
        _chunked(src, options),
        _chunked(dst, options),
        collectives=options.collectives,
        max_local_elements=options.max_local_elements,
    )
    if options.picture is not None:
        picture(plan).save(options.picture)
    itemsize = options.itemsize or ITEMSIZES.get(options.dtype)
    if options.json:
        return json.dumps(plan_record(plan, itemsize))
    return explain(plan, itemsize=itemsize)


def _convert(options: argparse.Namespace) -> str:
    layout = _read(options, options.layout)
    styles = _STYLES.get(options.target, {})
    if options.style is not None and options.style not in styles:
        raise NotationError(
            f"a style of {options.target} is one of {tuple(styles)}; got {options.style!r}"
            if styles
            else f"{options.target} has one style; got --style {options.style!r}, leave it out"
        )
    text: str = notation(options.target).dump(layout, **styles.get(options.style, {}))
    return text


def _read(options: argparse.Namespace, text: str, mesh: Mesh | None = None) -> Layout:
    """The layout that `text` describes, on `mesh`; if that is None, on the mesh of the options."""
    if mesh is None and options.mesh is not None:
        lengths = tuple(options.mesh.values())
        mesh = Mesh(lengths, tuple(options.mesh), options.devices or ())
    elif mesh is None and options.devices is not None:
        raise MeshError(f"--devices are those of --mesh, which is missing; got {options.devices}")
    layout: Layout = notation(options.source).parse(text, shape=options.shape, mesh=mesh)
    return layout


def _chunked(layout: Layout, options: argparse.Namespace) -> Layout:
    """The layout with the chunking of the options."""
    for dim, (n, parts) in enumerate(zip(layout.shape, layout.cuts, strict=True)):
        pieces = math.prod(parts)
        if n % pieces and pieces > max(_MAX_PIECES, layout.mesh.size):
            raise LayoutError(
                f"a dim that is not cut evenly has at most {_MAX_PIECES} pieces here; "
                f"got {pieces} for dim {dim} of {n}"
            )
    if options.chunking is None:
        return layout
    rules = options.chunking * len(layout.shape) if len(options.chunking) == 1 else options.chunking
    return replace(layout, chunking=rules)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m shardspec",
        description="Show how a tensor is laid out on a mesh of devices, and how to change that.",
        epilog=_EXAMPLES[""],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shardspec {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(
        name: str, what: str, run: Callable[[argparse.Namespace], str], *positional: str
    ) -> argparse.ArgumentParser:
        subparser = commands.add_parser(
            name,
            help=what,
            description=f"{what.capitalize()}.",
            epilog=_EXAMPLES[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.set_defaults(run=run, parser=subparser)
        for argument in positional:
            subparser.add_argument(argument, help="a layout in the notation of --from")
        add = subparser.add_argument
        add("--mesh", type=mesh_axes, metavar="MESH", help="its axes: 2x4, or data=2,model=4")
        add("--devices", type=device_ids, metavar="IDS", help="its ids, row-major: 3,1,8-10")
        shape = "of the tensor: 8x4 (default: the smallest even one)"
        add("--shape", type=sizes, metavar="SHAPE", help=shape)
        source = "notation of the layouts (default: alpa)"
        add("--from", dest="source", choices=NOTATIONS, default="alpa", help=source)
        return subparser

    def output(subparser: argparse.ArgumentParser) -> None:
        rules = ", ".join(get_args(ChunkingRule))
        rules = f"how dims are cut: {rules}, or sizes 3+2+2; one for all dims or one for each"
        subparser.add_argument("--chunking", type=chunkings, metavar="RULES", help=rules)
        size = subparser.add_mutually_exclusive_group()
        size.add_argument("--itemsize", type=positive, metavar="BYTES", help="bytes per element")
        dtype = "element type, such as float32 or bfloat16"
        size.add_argument("--dtype", choices=ITEMSIZES, metavar="TYPE", help=dtype)
        picture = "also draw a picture into this .svg or .png file"
        subparser.add_argument("--picture", metavar="FILE", help=picture)
        subparser.add_argument("--json", action="store_true", help="print JSON")

    show = command("show", "draw a layout and list which device holds what", _show, "layout")
    show.add_argument("--ascii", action="store_true", help="draw with +, - and |")
    output(show)
    plan = command(
        "reshard", "find the collectives from one layout to another", _reshard, "src", "dst"
    )
    kinds = f"kinds that may be used, out of {', '.join(sorted(COLLECTIVES))} (default: all)"
    plan.add_argument("--collectives", type=names, default=COLLECTIVES, metavar="A,B", help=kinds)
    largest = "limit on shards on the way, in elements (default: the larger of src and dst)"
    plan.add_argument("--max-local-elements", type=positive, metavar="N", help=largest)
    output(plan)
    convert = command("convert", "write a layout in another notation", _convert, "layout")
    target = "notation of the result"
    convert.add_argument("--to", dest="target", choices=NOTATIONS, required=True, help=target)
    styles = "; ".join(f"{name}: {', '.join(of)}" for name, of in _STYLES.items())
    convert.add_argument("--style", help=f"style of the result; {styles}")
    return parser
