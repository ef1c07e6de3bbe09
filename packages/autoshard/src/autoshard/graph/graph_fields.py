"""The program that is sharded, as plain values: tensors, operators, and the phases they run in."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from autoshard.base.names import quote
from autoshard.base.record import LEFT_OUT_IF_DEFAULT
from autoshard.errors import GraphError
from autoshard.graph.rule import Rule

Role = Literal["intermediate", "parameter", "optimizer_state", "batch", "activation", "other"]


@lru_cache(maxsize=256)
def itemsize(dtype: str) -> int:
    """Bytes of one element, read from the name, so that `bfloat16` needs no extension module."""
    if dtype == "bool":
        return 1
    bits = re.match(r"[a-z]+(\d+)", dtype)
    if bits is None:
        raise GraphError(f"a dtype's name has its size in bits, as 'float32' does; got {dtype!r}")
    return math.ceil(int(bits[1]) / 8)


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the program."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """The name that numpy uses: `float32`, `bfloat16`, `int32`, `bool`."""
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
class Accesses:
    """What an operator reads, writes and launches as a part of the kernels that an engine makes.

    An engine that fuses operators keeps what one hands to the next on the chip, and computes a
    result anew in each kernel that reads it if this is less work than writing it.
    """

    times: tuple[float, ...]
    """How often each operand is read from memory, then how often each result is written: 0.0 for
    what stays on the chip."""
    launches: float = 1.0
    """Kernels that are launched for the operator: 0.0 if it is a part of another's kernel, or a
    view of its operand."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator, run once in each repeat of its phase."""

    name: str
    kind: str
    """The operation, such as `dot_general` or `add`: for people and for structural hashes."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rule: Rule
    flops: float = 0.0
    """Floating-point operations of the whole, unsharded operator."""
    phase: int = 0
    accesses: Accesses | None = field(default=None, metadata={LEFT_OUT_IF_DEFAULT: True})
    """Its part in the engine's kernels; `None` for a kernel of its own, which reads each operand
    and writes each result once."""


@dataclass(frozen=True, slots=True)
class Output:
    """A value that leaves the program, and the layout that it must have.

    With neither `alias` nor `whole`, any layout without partial sums is allowed.
    """

    value: str
    alias: str | None = None
    """The input that the value is stored back into: it has that input's layout and memory."""
    whole: bool = False
    """Whether every device must hold the whole value."""


@dataclass(frozen=True)
class GraphFields:
    """The fields of a `Graph`, and look-ups in them; `Graph` adds what is derived from them."""

    phases: tuple[Phase, ...]
    values: tuple[Value, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]

    @cached_property
    def by_name(self) -> dict[str, Value]:
        """Each value by its name."""
        return {value.name: value for value in self.values}

    @cached_property
    def producers(self) -> dict[str, tuple[int, int]]:
        """For each operator's result: (index of the operator, position among its outputs)."""
        return {
            name: (index, position)
            for index, operator in enumerate(self.operators)
            for position, name in enumerate(operator.outputs)
        }

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """For each value: the indices of the operators that read it, in order, each once."""
        read: dict[str, list[int]] = {value.name: [] for value in self.values}
        for index, operator in enumerate(self.operators):
            for name in dict.fromkeys(operator.inputs):
                read[name].append(index)
        return {name: tuple(indices) for name, indices in read.items()}

    @cached_property
    def constants(self) -> frozenset[str]:
        """The values that depend on no input: every device can compute the part that it needs."""
        constants: set[str] = set()
        for operator in self.operators:
            if constants.issuperset(operator.inputs):
                constants.update(operator.outputs)
        return frozenset(constants)

    def value(self, name: str) -> Value:
        """The value called `name`; `GraphError` if there is none."""
        try:
            return self.by_name[name]
        except KeyError:
            raise GraphError(f"the graph has no value called {name!r}") from None

    @cached_property
    def unread(self) -> frozenset[str]:
        """The values that no operator reads and that do not leave the program."""
        left = {output.value for output in self.outputs}
        return frozenset(
            name for name in self.by_name if not self.readers.get(name) and name not in left
        )

    def phase_of_output(self, output: Output) -> int:
        """The phase that converts an output: its producer's phase; the last one for an input."""
        if output.value in self.producers:
            return self.operators[self.producers[output.value][0]].phase
        return len(self.phases) - 1
