"""Batches of a JAX step, of which each process reads only what its devices need.

A process needs no labels if the loss is in another process's stage, and of other leaves it needs
only the rows of its devices. The rest of a batch is memory that is never touched, so the operating
system never provides it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from frontends.jax.run.runtime import Runtime
from frontends.jax.trace.trace import Trace
from frontends.program.instructions import Load
from frontends.run.feed import Arrays

Rows = Mapping[int, np.ndarray[Any, Any]]
"""By number of a leaf of the step's arguments: the indices of the examples that are read of it."""

_PARTIAL: weakref.WeakValueDictionary[int, np.ndarray[Any, Any]] = weakref.WeakValueDictionary()
"""The arrays of batches of which a process has read its rows only, by `id`."""


def _zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    array = np.zeros(shape, dtype)
    _PARTIAL[id(array)] = array
    return array


def is_partial(leaf: Any) -> bool:
    """Whether a leaf is an array of a batch of which a process has read its rows only."""
    return _PARTIAL.get(id(leaf)) is leaf


ARRAYS = Arrays(
    _zeros,
    np.asarray,
    functools.partial(np.can_cast, casting="same_kind"),
    jax.tree.flatten,
    jax.tree.unflatten,
)


def rows_of_process(runtime: Runtime, trace: Trace) -> Rows:
    """The rows of each leaf of the batch that this process's devices read in a step.

    What is computed on the whole batch before the first microbatch is computed in every process,
    which needs all rows for it.
    """
    batch = {a.name: i for i, a in enumerate(trace.arguments) if a.is_batch}
    needed = {i: np.zeros(trace.arguments[i].shape[:1], bool) for i in batch.values()}
    every = {i: np.arange(len(needed[i])) for i in batch.values()}
    every |= {batch[name]: np.asarray(rows) for name, rows in trace.rows.items()}
    for early in trace.early:
        for name in early.reads:
            if name in batch:
                needed[batch[name]][...] = True
    for item in runtime.program.instructions:
        if isinstance(item, Load) and runtime.submeshes.is_local(item.stage):
            part = runtime.submeshes.abstract(item.stage, item.slot)
            if part.shape:
                first = (item.microbatch or 0) * part.shape[0]
                leaf = batch[item.slot.value]
                rows = every[leaf][first : first + part.shape[0]]
                for index in part.sharding.addressable_devices_indices_map(part.shape).values():
                    needed[leaf][rows[index[0]]] = True
    return {i: np.flatnonzero(rows) for i, rows in needed.items()}
