"""Rhino's memory rule: forces as few of the largest parameters as possible to be sharded.

Memory is then not a constraint of the search. The problem is solved without a limit; if the result
does not fit, it is solved again with more parameters that may not be replicated. Unlike a limit on
live bytes this is not optimal, but every solve is as easy as one without memory.

Reference:
    Rhino 4.4, which sorts parameters only; here the optimizer's states are sorted with them.
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
    """The sharding that fits with the fewest of the largest parameters forced to be sharded.

    Takes about `2 log2(k)` solves for k parameters: k is doubled until the result fits, then found
    by bisection, which assumes that the peak never rises with k.

    Args:
        solve: Returns the best sharding without a limit whose inputs are stored in these specs.
        graph: The program; its parameters and optimizer states are forced.
        mesh_shape: The lengths of the mesh's axes.
        memory_bytes: What a device may hold.
        uneven: Whether stored specs may be padded.

    Raises:
        InfeasibleError: even with all of them sharded, the result does not fit.
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
    sharding = solved(k)
    bound = sharding.lower_bound_s  # nothing is forced yet, so it holds for all k
    while sharding.peak_bytes > memory_bytes:
        if k == len(forced):
            raise InfeasibleError(
                f"no sharding fits in memory_bytes={memory_bytes} by the rule of the largest "
                f"parameters; with all {k} of them sharded the peak is {sharding.peak_bytes} bytes "
                "a device; raise memory_bytes, use more devices, or leave memory_rule at 'limit'",
                sharding.peak_bytes,
                is_proved=False,
            )
        too_few, k = k, min(max(2 * k, 1), len(forced))
        sharding = solved(k)
    while k - too_few > 1:
        middle = (too_few + k) // 2
        if (fewer := solved(middle)).peak_bytes <= memory_bytes:
            k, sharding = middle, fewer
        else:
            too_few = middle
    return replace(sharding, lower_bound_s=min(bound, sharding.objective_s))
