"""The program that is sharded, as values: tensors, operators, and the phase each one runs in."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from autoshard.base.names import quote
from autoshard.errors import GraphError
from autoshard.graph.rule import Rule

Role = Literal["intermediate", "parameter", "optimizer_state", "batch", "activation", "other"]


@lru_cache(maxsize=256)
def itemsize(dtype: str) -> int:
    """Bytes of one element, from the name alone: `bfloat16` needs no extension module."""
    if dtype == "bool":
        return 1
    bits = re.match(r"[a-z]+(\d+)", dtype)
    if bits is None:
        raise GraphError(f"a dtype name tells its size in bits, as 'float32' does; got {dtype!r}")
    return math.ceil(int(bits[1]) / 8)


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the program."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """numpy's name: `float32`, `bfloat16`, `int32`, `bool`."""
    role: Role = "intermediate"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return itemsize(self.dtype)

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.itemsize

    def __str__(self) -> str:
        text = f"{quote(self.name)}: {self.dtype}[{','.join(map(str, self.shape))}]"
        return text if self.role == "intermediate" else f"{text} {self.role}"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the step whose operators all run equally often, such as forward or apply."""

    name: str
    repeats: int = 1
    """Runs per step: the number of microbatches for forward and backward, 1 for apply."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator, run once in each repeat of its phase."""

    name: str
    kind: str
    """What it is, for people and for structural hashes: `dot_general`, `add`."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rule: Rule
    flops: float = 0.0
    """Floating-point operations of the whole operator on one device."""
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """A value that leaves the program, and what is asked of its layout.

    With neither `alias` nor `whole` any layout without partial sums will do.
    """

    value: str
    alias: str | None = None
    """The input it is stored back into: it takes the same layout (and the same memory)."""
    whole: bool = False
    """Every device must hold all of it."""


@dataclass(frozen=True)
class GraphFields:
    """The fields of a `Graph`, which adds what is found out about them."""

    phases: tuple[Phase, ...]
    values: tuple[Value, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]

    @cached_property
    def by_name(self) -> dict[str, Value]:
        """The values by their names."""
        return {value.name: value for value in self.values}

    @cached_property
    def producers(self) -> dict[str, tuple[int, int]]:
        """For each value that an operator makes: (index of the operator, which of its outputs)."""
        return {
            name: (index, position)
            for index, operator in enumerate(self.operators)
            for position, name in enumerate(operator.outputs)
        }

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """For each value the operators that read it, by index, in order."""
        read: dict[str, list[int]] = {value.name: [] for value in self.values}
        for index, operator in enumerate(self.operators):
            for name in dict.fromkeys(operator.inputs):
                read[name].append(index)
        return {name: tuple(indices) for name, indices in read.items()}

    @cached_property
    def constants(self) -> frozenset[str]:
        """The values that depend on no input: every device can make them as it needs them."""
        found: set[str] = set()
        for operator in self.operators:
            if found.issuperset(operator.inputs):
                found.update(operator.outputs)
        return frozenset(found)

    def value(self, name: str) -> Value:
        """The value called `name`; `GraphError` if there is none."""
        try:
            return self.by_name[name]
        except KeyError:
            raise GraphError(f"the graph has no value called {name!r}") from None

    def phase_of_output(self, output: Output) -> int:
        """The phase that converts an output: its producer's, or for an input the last."""
        if output.value in self.producers:
            return self.operators[self.producers[output.value][0]].phase
        return len(self.phases) - 1
