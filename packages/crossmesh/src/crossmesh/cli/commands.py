"""The command line: plan a transfer and explain it, compare strategies and orders.

Nothing is sent, and no device is needed. An error of this package ends the command with one line
and exit code 1, wrong usage with exit code 2.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from shardspec import Layout, ShardspecError
from shardspec.amounts import columns
from shardspec.cli.arguments import natural, number, positive, sizes
from shardspec.cli.shell import Parser, print_text, run_command

from crossmesh import __version__
from crossmesh.base import phrases
from crossmesh.base.links import Links
from crossmesh.base.task import TaskStrategy
from crossmesh.cli.arguments import placed
from crossmesh.errors import CrossmeshError, PlanError
from crossmesh.report.cases import cases, rows_as_hosts
from crossmesh.report.compare import PAPER, compare, compare_case, compare_text
from crossmesh.report.explain import explain
from crossmesh.report.gaps import gaps_text
from crossmesh.report.picture import check_picture, picture
from crossmesh.report.totals import timed
from crossmesh.search.planner import plan
from crossmesh.transfer.plan import TransferPlan
from crossmesh.transfer.solver import Order

_EXAMPLES = """
examples:
  python -m crossmesh plan --src "S0R on 2x2" --dst "RS0 on 1x2" --shape 4096x4096 --dtype bfloat16
  python -m crossmesh plan --src "RS0R on 2x4" --dst "RRS0 on 2x4" --shape 64x64x64 \\
      --dtype float32 --gbit 10 --picture who.svg
  python -m crossmesh plan --src "R+P0 on 4" --dst "S0 on 4 at 0-3" --shape 1024 --dtype float32 \\
      --devices-per-host 2 --json > plan.json
  python -m crossmesh show plan.json --gbit 10
  python -m crossmesh compare --src "S1RR on 2x4" --dst "S0RR on 2x4" --shape 64x64x64 \\
      --dtype float32
  python -m crossmesh cases
  python -m crossmesh gaps --pairs 100"""

_LAYOUTS = """
layouts: a letter for each dim of the tensor: R if it is replicated, or S with the mesh axes that
shard it, counted from 0, the major one first: S0R, RS01. Then +P0 for partial sums along axis 0, or
+Pmax0, +Pmin0. Then 'on' and the shape of the mesh, and optionally 'at' and its devices, row by
row: "S0R on 2x2 at 4-7". By default the source is on devices from 0 on, and the destination on the
devices after those.

hosts: each row of a mesh, along its last axis, is a host, as in the paper (2x4: two hosts with four
devices each), unless --devices-per-host is used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    options = _parser().parse_args(argv)

    def run() -> None:
        if getattr(options, "picture", None) is not None:
            check_picture(options.picture)
        print_text(options.run(options))

    return run_command(run, CrossmeshError, ShardspecError, text="a plan is JSON text")


def _plan(options: argparse.Namespace) -> str:
    src, dst, hosts = _transfer(options)
    transfer = plan(
        src,
        dst,
        options.dtype,
        hosts,
        _links(options),
        strategy=options.strategy,
        order=options.order,
        split=options.split,
    )
    return _shown(transfer, options)


def _show(options: argparse.Namespace) -> str:
    transfer = TransferPlan.from_json(Path(options.plan).read_text(encoding="utf-8"))
    return _shown(transfer, options)


def _shown(transfer: TransferPlan, options: argparse.Namespace) -> str:
    links = _links(options)
    if options.picture is not None:
        picture(transfer, options.picture, links)
    return transfer.to_json() if options.json else explain(transfer, links)


def _compare(options: argparse.Namespace) -> str:
    src, dst, hosts = _transfer(options)
    plans = compare(src, dst, options.dtype, hosts, _links(options))
    if not options.json:
        return compare_text(plans)
    rows: list[dict[str, Any]] = []
    for way, transfer in plans.items():
        timeline, _, in_t = timed(transfer, None)
        rows.append(
            {
                **way._asdict(),
                "n_tasks": len(transfer.tasks),
                "sent_bytes": sum(n_bytes for _, n_bytes in transfer.sent_bytes),
                "unit": "t" if in_t else "s",
                "time": timeline.time_s,
                "lower_bound": timeline.lower_bound_s,
                "gap": timeline.gap,
            }
        )
    return json.dumps(rows)


def _cases(options: argparse.Namespace) -> str:
    results = [(case, compare_case(case)) for case in cases()]
    if options.json:
        return json.dumps(
            [
                {
                    "case": case.number,
                    "src": str(case.src.spec),
                    "src_mesh": case.src.mesh.shape,
                    "dst": str(case.dst.spec),
                    "dst_mesh": case.dst.mesh.shape,
                    "lower_bound_t": next(iter(timelines.values())).lower_bound_s,
                    "time_t": {name: timeline.time_s for name, timeline in timelines.items()},
                }
                for case, timelines in results
            ]
        )
    rows = [["case", "source", "destination", "bound", *PAPER]]
    for case, timelines in results:
        rows.append(
            [
                str(case.number),
                *(
                    f"{layout.spec} on {phrases.lengths(layout.mesh.shape)}"
                    for layout in (case.src, case.dst)
                ),
                f"{next(iter(timelines.values())).lower_bound_s:.2f}",
                *(f"{timeline.time_s:.2f}" for timeline in timelines.values()),
            ]
        )
    return "\n".join(columns(rows, right=range(3, len(rows[0]))))


def _gaps(options: argparse.Namespace) -> str:
    return gaps_text(options.pairs, options.first)


