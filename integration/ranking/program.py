"""The program of one process of a parallel step: matrix products and collectives, in order.

All processes of a mesh run the same program on their shards, so there is one program for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Kind = Literal["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]
KINDS: tuple[Kind, ...] = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
ITEMSIZE_BYTES = 4  # everything is float32


@dataclass(frozen=True, slots=True)
class Matmul:
    """`batch` products of an `m x k` with a `k x n` matrix: the shards of one process."""

    m: int
    n: int
    k: int
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective in every group of processes along `axes` of the mesh."""

    kind: Kind
    n_bytes: int
    """The bytes of one process, as `costmodel` counts them: the input of a reduce-scatter, the
    output of other collectives."""
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """A pass over memory: half of `n_bytes` is read, and half is written."""

    n_bytes: int


Operation: TypeAlias = Matmul | Collective | Copy
Program: TypeAlias = tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A program, and the mesh that it runs on: all processes of the lab, row-major."""

    name: str
    mesh: tuple[int, ...]
    program: Program

    def members(self, operation: Collective) -> int:
        """The number of processes in each group of a collective of this task."""
        return math.prod(self.mesh[axis] for axis in operation.axes)


def dump(tasks: Iterable[Task]) -> list[dict[str, Any]]:
    """Tasks in a form that JSON can hold."""
    return [asdict(task) for task in tasks]


def load(data: Iterable[dict[str, Any]]) -> list[Task]:
    """The inverse of `dump`, also after JSON has turned tuples into lists."""
    return [
        Task(task["name"], tuple(task["mesh"]), tuple(map(_operation, task["program"])))
        for task in data
    ]


def _operation(data: dict[str, Any]) -> Operation:
    match data:
        case {"kind": kind, "axes": axes}:
            return Collective(kind, data["n_bytes"], tuple(axes))
        case {"m": _}:
            return Matmul(**data)
        case _:
            return Copy(**data)
