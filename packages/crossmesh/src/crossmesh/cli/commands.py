"""The command line: plan a transfer and explain it, compare strategies and orders.

Nothing is sent, and no device is needed. What can go wrong on purpose ends as one line and exit
code 1, wrong usage as exit code 2.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

from shardspec import Layout, ShardspecError
from shardspec.amounts import columns

from crossmesh import __version__
from crossmesh.base import phrases
from crossmesh.base.links import Links
from crossmesh.base.task import TaskStrategy
from crossmesh.cli.arguments import natural, number, placed, positive, sizes
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
layouts: a letter for each dim of the tensor, R (whole) or S with the axes of the mesh that cut it,
from 0, the first one major: S0R, RS01. Then +P0 for partial sums along axis 0, or +Pmax0, +Pmin0.
Then 'on' and the mesh, and if needed 'at' and its devices, row by row: "S0R on 2x2 at 4-7". Unless
said, the source is on devices from 0 on, and the destination on those after it.

hosts: each row of a mesh, along its last axis, is a host, as in the paper (2x4: two hosts with four
devices each), unless --devices-per-host says otherwise."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        if getattr(options, "picture", None) is not None:
            check_picture(options.picture)
        text: str = options.run(options)
        # A name that the terminal cannot show is no reason for a traceback.
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
        return 0
    except BrokenPipeError:  # who read this has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return 0
    except UnicodeDecodeError as error:
        return _fail(f"a plan is JSON text; got {error}")
    except (CrossmeshError, ShardspecError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted")
        return 130


def _fail(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 1


def _plan(options: argparse.Namespace) -> str:
    src, dst, hosts = _transfer(options)
    made = plan(
        src,
        dst,
        options.dtype,
        hosts,
        _links(options),
        strategy=options.strategy,
        order=options.order,
        split=options.split,
    )
    return _shown(made, options)


def _show(options: argparse.Namespace) -> str:
    made = TransferPlan.from_json(Path(options.plan).read_text(encoding="utf-8"))
    return _shown(made, options)


def _shown(made: TransferPlan, options: argparse.Namespace) -> str:
    links = _links(options)
    if options.picture is not None:
        picture(made, options.picture, links)
    return made.to_json() if options.json else explain(made, links)


def _compare(options: argparse.Namespace) -> str:
    src, dst, hosts = _transfer(options)
    plans = compare(src, dst, options.dtype, hosts, _links(options))
    if not options.json:
        return compare_text(plans)
    rows: list[dict[str, Any]] = []
    for way, made in plans.items():
        timeline, _, in_t = timed(made, None)
        rows.append(
            {
                **way._asdict(),
                "n_tasks": len(made.tasks),
                "sent_bytes": sum(n_bytes for _, n_bytes in made.sent_bytes),
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
                    "lower_bound_t": next(iter(found.values())).lower_bound_s,
                    "time_t": {name: timeline.time_s for name, timeline in found.items()},
                }
                for case, found in results
            ]
        )
    rows = [["case", "source", "destination", "bound", *PAPER]]
    for case, found in results:
        rows.append(
            [
                str(case.number),
                *(
                    f"{layout.spec} on {phrases.lengths(layout.mesh.shape)}"
                    for layout in (case.src, case.dst)
                ),
                f"{next(iter(found.values())).lower_bound_s:.2f}",
                *(f"{timeline.time_s:.2f}" for timeline in found.values()),
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
            "rows of both meshes are hosts only if no device is in both; got common devices, give "
            "--devices-per-host N: host i has the devices from i N on"
        )
    return src, dst, rows_as_hosts(src_mesh, dst_mesh)


def _links(options: argparse.Namespace) -> Links | None:
    if options.gbit is None:
        if options.device_gbyte is not None or options.latency_us is not None:
            raise PlanError("rates of devices and latencies go with --gbit, the rate of a host")
        return None
    return Links(
        options.gbit * 1e9 / 8,
        math.inf if options.device_gbyte is None else options.device_gbyte * 1e9,
        0.0 if options.latency_us is None else options.latency_us * 1e-6,
    )


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="python -m crossmesh",
        description="Plan how sharded tensors get from one device mesh to another, and say who "
        "sends what to whom and when. Nothing is sent, and no device is needed.",
        epilog=f"{_EXAMPLES}\n{_LAYOUTS}",
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"crossmesh {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser(
        "plan",
        help="plan a transfer and explain it",
        description="Plan a transfer, and say who sends what to whom and when.",
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
        help="let one host send each task, even if several hold it",
    )
    _add_output(command)
    command.set_defaults(run=_plan)

    command = commands.add_parser(
        "show", help="explain a plan", description="Explain a plan that plan --json has written."
    )
    command.add_argument("plan", metavar="FILE", help="what plan --json printed")
    _add_rates(command)
    _add_output(command)
    command.set_defaults(run=_show)

    command = commands.add_parser(
        "compare",
        help="compare strategies and orders",
        description="Plan a transfer by every strategy and every order, one thing changed at a "
        "time, and compare their times with what no plan can beat.",
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
        description="Times of the nine cases of Table 2 (Zhuang et al., MLSys 2023) by the paper's "
        "strategies and orders, in units of the time in which a host sends the tensor once.",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_cases)

    command = commands.add_parser(
        "gaps",
        help="how far plans of random transfers are from the lower bound",
        description="How much longer than any plan must take the plans of random transfers take, "
        "by class of transfers, between meshes of up to 4 hosts with up to 4 devices each.",
    )
    command.add_argument(
        "--pairs", type=positive, default=1000, metavar="N", help="of each class (default: 1000)"
    )
    command.add_argument(
        "--first",
        type=natural,
        default=0,
        metavar="N",
        help="number of the first: others from others on (default: 0)",
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
        "--shape", type=sizes, required=True, metavar="AxB", help="of the tensor; () is a scalar's"
    )
    command.add_argument(
        "--dtype", required=True, metavar="NAME", help="of its elements, such as bfloat16"
    )
    command.add_argument(
        "--devices-per-host",
        type=positive,
        metavar="N",
        help="host i has the devices from i N on (default: a row of a mesh is a host)",
    )


def _add_rates(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--gbit",
        type=number,
        metavar="RATE",
        help="of a host's network interface each way, in Gbit/s; without it, times are in units of "
        "t, in which a host sends the tensor once",
    )
    command.add_argument(
        "--device-gbyte",
        type=number,
        metavar="RATE",
        help="of a device inside its host, in GB/s (default: takes no time, as in the paper)",
    )
    command.add_argument(
        "--latency-us",
        type=number,
        metavar="TIME",
        help="from host to host, in microseconds (default: none, as in the paper)",
    )


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--picture", metavar="FILE", help="a .png or .svg: who is busy when, and who sends to whom"
    )
    command.add_argument("--json", action="store_true", help="print the plan as JSON, only")
