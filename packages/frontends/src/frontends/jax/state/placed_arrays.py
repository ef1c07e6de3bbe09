"""Lets orbax handle arrays that lie on some devices only, as those of a pipeline's stages do.

Orbax expects that every process has a part of every array. If a stage runs on one process, this
process has all of the stage's arrays and the others have nothing of them; each process writes what
it has. The result is an ordinary checkpoint, which orbax reads anywhere.

Tested with orbax-checkpoint 0.12.8. No other module imports orbax, because that takes a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import type_handlers

from frontends.base.present import present


class Placed:
    """An array as orbax must see it: only the parts that this process has.

    It is not a `jax.Array`, because orbax refuses one that lies on a single process.
    """

    def __init__(self, array: jax.Array) -> None:
        self._array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


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
        local = [i for i, arg in enumerate(args) if arg.sharding.addressable_devices]
        chosen = [infos[i] for i in local], [args[i] for i in local]
        read = dict(zip(local, await super().deserialize(*chosen), strict=True)) if local else {}
        return [
            read[i]
            if i in read
            else jax.make_array_from_single_device_arrays(
                arg.global_shape, arg.sharding, [], dtype=arg.dtype
            )
            for i, arg in enumerate(args)
        ]


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
    manager.save(number, args=ocp.args.PyTreeSave(jax.tree.map(Placed, tree)), force=True)


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
