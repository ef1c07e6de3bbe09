"""Save state, and go on from it on the same devices, on others, or by another plan, with orbax.

A checkpoint knows nothing of plans: it holds the arrays of a tree, and each process writes and
reads only the parts that it has.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from frontends.errors import CheckpointError
from frontends.jax.base import _compat
from frontends.jax.base.arguments import numbers_of
from frontends.run.checkpoints import check_keep, check_next, number_to_read

_calls = itertools.count()
"""Counts saves and restores. The count is equal in all processes, as all do them in one order."""


def save(folder: str | os.PathLike[str], number: int, state: Any, *, keep: int = 3) -> None:
    """Add a checkpoint to a folder, and wait until it is written.

    All processes must call it, with the same folder on a disk that they share. A save that is
    interrupted leaves earlier checkpoints as they were.

    Args:
        folder: Made if it does not exist.
        number: The number of the step; larger than those of earlier checkpoints.
        state: A tree of arrays, as a parallel step returns them.
        keep: How many checkpoints stay in the folder; the oldest are deleted.

    Raises:
        CheckpointError: The folder has a checkpoint of this number or a larger one, or two leaves
            have the same name, or orbax is not installed.
    """
    check_keep(keep)
    Path(folder).mkdir(parents=True, exist_ok=True)
    with _opened(folder, keep) as (orbax, manager):
        check_next(folder, number, manager.latest_step())
        arrays = jax.tree.map(_to_array, state)
        _check_names(orbax.names_of(arrays))
        orbax.write(manager, number, arrays)


def restore(folder: str | os.PathLike[str], like: Any, number: int | None = None) -> Any:
    """Read a checkpoint, each array straight into its sharding.

    Args:
        folder: The folder that was passed to `save`.
        like: The same tree, of arrays or of `jax.ShapeDtypeStruct` with shardings, such as the
            `abstract_state` of a parallel step. Plan and devices may differ from those with which
            the checkpoint was saved.
        number: The number of the step; by default, the last one.

    Raises:
        CheckpointError: There is no such checkpoint, or it holds other state than `like`, or orbax
            is not installed.
    """
    with _opened(folder) as (orbax, manager):
        number = number_to_read(folder, number, sorted(manager.all_steps()))
        wanted_tree = jax.tree.map(_to_shape, like)
        _check(orbax, orbax.describe(manager, number), wanted_tree, f"{folder}, step {number}")
        read = orbax.read(manager, number, wanted_tree)
    return jax.tree.map(_from_array, read, like, is_leaf=lambda leaf: leaf is None)


def latest(folder: str | os.PathLike[str]) -> int | None:
    """The number of the last checkpoint in a folder; None if there is no checkpoint or folder."""
    if not Path(folder).is_dir():
        return None
    with _opened(folder) as (_, manager):
        number: int | None = manager.latest_step()
        return number


@contextmanager
def _opened(
    folder: str | os.PathLike[str], keep: int | None = None
) -> Iterator[tuple[ModuleType, Any]]:
    try:
        from frontends.jax.state import placed_arrays
    except ImportError as error:
        raise CheckpointError(
            "checkpoints are written and read by orbax, which is not installed: pip install "
            "'meshwright-frontends[checkpoint]'"
        ) from error
    path = Path(folder).absolute()
    if keep is None and not path.is_dir():
        raise CheckpointError(f"there is no folder {folder}: save makes it")
    run = f"meshwright{next(_calls)}"
    with placed_arrays.open_checkpoints(path, keep, run) as manager:
        yield placed_arrays, manager


def _to_array(leaf: Any) -> jax.Array | None:
    """A leaf as orbax can write it: keys as their numbers, and None for an array of size zero."""
    if isinstance(leaf, jax.Array):
        array = _compat.key_data(leaf) if _compat.holds_keys(leaf) else leaf
    else:  # equal in all processes: the first one writes it
        whole = np.asarray(leaf, numbers_of(leaf).dtype)
        sharding = SingleDeviceSharding(jax.devices()[0])
        array = jax.make_array_from_callback(
            whole.shape, sharding, lambda index: whole[index], dtype=whole.dtype
        )
    return array if array.size else None


def _to_shape(leaf: Any) -> jax.ShapeDtypeStruct | None:
    numbers = numbers_of(leaf)
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    if not numbers.size:
        return None
    return jax.ShapeDtypeStruct(numbers.shape, numbers.dtype, sharding=sharding)


def _from_array(array: jax.Array | None, like: Any) -> Any:
    if like is None:
        return None
    if array is None:
        numbers, sharding = numbers_of(like), getattr(like, "sharding", None)
        array = jnp.zeros(numbers.shape, numbers.dtype, device=sharding)
    return _compat.wrap_keys(array, like.dtype) if _compat.holds_keys(like) else array


def _check_names(names: list[str]) -> None:
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise CheckpointError(
            "the leaves of a state need different names in a checkpoint, which are their keys with "
            f"points between; got two of {', '.join(twice)}: name them otherwise in the state"
        )


def _check(
    orbax: ModuleType, saved: dict[str, tuple[tuple[int, ...], str]], like: Any, where: str
) -> None:
    leaves = jax.tree.leaves(like)
    names = orbax.names_of(like)
    wanted = {n: (leaf.shape, str(leaf.dtype)) for n, leaf in zip(names, leaves, strict=True)}
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            has, needs = (
                "nothing" if form is None else f"{form[1]}{list(form[0])}"
                for form in (saved.get(name), wanted.get(name))
            )
            raise CheckpointError(
                "a checkpoint is restored into a tree of the same names, shapes and types; the one "
                f"in {where} has {has} at {name}, where {needs} is wanted"
            )
