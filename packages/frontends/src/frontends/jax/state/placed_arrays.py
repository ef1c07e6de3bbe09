"""Teach orbax arrays that lie on some devices only, as those of a pipeline's stages do.

Orbax expects that every process has a part of every array. Where a stage runs on one process, that
process has all of its arrays and the others have nothing of them; each writes what it has. What is
written is an ordinary checkpoint, which orbax reads anywhere.

Tried with orbax-checkpoint 0.12.8. It is imported here and nowhere else: that takes a second.
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
    """An array as orbax is to see it: only by the parts that this process has.

    It is no `jax.Array`, of which orbax refuses those that lie on a single process.
    """

    def __init__(self, array: jax.Array) -> None:
        self._array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


class PlacedArrays(type_handlers.ArrayHandler):  # type: ignore[misc]
    """Writes and reads the parts that this process has."""

    def __init__(self) -> None:
        # No process is the one that has a part of all arrays, so each describes those it writes.
        super().__init__(
            primary_host=None, use_replica_parallel=False, enable_write_sharding_file=False
        )

    async def serialize(
        self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Begin to write what this process has."""
        args = [ocp.SaveArgs()] * len(values) if args is None else args
        mine = [
            item for item in zip(values, infos, args, strict=True) if item[0].addressable_shards
        ]
        if not mine:
            return []
        written: Sequence[Any] = await super().serialize(*map(list, zip(*mine, strict=True)))
        return written

    async def deserialize(
        self, infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> list[jax.Array]:
        """Read what belongs on this process; the other arrays are handles without data."""
        args = present(args, "arrays are read into shardings that the caller gives")
        mine = [i for i, arg in enumerate(args) if arg.sharding.addressable_devices]
        chosen = [infos[i] for i in mine], [args[i] for i in mine]
        read = dict(zip(mine, await super().deserialize(*chosen), strict=True)) if mine else {}
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
        keep: How many are kept when one is added; None if they are only read.
        run: A name that all processes have in common, and no other call has.
    """
    processes = ocp.options.MultiprocessingOptions(
        # Named, they wait for each other by the coordination service. Else they do by a collective
        # that wants equally many devices of each.
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
    """Add a checkpoint; it is there as a whole or not at all."""
    manager.save(number, args=ocp.args.PyTreeSave(jax.tree.map(Placed, tree)), force=True)


def read(manager: Any, number: int, like: Any) -> Any:
    """A checkpoint's arrays, each in the sharding of `like`."""
    args = ocp.checkpoint_utils.construct_restore_args(like)
    return manager.restore(number, args=ocp.args.PyTreeRestore(like, restore_args=args))


def describe(manager: Any, number: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of what a checkpoint holds, by name."""
    leaves = jax.tree.leaves(manager.item_metadata(number).tree)
    return {leaf.name: (tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves}


def names_of(tree: Any) -> list[str]:
    """What orbax calls the leaves of a tree."""
    names: list[str] = jax.tree.leaves(ocp.tree.get_param_names(tree, include_empty_nodes=False))
    return names
