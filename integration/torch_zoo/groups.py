"""The calls that reach the process groups of torch.distributed, recorded below our own code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from frontends import Plan, VerificationError
from frontends.step.step import APPLY
from frontends.torch.lower.bucketing import overlapped
from frontends.torch.lower.nodes import Begin
from frontends.torch.run.runtime import Runtime
from shardspec import Mesh
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Collective = tuple[str, tuple[int, ...], int]
"""Kind, ranks, and bytes that a rank receives."""

Seen = Counter[Collective]

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
"""The kind of each operator of torch's namespace `c10d`. Such an operator hands its arguments to a
process group; its first argument is what a rank receives."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the collectives of this thread that reach process groups, inside a `with` block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = Counter[Collective]()

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


def check_groups(runtime: Runtime, rank: int, results: Mapping[str, int], seen: Seen) -> int:
    """Check that one step called the process groups as the plan says.

    Each call carries a bucket of the plan's collectives and has the sum of their bytes.

    Args:
        runtime: The runtime that ran the step; the devices of its plan are ranks.
        rank: The rank of this process.
        results: Bytes of what the step returns, by name; every rank gets each by a broadcast.
        seen: The calls that were recorded.

    Returns:
        The number of calls.

    Raises:
        VerificationError: The calls and the plan differ in kind, members, bytes or count.
    """
    plan = runtime.plan
    parts, calls = Counter[Collective](), Counter[Collective]()
    for chunk, program in zip(runtime.program.chunks, runtime.engine.programs, strict=True):
        if program is None:  # other ranks run this chunk
            continue
        times = 1 if chunk.phase == APPLY else plan.microbatches
        mesh = plan.stages[chunk.stage].mesh
        for node in overlapped(program).nodes:
            if isinstance(node, Begin):
                sizes = [
                    part.step.dst.local_bytes(program.kinds[part.operands[0]].dtype.itemsize)
                    for part in node.parts
                ]
                kind, axes = node.parts[0].step.kind, node.parts[0].step.mesh_axes
                calls[kind, _members(mesh, axes, rank), sum(sizes)] += times
                for n_bytes in sizes:
                    parts[kind, _members(mesh, axes, rank), n_bytes] += times
    for n_bytes in results.values():
        calls["broadcast", tuple(plan.device_ids), n_bytes] += 1
    _compare("the buckets hold the collectives of the plan", parts, planned(plan, rank), rank)
    _compare("the calls of process groups are those buckets", seen, calls, rank)
    return calls.total()


def planned(plan: Plan, rank: int) -> Counter[Collective]:
    """The collectives of a step that a rank takes part in, as the plan alone says."""
    collectives: Counter[Collective] = Counter()
    for stage in plan.stages:
        for c in stage.collectives if rank in stage.mesh.device_ids else ():
            times = 1 if c.phase == APPLY else plan.microbatches
            collectives[c.kind, _members(stage.mesh, c.axes, rank), c.n_bytes] += times
    return collectives


def _members(mesh: Mesh, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    (ranks,) = (group for group in mesh.groups(tuple(axes)) if rank in group)
    return tuple(sorted(ranks))


def _compare(rule: str, actual: Seen, expected: Seen, rank: int) -> None:
    if actual != expected:
        raise VerificationError(
            f"{rule}; process {rank} has {dict(actual - expected)} too many and lacks "
            f"{dict(expected - actual)}"
        )
