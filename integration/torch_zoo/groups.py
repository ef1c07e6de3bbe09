"""What reaches the process groups of torch.distributed, seen below our own code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from frontends import Plan
from frontends.step import APPLY
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Collective = tuple[str, tuple[int, ...], int]
"""Kind, ranks, and bytes of what a rank gets."""

_KINDS = {
    "allreduce_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "broadcast_": "broadcast",
}
"""By operator of torch's namespace `c10d`, which hands its arguments to a process group; the first
of them is what a rank gets."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the collectives of this thread that reach process groups, inside a `with` block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[Collective] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            name = func.overloadpacket.__name__
            group = next(a for a in args if isinstance(a, torch.ScriptObject))
            ranks = torch.distributed.get_process_group_ranks(
                torch.distributed.ProcessGroup.unbox(group)
            )
            n_bytes = sum(t.numel() * t.element_size() for t in pytree.tree_leaves(args[0]))
            self.seen[_KINDS.get(name, name), tuple(sorted(ranks)), n_bytes] += 1
        return func(*args, **(kwargs or {}))


def planned(plan: Plan, rank: int, results: Mapping[str, int]) -> Counter[Collective]:
    """What a rank has to do with others in a step, beside what passes between stages.

    Args:
        plan: Its devices are ranks.
        rank: Of one of them.
        results: Bytes of what the step returns, by name; every rank gets each by a broadcast.
    """
    expected: Counter[Collective] = Counter()
    for stage in plan.stages:
        if rank not in stage.mesh.device_ids:
            continue
        for c in stage.collectives:
            (ranks,) = (group for group in stage.mesh.groups(c.axes) if rank in group)
            times = 1 if c.phase == APPLY else plan.microbatches
            expected[c.kind, tuple(sorted(ranks)), c.n_bytes] += times
    for n_bytes in results.values():
        expected["broadcast", tuple(plan.device_ids), n_bytes] += 1
    return expected
