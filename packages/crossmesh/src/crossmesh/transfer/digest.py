"""The digest of a plan, by which ranks compare the plans that each of them made."""

import hashlib
import json
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from shardspec import Layout

from crossmesh.base.task import Copy, UnitTask
from crossmesh.base.tensor import Tensor
from crossmesh.transfer.solver import Order

_NUMBERED = ("pieces", "terms", "reduction", "receivers", "strategy", "path", "tree")
"""Fields of a task that many tasks have in common."""


class ValueNumbers:
    """Numbers values in the order in which they come; equal values have one number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        """The value of each number."""

        self._by_value: dict[Any, int] = {}
        self._by_id: dict[int, int] = {}  # to hash a long tuple once, not once for each task

    def of(self, value: Any) -> int:
        """The number of a value that lives longer than this object."""
        number = self._by_id.get(id(value))
        if number is None:
            number = self._by_id[id(value)] = self._by_value.setdefault(value, len(self.values))
            if number == len(self.values):
                self.values.append(value)
        return number


def digest_of(
    tensors: Iterable[Tensor],
    hosts: Sequence[tuple[int, int]],
    order: Order,
    copies: Iterable[Copy],
    tasks: Iterable[UnitTask],
) -> str:
    """SHA-256, in hexadecimal, of the fields of a plan that decide what is sent."""
    hashed = hashlib.sha256(json.dumps(_head(tensors, hosts, order)).encode())
    numbered = ValueNumbers()
    for copy in copies:
        hashed.update(array("q", (copy.device, numbered.of(copy.pieces))).tobytes())
    for task in tasks:
        numbers = map(numbered.of, (getattr(task, name) for name in _NUMBERED))
        hashed.update(array("q", (*task.part, task.n_chunks, *numbers)).tobytes())
    for value in numbered.values:
        hashed.update(json.dumps(value).encode())
    return hashed.hexdigest()


def digest_of_version_1(
    tensors: Iterable[Tensor],
    hosts: Sequence[tuple[int, int]],
    order: Order,
    copies: Iterable[Copy],
    tasks: Iterable[UnitTask],
) -> str:
    """The digest that plans had which were written as JSON in version 1."""
    sent = [
        (
            t.pieces,
            t.part,
            t.terms,
            t.reduction,
            t.receivers,
            t.strategy,
            t.path,
            t.n_chunks,
            t.tree,
        )
        for t in tasks
    ]
    content = json.dumps([*_head(tensors, hosts, order), list(copies), sent])
    return hashlib.sha256(content.encode()).hexdigest()


def _head(
    tensors: Iterable[Tensor], hosts: Sequence[tuple[int, int]], order: Order
) -> list[object]:
    of_tensors = [(t.name, t.dtype, _layout_key(t.src), _layout_key(t.dst)) for t in tensors]
    return [of_tensors, hosts, order == "all_at_once"]


def _layout_key(layout: Layout) -> tuple[object, ...]:
    mesh = layout.mesh
    return layout.shape, mesh.shape, tuple(mesh.device_ids), str(layout.spec), layout.rules
