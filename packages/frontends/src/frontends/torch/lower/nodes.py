"""What a program on local shards is made of: calls, and collectives over axes of a mesh."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import shardspec

from frontends.torch.base.calls import Call
from frontends.torch.base.flat import TensorType
from frontends.torch.lower.local import Function


@dataclass(frozen=True, slots=True)
class Compute:
    """A call on local shards."""

    call: Function
    operands: tuple[int, ...]
    """Registers that it reads."""

    results: tuple[int, ...]
    """Registers that it writes."""

    axes: tuple[int, ...]
    """Axes of the mesh along which devices compute something different."""

    plain: Call | None
    """The aten call that each device makes; None if more than a call is needed."""

    name: str
    """The operator's name; for a slice, that of the value."""

    key: Hashable
    """Equal for calls that compute the same from equal operands at equal coordinates."""

    last: tuple[int, ...] = ()
    """Registers that are not read after this node."""


@dataclass(frozen=True, slots=True)
class Communicate:
    """A collective of a conversion."""

    phase: int
    step: shardspec.Step
    operands: tuple[int, ...]
    results: tuple[int, ...]
    last: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Begin:
    """Begins a bucket: collectives that are sent together."""

    parts: tuple[Communicate, ...]
    """Collectives of one kind, over the same axes, of one type; see
    `frontends.torch.lower.bucketing`."""

    operands: tuple[int, ...]
    """One for each part."""

    results: tuple[int, ...]
    """One register, for the handle to wait for."""

    last: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """Waits for the bucket of a `Begin`."""

    parts: tuple[Communicate, ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    """One for each part."""

    last: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Region:
    """Calls that are compiled together."""

    nodes: tuple[Compute, ...]
    operands: tuple[int, ...]
    """Registers that the calls read and do not write."""

    results: tuple[int, ...]
    """Registers that they write and later nodes read."""

    same: tuple[tuple[int, int], ...]
    """Further registers for later nodes, each with the operand whose memory was overwritten."""

    last: tuple[int, ...] = ()


Node = Compute | Communicate | Begin | Finish | Region


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """The program that every device of a stage runs for a chunk."""

    nodes: tuple[Node, ...]
    reads: tuple[int, ...]
    """The registers that hold the chunk's reads when it begins."""

    totals: tuple[int, ...]
    """The registers that are added to the chunk's totals when it ends."""

    writes: tuple[int, ...]
    """The registers that hold the chunk's writes when it ends."""

    n_registers: int
    kinds: tuple[TensorType, ...]
    """Shape and type of a device's shard, for each register that holds a value."""


def collectives_of(programs: Iterable[LocalProgram]) -> list[shardspec.Step]:
    """Return the collectives of some programs."""
    return [
        node.step for program in programs for node in program.nodes if isinstance(node, Communicate)
    ]


def with_last(program: LocalProgram, nodes: Sequence[Node], n_registers: int) -> LocalProgram:
    """Return the program with other nodes, each with the registers that are not read after it."""
    seen = {*program.totals, *program.writes}
    backwards: list[Node] = []
    for node in reversed(nodes):
        last = {*node.operands, *node.results} - seen
        seen |= last
        backwards.append(replace(node, last=tuple(sorted(last))))
    return replace(program, nodes=tuple(reversed(backwards)), n_registers=n_registers)
