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
from frontends.program.program import Program
from frontends.program.register_allocation import Shards


class JaxEngine:
    """Values are arrays of JAX; what it makes is described by `register_allocation.Engine`.

    Args:
        program: What runs.
        submeshes: Where.
        programs: The compiled chunks; None for those of other processes.
        blame: Says of a program that failed what was at fault.
    """

    def __init__(
        self,
        program: Program,
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
        """Places a microbatch's part of an argument."""
        target = self._submeshes.abstract(stage, slot)
        put, where = self._submeshes.put, target.sharding
        if not target.shape:  # a number that belongs to all examples
            return lambda value: put(value, where)
        first = microbatch * target.shape[0]
        part = slice(first, first + target.shape[0])
        return lambda value: put(value[part], where)

    def zeros(self, chunk: int) -> Callable[[], Sequence[jax.Array]]:
        """Makes the totals of a chunk."""
        return compile_zeros(self._chunks[chunk], self._submeshes)

    def program(self, chunk: int) -> Callable[[list[jax.Array]], Sequence[jax.Array]]:
        """Runs a chunk; on several CPU devices, or if it may fail late, waits until it has run."""
        compiled, what = self._programs[chunk], self._chunks[chunk]
        blame, stage = self._blame, what.stage
        devices = self._submeshes.jax_meshes[stage].devices.flat
        place = placer(stage, (*what.totals, *what.writes), self._submeshes)

        waits = (len(devices) > 1 and devices[0].platform == "cpu") or blame.callbacks(what)

        def run(operands: list[jax.Array]) -> Sequence[jax.Array]:
            given = blame.keep(operands)
            try:
                results: Sequence[jax.Array] = compiled(*operands)
                # XLA:CPU aborts if programs with collectives queue up for more threads than it has.
                return place(jax.block_until_ready(results) if waits else results)
            except Exception as error:
                raise blame.failure(what, given, error) from error

        return run

    def sharder(self, stage: int, slot: Stored) -> Callable[[jax.Array], Shards]:
        """Finds the shards of an array."""
        return self._submeshes.shards

    def assembler(self, stage: int, slot: Stored) -> Callable[[Shards], jax.Array]:
        """Makes an array of shards."""
        return functools.partial(self._submeshes.assemble, self._submeshes.abstract(stage, slot))

    def mover(self, transfer: Transfer) -> Callable[[jax.Array], jax.Array] | None:
        """Copies from device to device, where each gets a whole shard of another device."""
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
        from_ = [holders[index][i % len(holders[index])] for i, index in enumerate(wanted.values())]

        def move(array: jax.Array) -> jax.Array:
            shards = {shard.device: shard.data for shard in array.addressable_shards}
            parts = jax.device_put([shards[device] for device in from_], [*wanted])
            return jax.make_array_from_single_device_arrays(target.shape, target.sharding, parts)

        return move


def _indices(abstract: jax.ShapeDtypeStruct) -> dict[Any, tuple[Any, ...]]:
    """By device, from where to where it has each dim."""
    found = abstract.sharding.devices_indices_map(abstract.shape)
    return {
        device: tuple(s.indices(n)[:2] for s, n in zip(index, abstract.shape, strict=True))
        for device, index in found.items()
    }
