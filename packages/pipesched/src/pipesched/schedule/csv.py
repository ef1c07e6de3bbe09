"""Schedules as CSV in the format of PyTorch: a row for each rank, a cell such as `1SEND_F0`.

`_PipelineScheduleRuntime._load_csv` of `torch.distributed.pipelining.schedules` (PyTorch 2.13)
reads this text: as "compute_only" if the schedule has no sends and receives, and else as
"compute_comms". A cell has the stage, the kind and the microbatch of an action. Torch's kinds F, I,
W, B and REDUCE_GRAD are the same as ours. SEND_F, RECV_F, SEND_B and RECV_B move an activation one
stage up, or a gradient one stage down; the stage in the cell is the one that sends or receives.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from pipesched.base.action import Action
from pipesched.base.checks import check_kind
from pipesched.base.edge import Edge, chain
from pipesched.base.kind import Kind
from pipesched.errors import ArgumentError, ParseError
from pipesched.schedule.schedule import Schedule

_COMPUTING = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
_CELL = re.compile(
    r"(\d{1,9})"
    r"(?:([FIWB]|SEND_F|RECV_F|SEND_B|RECV_B)(\d{1,9})|(UNSHARD|RESHARD|REDUCE_GRAD))",
    re.ASCII,
)
_PAIR = re.compile(r"\(([^()]*)\)OVERLAP_F_B", re.ASCII)


def to_torch_csv(schedule: Schedule) -> str:
    r"""The schedule as CSV that torch's runtime loads.

    Torch divides the gradients by the number of microbatches in REDUCE_GRAD. It adds these actions
    to a "compute_only" schedule, but not to a "compute_comms" one: add reductions to that before.

    Raises:
        ArgumentError: The schedule has something that torch's format cannot express:
            recomputations, updates, edges other than the chain's, or several routes.

    Examples:
        >>> from pipesched import make
        >>> to_torch_csv(make("1f1b", 2, 2))
        '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n'
    """
    check_kind("schedule", schedule, Schedule)
    if len(schedule.placement.routes) > 1:
        raise ArgumentError(
            "torch's runtime has each stage on one rank; "
            f"got {schedule.name} with {len(schedule.placement.routes)} routes"
        )
    if set(schedule.edges) != set(chain(schedule.n_stages, backward=schedule.backward)):
        raise ArgumentError(
            "torch's runtime sends activations to the next stage, and gradients to the previous; "
            f"got {schedule.name} with edges={','.join(map(str, schedule.edges))}"
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for rank, actions in enumerate(schedule.ranks):
        for position, action in enumerate(actions):
            if action.kind in (Kind.RECOMPUTE, Kind.UPDATE):
                raise ArgumentError(
                    "torch recomputes within a backward (checkpoint the stage's module), and runs "
                    f"the optimizer after the schedule; got {action} at rank {rank}, "
                    f"position {position}"
                )
        writer.writerow(map(_cell, actions))
    return text.getvalue()


def _cell(action: Action) -> str:
    if action.kind is Kind.REDUCE:
        return f"{action.stage}REDUCE_GRAD"
    kind = str(action.kind)
    if action.edge is not None:
        kind += f"_{action.edge.src[0]}"
    return f"{action.stage}{kind}{action.microbatch}"


def from_torch_csv(
    text: str,
    name: str = "torch",
    *,
    n_stages: int | None = None,
    n_microbatches: int | None = None,
) -> Schedule:
    """Read what `to_torch_csv` or torch's `_dump_csv` writes.

    Empty cells, which are bubbles in torch, are left out. So are UNSHARD and RESHARD, which gather
    and drop the parameters of a stage under FSDP: the code that shards the parameters knows when
    they are needed. A pair `(0F1;5B0)OVERLAP_F_B` is read as 0F1, then 5B0, which is the order in
    which torch runs it.

    Args:
        text: The CSV, with a row for each rank.
        name: Name of the schedule.
        n_stages: Number of stages; if None, one more than the highest stage of an action.
        n_microbatches: Number of microbatches; if None, one more than the highest of an action.

    Raises:
        ParseError: A cell is not an action, or there is no action at all.
        ArgumentError: There is no stage or no microbatch, or the name is empty or has spaces.
    """
    if not isinstance(text, str):
        raise ParseError(f"a schedule's CSV is a text; got {text!r:.60}")
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise ParseError(f"a schedule's CSV is valid CSV; got {text[:60]!r} ({error})") from error
    ranks = tuple(
        tuple(action for cell in row for action in _actions(cell.strip())) for row in rows
    )
    computed = [action for actions in ranks for action in actions if action.kind in _COMPUTING]
    if not computed:
        raise ParseError(f"a schedule's CSV has a row of actions for each rank; got {text[:60]!r}")
    if n_stages is None:
        n_stages = 1 + max(action.stage for action in computed)
    if n_microbatches is None:
        n_microbatches = 1 + max(a.microbatch for a in computed if a.microbatch is not None)
    backward = any(action.kind is not Kind.FORWARD for action in computed)
    return Schedule(name, n_stages, n_microbatches, ranks, backward=backward)


def _actions(cell: str) -> Iterator[Action]:
    if not cell:
        return
    pair = _PAIR.fullmatch(cell)
    for text in pair[1].split(";") if pair else [cell]:
        match = _CELL.fullmatch(text.strip())
        if match is None:
            raise ParseError(
                "a cell reads <stage><F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B><microbatch>, or "
                "<stage><REDUCE_GRAD|UNSHARD|RESHARD>, or (<cell>;<cell>)OVERLAP_F_B; "
                f"got {cell!r}"
            )
        stage = int(match[1])
        if match[4]:
            if match[4] == "REDUCE_GRAD":
                yield Action(Kind.REDUCE, stage)
            continue
        word, _, direction = match[2].partition("_")
        microbatch = int(match[3])
        if not direction:
            yield Action(Kind(word), stage, microbatch)
            continue
        kind = Kind(direction)
        step = 1 if (word == "SEND") == (kind is Kind.FORWARD) else -1
        ends = (stage, stage + step) if word == "SEND" else (stage + step, stage)
        if min(ends) < 0:
            raise ParseError(f"stage 0 receives no activation and sends no gradient; got {cell!r}")
        yield Action(Kind(word), stage, microbatch, Edge((kind, ends[0]), (kind, ends[1])))