def _transfer(options: argparse.Namespace) -> tuple[Layout, Layout, dict[int, int]]:
    src_mesh = options.src.mesh(0)
    dst_mesh = options.dst.mesh(max(src_mesh.device_ids, default=-1) + 1)
    src = Layout(options.shape, src_mesh, options.src.spec)
    dst = Layout(options.shape, dst_mesh, options.dst.spec)
    devices = {*src_mesh.device_ids, *dst_mesh.device_ids}
    if options.devices_per_host is not None:
        return src, dst, {device: device // options.devices_per_host for device in devices}
    if len(devices) < src_mesh.size + dst_mesh.size:
        raise PlanError(
            "rows of both meshes are hosts only if no device is in both meshes; got common "
            "devices; pass --devices-per-host N, so that host i has devices i N to (i + 1) N - 1"
        )
    return src, dst, rows_as_hosts(src_mesh, dst_mesh)


def _links(options: argparse.Namespace) -> Links | None:
    if options.gbit is None:
        if options.device_gbyte is not None or options.latency_us is not None:
            raise PlanError(
                "--device-gbyte and --latency-us need --gbit, the rate of a host; got no --gbit"
            )
        return None
    return Links(
        options.gbit * 1e9 / 8,
        math.inf if options.device_gbyte is None else options.device_gbyte * 1e9,
        0.0 if options.latency_us is None else options.latency_us * 1e-6,
    )


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="python -m crossmesh",
        description="Plan how sharded tensors get from one device mesh to another, and explain who "
        "sends what to whom and when. Nothing is sent, and no device is needed.",
        epilog=f"{_EXAMPLES}\n{_LAYOUTS}",
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"crossmesh {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser(
        "plan",
        help="plan a transfer and explain it",
        description="Plan a transfer, and explain who sends what to whom and when.",
        epilog=f"{_EXAMPLES}\n{_LAYOUTS}",
        formatter_class=raw,
    )
    _add_transfer(command)
    _add_rates(command)
    command.add_argument(
        "--strategy",
        choices=get_args(TaskStrategy),
        default="broadcast",
        metavar="NAME",
        help=f"{', '.join(get_args(TaskStrategy))} (default: broadcast)",
    )
    command.add_argument(
        "--order",
        choices=get_args(Order),
        default="ensemble",
        metavar="NAME",
        help=f"{', '.join(get_args(Order))} (default: ensemble)",
    )
    command.add_argument(
        "--no-split",
        dest="split",
        action="store_false",
        help="let one host send the whole of each task, even if several hosts hold it",
    )
    _add_output(command)
    command.set_defaults(run=_plan)

    command = commands.add_parser(
        "show", help="explain a plan", description="Explain a plan that plan --json has written."
    )
    command.add_argument("plan", metavar="FILE", help="a file with the output of plan --json")
    _add_rates(command)
    _add_output(command)
    command.set_defaults(run=_show)

    command = commands.add_parser(
        "compare",
        help="compare strategies and orders",
        description="Plan a transfer with every strategy and every order, one choice changed at a "
        "time, and compare the times with the lower bound, which no plan can beat.",
        epilog=_LAYOUTS,
        formatter_class=raw,
    )
    _add_transfer(command)
    _add_rates(command)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_compare)

    command = commands.add_parser(
        "cases",
        help="the nine cases of the paper's Table 2",
        description="Times of the nine cases of Table 2 (Zhuang et al., MLSys 2023) with the "
        "paper's strategies and orders, in units of the time in which a host sends the tensor "
        "once.",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_cases)

    command = commands.add_parser(
        "gaps",
        help="how far plans of random transfers are from the lower bound",
        description="How far the plans of random transfers are above their lower bounds, by class "
        "of transfers. Meshes have up to 4 hosts with up to 4 devices each.",
    )
    command.add_argument(
        "--pairs",
        type=positive,
        default=1000,
        metavar="N",
        help="number of transfers of each class (default: 1000)",
    )
    command.add_argument(
        "--first",
        type=natural,
        default=0,
        metavar="N",
        help="number of the first transfer; another number gives other transfers (default: 0)",
    )
    command.set_defaults(run=_gaps)
    return parser


def _add_transfer(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--src", type=placed, required=True, metavar="LAYOUT", help='such as "S0R on 2x2"'
    )
    command.add_argument(
        "--dst", type=placed, required=True, metavar="LAYOUT", help='such as "RS0 on 1x2 at 4,5"'
    )
    command.add_argument(
        "--shape",
        type=sizes,
        required=True,
        metavar="AxB",
        help="shape of the tensor; () for a scalar",
    )
    command.add_argument(
        "--dtype", required=True, metavar="NAME", help="type of its elements, such as bfloat16"
    )
    command.add_argument(
        "--devices-per-host",
        type=positive,
        metavar="N",
        help="number of devices of a host: host i has devices i N to (i + 1) N - 1 (default: each "
        "row of a mesh is a host)",
    )


def _add_rates(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--gbit",
        type=number,
        metavar="RATE",
        help="rate of a host's network interface in each direction, in Gbit/s; without it, times "
        "are in units of t, in which a host sends the tensor once",
    )
    command.add_argument(
        "--device-gbyte",
        type=number,
        metavar="RATE",
        help="rate of a device inside its host, in GB/s (default: traffic inside hosts takes no "
        "time, as in the paper)",
    )
    command.add_argument(
        "--latency-us",
        type=number,
        metavar="TIME",
        help="latency from host to host, in microseconds (default: none, as in the paper)",
    )


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--picture",
        metavar="FILE",
        help="draw into a .png or .svg file which ports are busy when, and who sends to whom",
    )
    command.add_argument(
        "--json", action="store_true", help="print the plan as JSON instead of explaining it"
    )
