"""Save state, and go on from it: on the same devices, on others, or by another plan. Orbax does it.

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
from frontends.run.checkpoints import check_next, number_to_read

_calls = itertools.count()
"""Of this process: equal in all, as all save and restore in the same order."""


def save(folder: str | os.PathLike[str], number: int, state: Any, *, keep: int = 3) -> None:
    """Add a checkpoint to a folder, and wait until it is written.

    All processes call it, with the same folder on a disk that they share. A save that is cut off
    leaves those before it as they were.

    Args:
        folder: Is made if it is not there.
        number: Of the step; larger than those before.
        state: A tree of arrays, as a parallel step returns them.
        keep: How many checkpoints stay in the folder; the oldest go.

    Raises:
        CheckpointError: There is one of this number or a larger, or two leaves have one name, or
            orbax is not installed.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with _opened(folder, keep) as (orbax, manager):
        check_next(folder, number, manager.latest_step())
        arrays = jax.tree.map(_to_array, state)
        _check_names(orbax.names_of(arrays))
        orbax.write(manager, number, arrays)


def restore(folder: str | os.PathLike[str], like: Any, number: int | None = None) -> Any:
    """Read a checkpoint, each array straight into its sharding.

    Args:
        folder: Where `save` put it.
        like: The same tree, of arrays or of `jax.ShapeDtypeStruct` with shardings. The
            `abstract_state` of a parallel step is one; its plan and devices may be others than
            those that the checkpoint was made with.
        number: Of the step; the last one by default.

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
    """The number of the last checkpoint in a folder; None if it has none, or is not there."""
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
    """A leaf as orbax can write it: keys as their numbers, and nothing for what is empty."""
    if isinstance(leaf, jax.Array):
        array = _compat.key_data(leaf) if _is_key(leaf) else leaf
    else:  # equal in all processes: the first one writes it
        whole = np.asarray(leaf, numbers_of(leaf).dtype)
        where = SingleDeviceSharding(jax.devices()[0])
        array = jax.make_array_from_callback(
            whole.shape, where, lambda index: whole[index], dtype=whole.dtype
        )
    return array if array.size else None


def _to_shape(leaf: Any) -> jax.ShapeDtypeStruct | None:
    numbers = numbers_of(leaf)
    where = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    if not numbers.size:
        return None
    return jax.ShapeDtypeStruct(numbers.shape, numbers.dtype, sharding=where)


def _from_array(array: jax.Array | None, like: Any) -> Any:
    if like is None:
        return None
    if array is None:
        numbers, where = numbers_of(like), getattr(like, "sharding", None)
        array = jnp.zeros(numbers.shape, numbers.dtype, device=where)
    return _compat.wrap_keys(array, like.dtype) if _is_key(like) else array


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _check_names(names: list[str]) -> None:
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise CheckpointError(
            "the leaves of a state have different names in a checkpoint, which are their keys with "
            f"points between; got two of {', '.join(twice)}: name them otherwise in the state"
        )


def _check(
    orbax: ModuleType, found: dict[str, tuple[tuple[int, ...], str]], like: Any, where: str
) -> None:
    leaves = jax.tree.leaves(like)
    names = orbax.names_of(like)
    wanted = {n: (leaf.shape, str(leaf.dtype)) for n, leaf in zip(names, leaves, strict=True)}
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            has, needs = (
                "nothing" if form is None else f"{form[1]}{list(form[0])}"
                for form in (found.get(name), wanted.get(name))
            )
            raise CheckpointError(
                "a checkpoint is restored into a tree of the same names, shapes and types; that of "
                f"{where} has {has} at {name}, where {needs} is wanted"
            )
