"""Make batches of examples, in an order that a resumed run can continue."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from frontends.errors import BatchError


class Examples(Protocol):
    """A source of examples: a sequence, a map-style dataset of `torch`, or a `grain` source."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class BatchLeaf(Protocol):
    """A leaf of a batch."""

    @property
    def name(self) -> str:
        """The name as the user would write it: `batch['x']`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole batch; examples are in the leading dim."""

    @property
    def dtype(self) -> Any:
        """The type, as the framework's object."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """The functions of a framework that making batches takes."""

    zeros: Callable[..., Any]
    """Returns an array of zeros of a shape and `dtype`."""

    asarray: Callable[[Any], Any]
    """Returns a leaf of a user's example as an array."""

    can_cast: Callable[[Any, Any], bool]
    """Whether an array of the first type may be written into one of the second."""

    flatten: Callable[[Any], tuple[Sequence[Any], Any]]
    """Returns the leaves of a tree, and its structure."""

    fill: Callable[[Any, Sequence[Any]], Any]
    """Returns a tree of the given structure with the given leaves."""


class Feed:
    """The batches of a step, one after the other.

    Args:
        examples: Each example is a tree like the batch, without the leading dim.
        leaves: The leaves of the batch.
        tree: Structure of the batch.
        arrays: Functions of the framework.
        rows: For each leaf, the rows that this process needs; None for all.
        start: Number of the first batch.
        seed: Seed of a random order, which is another one in each epoch; None to keep the order of
            the examples.

    Raises:
        BatchError: Leaves have different lengths, or there are fewer examples than in a batch.
    """

    def __init__(
        self,
        examples: Examples,
        leaves: Sequence[BatchLeaf],
        tree: Any,
        arrays: Arrays,
        rows: Sequence[np.ndarray[Any, Any]] | None,
        start: int,
        seed: int | None,
    ) -> None:
        sizes = {leaf.shape[:1] for leaf in leaves}
        if len(sizes) != 1 or sizes == {()}:
            described = ", ".join(f"{leaf.name} of shape {leaf.shape}" for leaf in leaves)
            raise BatchError(
                "batches can be made of examples if all leaves of the batch have one row for each "
                f"example; got {described}: make batches yourself, whole in every process"
            )
        ((self._n_rows,),) = sizes
        self._n_batches = len(examples) // self._n_rows
        if not self._n_batches:
            raise BatchError(
                "an epoch has one batch at least; got "
                f"{len(examples)} examples for batches of {self._n_rows}"
            )
        self._examples, self._leaves, self._tree, self._arrays = examples, leaves, tree, arrays
        self._rows = [np.arange(self._n_rows)] * len(leaves) if rows is None else rows
        self._start, self._seed = start, seed

    def __iter__(self) -> Iterator[Any]:
        """Infinitely many batches; a thread reads the next one while a step runs."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed") as thread:
            ahead = thread.submit(self.batch, self._start)
            for number in itertools.count(self._start + 1):
                batch = ahead.result()
                ahead = thread.submit(self.batch, number)
                yield batch

    def batch(self, number: int) -> Any:
        """A batch: arrays of the full shape; only the rows that this process needs are filled.

        Raises:
            BatchError: An example does not have the structure, shapes or types of the batch.
        """
        epoch, place = divmod(number, self._n_batches)
        numbers = self._order(epoch)[place * self._n_rows : (place + 1) * self._n_rows]
        whole = [self._arrays.zeros(leaf.shape, dtype=leaf.dtype) for leaf in self._leaves]
        tree = self._tree
        for row in np.unique(np.concatenate(self._rows)):
            values, tree = self._arrays.flatten(self._examples[int(numbers[row])])
            if tree != self._tree:
                raise BatchError(
                    "an example has the structure of the batch that the step was planned for; "
                    f"got {tree} instead of {self._tree}"
                )
            for leaf, rows, into, value in zip(
                self._leaves, self._rows, whole, values, strict=True
            ):
                if row in rows:
                    self._copy(leaf, value, into, row)
        return self._arrays.fill(tree, whole)

    def _order(self, epoch: int) -> Sequence[int] | np.ndarray[Any, Any]:
        if self._seed is None:
            return range(len(self._examples))
        return np.random.default_rng((self._seed, epoch)).permutation(len(self._examples))

    def _copy(self, leaf: BatchLeaf, item: Any, into: Any, row: int) -> None:
        value = self._arrays.asarray(item)
        if value.shape != leaf.shape[1:] or not self._arrays.can_cast(value.dtype, leaf.dtype):
            raise BatchError(
                "an example has the shapes and types of a row of the batch; got "
                f"{leaf.name} of {value.dtype}{list(value.shape)} instead of "
                f"{leaf.dtype}{list(leaf.shape[1:])}"
            )
        into[row] = value
