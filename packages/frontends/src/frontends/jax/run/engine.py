"""Execute instructions with JAX: compiled chunks, and arrays on each stage's devices."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
from shardspec import Mesh

from frontends.jax.lower.compile import Submeshes, compile_zeros, placer
from frontends.jax.run.blame import Blame
from frontends.plan.plan_fields import Stored, Transfer
from frontends.program.program import LoweredPlan
from frontends.program.register_allocation import Shards


class JaxEngine:
    """The engine for JAX, whose values are `jax.Array`; see `register_allocation.Engine`.

    Args:
        program: The program of the plan.
        submeshes: The devices of the stages.
        programs: The compiled chunks; None for those of other processes.
        blame: Explains why a chunk failed.
    """

    def __init__(
        self,
        program: LoweredPlan,
        submeshes: Submeshes,
        programs: Sequence[Any],
        blame: Blame,
    ) -> None:
        self._chunks, self._submeshes, self._programs = program.chunks, submeshes, programs
        self._blame = blame

    def processes(self, mesh: Mesh) -> frozenset[int]:
        """The processes that have devices of a mesh."""
        return self._submeshes.processes(mesh)

    def loader(self, stage: int, slot: Stored, microbatch: int) -> Callable[[Any], jax.Array]:
        """A function that shards a microbatch's part of an argument over the stage's devices."""
        target = self._submeshes.abstract(stage, slot)
        put, sharding = self._submeshes.put, target.sharding
        if not target.shape:  # a number that belongs to all examples
            return lambda value: put(value, sharding)
        first = microbatch * target.shape[0]
        part = slice(first, first + target.shape[0])
        return lambda value: put(value[part], sharding)

    def zeros(self, chunk: int) -> Callable[[], Sequence[jax.Array]]:
        """A function that makes the totals of a chunk, which start at zero."""
        return compile_zeros(self._chunks[chunk], self._submeshes)

    def program(self, chunk: int) -> Callable[[list[jax.Array]], Sequence[jax.Array]]:
        """A function that runs a chunk.

        It waits for the results if the chunk runs on several CPU devices or calls the user back.
        """
        compiled, what = self._programs[chunk], self._chunks[chunk]
        blame, stage = self._blame, what.stage
        devices = self._submeshes.jax_meshes[stage].devices.flat
        place = placer(stage, (*what.totals, *what.writes), self._submeshes)

        waits = (len(devices) > 1 and devices[0].platform == "cpu") or blame.callbacks(what)

        def run(operands: list[jax.Array]) -> Sequence[jax.Array]:
            copies = blame.keep(operands)
            try:
                results: Sequence[jax.Array] = compiled(*operands)
                # XLA:CPU aborts if programs with collectives queue up for more threads than it has.
                return place(jax.block_until_ready(results) if waits else results)
            except Exception as error:
                raise blame.failure(what, copies, error) from error

        return run

    def sharder(self, stage: int, slot: Stored) -> Callable[[jax.Array], Shards]:
        """A function from an array to the shards that this process has."""
        return self._submeshes.shards

    def assembler(self, stage: int, slot: Stored) -> Callable[[Shards], jax.Array]:
        """A function from the shards that this process has to the array."""
        return functools.partial(self._submeshes.assemble, self._submeshes.abstract(stage, slot))

    def mover(self, transfer: Transfer) -> Callable[[jax.Array], jax.Array] | None:
        """A function that copies a value from the devices of one stage to those of another.

        None if a target device needs anything but a whole shard of one source device, or has a
        shard of the source itself.
        """
        source, target = (
            self._submeshes.abstract(stage, Stored(transfer.value, spec))
            for stage, spec in (
                (transfer.source, transfer.src_spec),
                (transfer.destination, transfer.dst_spec),
            )
        )
        holders: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
        for device, index in _indices(source).items():
            holders[index].append(device)
        wanted = _indices(target)
        if not holders.keys() >= set(wanted.values()) or not wanted.keys().isdisjoint(
            _indices(source)
        ):
            return None
        senders = [
            holders[index][i % len(holders[index])] for i, index in enumerate(wanted.values())
        ]

        def move(array: jax.Array) -> jax.Array:
            shards = {shard.device: shard.data for shard in array.addressable_shards}
            parts = jax.device_put([shards[device] for device in senders], [*wanted])
            return jax.make_array_from_single_device_arrays(target.shape, target.sharding, parts)

        return move


def _indices(abstract: jax.ShapeDtypeStruct) -> dict[Any, tuple[Any, ...]]:
    """By device, the start and stop of its part in each dim."""
    indices = abstract.sharding.devices_indices_map(abstract.shape)
    return {
        device: tuple(s.indices(n)[:2] for s, n in zip(index, abstract.shape, strict=True))
        for device, index in indices.items()
    }
