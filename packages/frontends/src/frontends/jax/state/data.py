"""Batches out of examples, of which each process reads only those that its devices need.

A process of one stage of a pipeline needs no labels if the loss is in another, and of what it needs
only the rows of its own devices. The rest of a batch is memory that nobody touches, and that the
system therefore never provides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax
import numpy as np

from frontends.errors import BatchError
from frontends.jax.base.arguments import Argument
from frontends.jax.run.runtime import Runtime
from frontends.jax.trace.trace import Trace
from frontends.program.instructions import Load


class Examples(Protocol):
    """What a sequence, a `torch` dataset of the map style, or a `grain` data source is."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Rows = Mapping[int, np.ndarray[Any, Any]]
"""By number of a leaf of the step's arguments, which of a batch's examples are needed of it."""


def rows_of_process(runtime: Runtime, trace: Trace) -> Rows:
    """The rows of each leaf of the batch that this process's devices read in a step.

    What is computed on the whole batch before the first microbatch, is so in every process.
    """
    batch = {a.name: i for i, a in enumerate(trace.arguments) if a.is_batch}
    needed = {i: np.zeros(trace.arguments[i].shape[:1], bool) for i in batch.values()}
    for early in trace.early:
        for name in early.reads:
            if name in batch:
                needed[batch[name]][...] = True
    for item in runtime.program.instructions:
        if isinstance(item, Load) and runtime.submeshes.is_local(item.stage):
            part = runtime.submeshes.abstract(item.stage, item.slot)
            if part.shape:
                first = (item.microbatch or 0) * part.shape[0]
                rows = needed[batch[item.slot.value]][first : first + part.shape[0]]
                for index in part.sharding.addressable_devices_indices_map(part.shape).values():
                    rows[index[0]] = True
    return {i: np.flatnonzero(rows) for i, rows in needed.items()}


class Feed:
    """The batches of a step, one after the other.

    Args:
        examples: Each is a tree like the batch, without its leading dim.
        leaves: The leaves of the batch, and their numbers among the step's arguments.
        tree: Structure of the batch.
        rows: What this process needs; None for all.
        start: Number of the first batch.
        seed: Of the order, another in each epoch; None for the order that the examples have.

    Raises:
        BatchError: The leaves are of different length, or there are fewer examples than a batch
            takes.
    """

    def __init__(
        self,
        examples: Examples,
        leaves: Mapping[int, Argument],
        tree: Any,
        rows: Rows | None,
        start: int,
        seed: int | None,
    ) -> None:
        sizes = {leaf.shape[:1] for leaf in leaves.values()}
        if len(sizes) != 1 or sizes == {()}:
            described = ", ".join(f"{leaf.name} of shape {leaf.shape}" for leaf in leaves.values())
            raise BatchError(
                "batches are made of examples if all leaves of the batch have one row for each; "
                f"got {described}: make batches yourself, whole in every process"
            )
        ((self._n_rows,),) = sizes
        self._n_batches = len(examples) // self._n_rows
        if not self._n_batches:
            raise BatchError(
                "an epoch has one batch at least; got "
                f"{len(examples)} examples for batches of {self._n_rows}"
            )
        self._examples, self._leaves, self._tree = examples, leaves, tree
        every = np.arange(self._n_rows)
        self._rows = {i: every if rows is None else rows[i] for i in leaves}
        self._start, self._seed = start, seed

    def __iter__(self) -> Iterator[Any]:
        """Batches without end; the next one is read in a thread while a step runs."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed") as thread:
            ahead = thread.submit(self.batch, self._start)
            for number in itertools.count(self._start + 1):
                batch = ahead.result()
                ahead = thread.submit(self.batch, number)
                yield batch

    def batch(self, number: int) -> Any:
        """A batch: numpy arrays of full shape, with the rows that this process needs.

        Raises:
            BatchError: An example has another structure, shape or type than those of the batch.
        """
        epoch, place = divmod(number, self._n_batches)
        numbers = self._order(epoch)[place * self._n_rows : (place + 1) * self._n_rows]
        whole = {i: np.zeros(leaf.shape, leaf.dtype) for i, leaf in self._leaves.items()}
        for row in np.unique(np.concatenate(list(self._rows.values()))):
            example = self._examples[int(numbers[row])]
            values, tree = jax.tree.flatten(example)
            if tree != self._tree:
                raise BatchError(
                    "an example has the structure of the batch that the step was planned for; "
                    f"got {tree} instead of {self._tree}"
                )
            for (i, into), value in zip(whole.items(), values, strict=True):
                if row in self._rows[i]:
                    self._copy(self._leaves[i], np.asarray(value), into, row)
        return jax.tree.unflatten(self._tree, list(whole.values()))

    def _order(self, epoch: int) -> Sequence[int] | np.ndarray[Any, Any]:
        if self._seed is None:
            return range(len(self._examples))
        return np.random.default_rng((self._seed, epoch)).permutation(len(self._examples))

    def _copy(self, leaf: Argument, value: np.ndarray[Any, Any], into: Any, row: int) -> None:
        if value.shape != leaf.shape[1:] or not np.can_cast(value.dtype, leaf.dtype, "same_kind"):
            raise BatchError(
                "an example has the shapes and types of a row of the batch; got "
                f"{leaf.name} of {value.dtype}{list(value.shape)} instead of "
                f"{leaf.dtype}{list(leaf.shape[1:])}"
            )
        into[row] = value
