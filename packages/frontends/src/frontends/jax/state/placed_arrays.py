"""Lets orbax handle arrays that lie on some devices only, as those of a pipeline's stages do.

Orbax expects that every process has a part of every array. If a stage runs on one process, this
process has all of the stage's arrays and the others have nothing of them; each process writes what
it has. The result is an ordinary checkpoint, which orbax reads anywhere.

Tested with orbax-checkpoint 0.12.8. No other module imports orbax, because that takes a second.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from orbax.checkpoint import type_handlers
from orbax.checkpoint._src.serialization import tensorstore_utils

from frontends.base.present import present
from frontends.jax.base.stacked_array import Shard, StackedArray, StackedSharding


class Placed:
    """An array as orbax must see it: only the parts that this process has.

    It is not a `jax.Array`, because orbax refuses one that lies on a single process.
    """

    def __init__(self, array: jax.Array) -> None:
        self._array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


class PlacedStack(Placed):
    """A stacked array as orbax must see it: as parts that all have the same shape.

    The pieces may be sharded in different ways. Their shards are cut into the largest blocks of
    which all of them consist.
    """

    def __init__(self, array: StackedArray) -> None:
        super().__init__(array)
        sharding = array.sharding
        shape = sharding.cut.shape(array.shape)
        shards = [piece.shard_shape(shape) for piece in sharding.pieces]
        self._block = tuple(math.gcd(*sizes) for sizes in zip(*shards, strict=True))
        self.sharding = PlacedStack.Blocks()

    class Blocks:
        """What orbax asks of a sharding when it writes: kind of memory, and number of replicas."""

        memory_kind = None

        def devices_indices_map(self, shape: tuple[int, ...]) -> dict[int, tuple[slice, ...]]:
            """One replica, as only one of each part is written."""
            return {0: tuple(slice(0, n) for n in shape)}

    @property
    def addressable_shards(self) -> list[Shard]:
        """The blocks that this process has."""
        blocks = []
        for shard in self._array.addressable_shards:
            starts = [
                range(0, n, block) for n, block in zip(shard.data.shape, self._block, strict=True)
            ]
            begins = [s.indices(n)[0] for s, n in zip(shard.index, self._array.shape, strict=True)]
            for start in itertools.product(*starts):
                spans = list(zip(start, self._block, strict=True))
                index = tuple(
                    slice(begin + at, begin + at + n)
                    for begin, (at, n) in zip(begins, spans, strict=True)
                )
                data = shard.data[tuple(slice(at, at + n) for at, n in spans)]
                blocks.append(Shard(shard.device, index, shard.replica_id, data))
        return blocks


def placed(array: jax.Array) -> Placed:
    """An array as orbax must see it."""
    return PlacedStack(array) if isinstance(array, StackedArray) else Placed(array)


class PlacedArrays(type_handlers.ArrayHandler):  # type: ignore[misc]
    """Writes and reads the parts of arrays that this process has."""

    def __init__(self) -> None:
        # No single process has a part of all arrays, so each one describes those that it writes.
        super().__init__(
            primary_host=None, use_replica_parallel=False, enable_write_sharding_file=False
        )

    async def serialize(
        self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Begin to write what this process has."""
        args = [ocp.SaveArgs()] * len(values) if args is None else args
        local = [
            item for item in zip(values, infos, args, strict=True) if item[0].addressable_shards
        ]
        if not local:
            return []
        written: Sequence[Any] = await super().serialize(*map(list, zip(*local, strict=True)))
        return written

    async def deserialize(
        self, infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> list[jax.Array]:
        """Read the arrays that lie on this process; the others become handles without data."""
        args = present(args, "arrays are read into shardings that the caller gives")
        stacked = [i for i, arg in enumerate(args) if isinstance(arg.sharding, StackedSharding)]
        local = [
            i for i, arg in enumerate(args) if i not in stacked and arg.sharding.addressable_devices
        ]
        chosen = [infos[i] for i in local], [args[i] for i in local]
        read = dict(zip(local, await super().deserialize(*chosen), strict=True)) if local else {}
        pieces = await asyncio.gather(*(_read_pieces(infos[i], args[i]) for i in stacked))
        read.update(zip(stacked, pieces, strict=True))
        return [
            read[i]
            if i in read
            else jax.make_array_from_single_device_arrays(
                arg.global_shape, arg.sharding, [], dtype=arg.dtype
            )
            for i, arg in enumerate(args)
        ]


async def _read_pieces(info: Any, arg: Any) -> StackedArray:
    """Read the parts of an array that the devices of this process have of its pieces."""
    await info.await_path_creation()
    spec = tensorstore_utils.build_array_read_spec(
        info, use_ocdbt=info.is_ocdbt_checkpoint, target_dtype=arg.dtype
    )
    stored = await tensorstore.open(spec.json, open=True, context=info.ts_context)
    cut, shape = arg.sharding.cut, tuple(arg.global_shape)

    async def piece(number: int, sharding: Any) -> jax.Array:
        size = cut.shape(shape)
        own = stored[cut.slices(number, shape)].translate_to[(0,) * len(shape)]
        indices = sharding.addressable_devices_indices_map(size)
        parts = {str(index): index for index in indices.values()}
        read = await asyncio.gather(*(own[index].read() for index in parts.values()))
        numbers = dict(zip(parts, read, strict=True))
        return jax.make_array_from_single_device_arrays(
            size,
            sharding,
            [
                jax.device_put(np.asarray(numbers[str(index)], arg.dtype), device)
                for device, index in indices.items()
            ],
            dtype=arg.dtype,
        )

    pieces = enumerate(arg.sharding.pieces)
    return StackedArray(cut.axis, await asyncio.gather(*(piece(*each) for each in pieces)))


def open_checkpoints(folder: Path, keep: int | None, run: str) -> Any:
    """Orbax's manager of the checkpoints in a folder.

    Args:
        folder: An absolute path.
        keep: How many are kept when one is added; None to read only.
        run: A name for this call, the same in all processes and of no other call.
    """
    processes = ocp.options.MultiprocessingOptions(
        # If they are named, they wait for each other by the coordination service. Otherwise they
        # use a collective for which every process needs equally many devices.
        active_processes=set(range(jax.process_count())),
        barrier_sync_key_prefix=run,
    )
    handler = PlacedArrays()
    return ocp.CheckpointManager(
        folder,
        item_handlers=ocp.PyTreeCheckpointHandler(
            type_handler_registry=type_handlers.create_type_handler_registry(
                (Placed, handler), (jax.Array, handler)
            ),
            multiprocessing_options=processes,
        ),
        options=ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=False,
            enable_async_checkpointing=False,
            cleanup_tmp_directories=keep is not None,
            multiprocessing_options=processes,
        ),
    )


def write(manager: Any, number: int, tree: Any) -> None:
    """Add a checkpoint, as a whole or not at all."""
    manager.save(number, args=ocp.args.PyTreeSave(jax.tree.map(placed, tree)), force=True)


def read(manager: Any, number: int, like: Any) -> Any:
    """A checkpoint's arrays, each in the sharding of `like`."""
    args = ocp.checkpoint_utils.construct_restore_args(like)
    return manager.restore(number, args=ocp.args.PyTreeRestore(like, restore_args=args))


def describe(manager: Any, number: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each array in a checkpoint, by name."""
    leaves = jax.tree.leaves(manager.item_metadata(number).tree)
    return {leaf.name: (tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves}


def names_of(tree: Any) -> list[str]:
    """The names that orbax gives to the leaves of a tree."""
    names: list[str] = jax.tree.leaves(ocp.tree.get_param_names(tree, include_empty_nodes=False))
    return names
