"""`compare`: plans the same transfer with every strategy and every order."""

from collections.abc import Mapping
from typing import NamedTuple, get_args

from shardspec import Layout
from shardspec.amounts import bytes_text, columns

from crossmesh.base.links import Links
from crossmesh.base.task import TaskStrategy
from crossmesh.base.tensor import DType
from crossmesh.report.cases import PaperCase
from crossmesh.report.totals import timed
from crossmesh.search.planner import plan
from crossmesh.transfer.plan import TransferPlan
from crossmesh.transfer.simulate import Timeline
from crossmesh.transfer.solver import Order


class Way(NamedTuple):
    """A strategy, an order, and whether tasks may be split among hosts that hold the same bytes."""

    strategy: TaskStrategy
    order: Order
    split: bool


WAYS = (
    Way("broadcast", "ensemble", True),
    Way("broadcast", "ensemble", False),
    *(Way("broadcast", order, False) for order in get_args(Order) if order != "ensemble"),
    *(
        Way(strategy, "ensemble", False)
        for strategy in get_args(TaskStrategy)
        if strategy not in ("broadcast", "signal")
    ),
)
"""The default of `plan`, then that of the paper, then the paper's with one choice changed at a
time."""

PAPER = {
    "send_recv": Way("send_recv", "load_balance", False),
    "local_allgather": Way("local_allgather", "load_balance", False),
    "global_allgather": Way("global_allgather", "load_balance", False),
    "naive": Way("broadcast", "naive", False),
    "load_balance": Way("broadcast", "load_balance", False),
    "ensemble": Way("broadcast", "ensemble", False),
    "all_at_once": Way("broadcast", "all_at_once", False),
    "split": Way("broadcast", "ensemble", True),
}
"""The ways that figures 6 and 8 of Zhuang et al., MLSys 2023 compare, and two more: all_at_once and
split. "The baselines do load balancing with a greedy approach" (section 5.1.2)."""


def compare(
    src: Layout | Mapping[str, Layout],
    dst: Layout | Mapping[str, Layout],
    dtype: DType | Mapping[str, DType],
    hosts: Mapping[int, int] | None = None,
    links: Links | None = None,
) -> dict[Way, TransferPlan]:
    """Plan the same transfer in each of `WAYS`; the arguments are those of `plan`."""
    return {
        way: plan(
            src, dst, dtype, hosts, links, strategy=way.strategy, order=way.order, split=way.split
        )
        for way in WAYS
    }


def compare_text(plans: Mapping[Way, TransferPlan]) -> str:
    """The plans of `compare` as a table; without rates, times are in `t` (see `explain`)."""
    rows = [["strategy", "order", "split", "tasks", "between hosts", "time", "above bound"]]
    bound = "0 t"
    for way, transfer in plans.items():
        timeline, text, _ = timed(transfer, None)
        bound = text(timeline.lower_bound_s)
        rows.append(
            [
                way.strategy,
                way.order,
                "yes" if way.split else "no",
                str(len(transfer.tasks)),
                bytes_text(sum(n_bytes for _, n_bytes in transfer.sent_bytes)),
                text(timeline.time_s),
                f"{100 * timeline.gap:.1f} %",
            ]
        )
    return "\n".join([f"lower bound {bound}", "", *columns(rows, right=(3, 4, 5, 6))])


def compare_case(case: PaperCase) -> dict[str, Timeline]:
    """The timeline of a case of Table 2 in each way of `PAPER`, in units of `t`."""
    # The paper does not give the element type; in units of t, times are the same for all types.
    return {
        name: timed(
            plan(
                case.src,
                case.dst,
                "float32",
                case.hosts,
                strategy=way.strategy,
                order=way.order,
                split=way.split,
            ),
            None,
        ).timeline
        for name, way in PAPER.items()
    }
