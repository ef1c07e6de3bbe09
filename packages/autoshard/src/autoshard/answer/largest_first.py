"""Rhino's memory rule: force the largest parameters to be sharded, as few of them as will do.

Memory is no constraint of the search then: it is solved without a limit, and what does not fit is
solved again with more parameters that may not be replicated. It is not optimal as a limit on live
bytes is, but every solve is as easy as one without memory.

Reference:
    Rhino 4.4. There, parameters only; here what the optimizer keeps of them is sorted with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardspec import Spec

from autoshard.answer.sharding import Sharding
from autoshard.errors import InfeasibleError
from autoshard.graph.graph import Graph
from autoshard.space.baseline import STATE
from autoshard.space.strategy import stored_specs

Stored = dict[str, tuple[Spec, ...]]


def fewest_sharded(
    solve: Callable[[Stored], Sharding],
    graph: Graph,
    mesh_shape: tuple[int, ...],
    memory_bytes: int,
    *,
    uneven: bool = False,
) -> Sharding:
    """The sharding with the fewest largest parameters forced to be sharded that fits.

    Takes about `2 log2(k)` solves: k is doubled until it does, then halved between, as if the peak
    never rose with k.

    Args:
        solve: The best sharding without a limit, whose inputs are stored in one of these specs.
        graph: Its parameters and optimizer states are meant.
        mesh_shape: Of the mesh.
        memory_bytes: What a device may hold.
        uneven: Whether stored specs may be padded.

    Raises:
        InfeasibleError: not even all sharded fit.
    """
    inputs = [graph.value(name) for name in graph.inputs]
    forced: list[tuple[str, tuple[Spec, ...]]] = []
    for value in sorted(inputs, key=lambda value: -value.n_bytes):
        sharded = tuple(s for s in stored_specs(value.shape, mesh_shape, uneven) if s.axes)
        if value.role in STATE and sharded:
            forced.append((value.name, sharded))

    def solved(k: int) -> Sharding:
        return solve(dict(forced[:k]))

    too_few, k = -1, 0
    found = solved(k)
    bound = found.lower_bound_s  # nothing is forced: it holds whatever is
    while found.peak_bytes > memory_bytes:
        if k == len(forced):
            raise InfeasibleError(
                f"no sharding fits in memory_bytes={memory_bytes} by the rule of the largest "
                f"parameters; with all {k} of them sharded the peak is {found.peak_bytes} bytes a "
                "device; raise memory_bytes, use more devices, or leave memory_rule at 'limit'",
                found.peak_bytes,
                is_proved=False,
            )
        too_few, k = k, min(max(2 * k, 1), len(forced))
        found = solved(k)
    while k - too_few > 1:
        middle = (too_few + k) // 2
        if (fewer := solved(middle)).peak_bytes <= memory_bytes:
            k, found = middle, fewer
        else:
            too_few = middle
    return replace(found, lower_bound_s=min(bound, found.objective_s))
