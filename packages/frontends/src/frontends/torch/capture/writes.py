"""Writes in place while a graph is read: which value a memory holds since it was written.

A program has no writes. Each write becomes a call that returns a new value, and later reads of the
same memory read this value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from frontends.errors import UnsupportedStepError
from frontends.torch.base.compat.values import place_of
from frontends.torch.capture.flat_builder import FlatBuilder, Name

aten = torch.ops.aten

_WRITES = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.normal_.default: aten.normal_functional.default,
    aten.pow_.Scalar: aten.pow.Tensor_Scalar,  # `pow.Scalar` is a number to the power of a tensor
    aten.pow_.Tensor: aten.pow.Tensor_Tensor,
    aten.float_power_.Scalar: aten.float_power.Tensor_Scalar,
    aten.float_power_.Tensor: aten.float_power.Tensor_Tensor,
    aten.ldexp_.default: aten.ldexp.Tensor,
    aten.floor_divide_.Tensor: aten.floor_divide.default,
}
"""The operator that returns a new tensor, where its name does not follow from that of the write."""


class AliasedError(UnsupportedStepError):
    """A write and a read use different views of one memory, in an order that matters."""

    def __init__(self, node: Node) -> None:
        super().__init__(
            "a tensor that a step writes in place must share its memory with no others; "
            f"{node.target} writes, or reads, part of one that is written: use the operator that "
            "returns a new tensor"
        )


class Writes:
    """The values of memory that was written.

    Args:
        build: The program that is built.
    """

    def __init__(self, build: FlatBuilder) -> None:
        self._build = build
        self._seen: dict[Node, int] = {}
        self._written: dict[int, tuple[int, Any, Name]] = {}
        """By memory: how many nodes were read when it was written last, the part, and its value."""

    def begin(self, node: Node) -> None:
        """Begin to read the next node of the graph."""
        self._seen[node] = len(self._seen)

    def record(self, node: Node, value: Name) -> None:
        """Record that the memory of a node's tensor is written, and holds a new value."""
        memory, where = place_of(node.meta["val"])
        self._written[memory] = len(self._seen), where, value

    def value_of(self, node: Node) -> Name | None:
        """Return the value of a node whose memory was written; None if its own value is valid.

        Raises:
            AliasedError: Another part of its memory was written since.
        """
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not self._written:
            return None
        memory, where = place_of(value)
        if memory not in self._written:
            return None
        when, part, name = self._written[memory]
        if part == where:
            return name
        is_typed = self._build.kinds[name].dtype == value.dtype
        if is_typed and _row(part) is not None and _row(part) == _row(where):
            return self._build.reshaped(name, tuple(value.shape))
        if self._seen[node] < when:
            raise AliasedError(node)
        return None


def without_write(
    node: Node, written: Node, target: torch._ops.OpOverload
) -> torch._ops.OpOverload:
    """Return the operator that returns a new tensor instead of writing to its first operand.

    Args:
        node: The call.
        written: Its first operand.
        target: Its operator.

    Raises:
        AliasedError: There is no such operator, or it would return another type.
    """
    value = written.meta["val"]
    others = [a.meta["val"] for a in node.all_input_nodes if a is not written]
    tensors = [v for v in others if isinstance(v, torch.Tensor) and v.dim()]
    pure = pure_form(target)
    is_copy = target is aten.copy_.default
    if pure is None or (not is_copy and any(v.dtype != value.dtype for v in tensors)):
        raise AliasedError(node)
    return pure


def pure_form(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the operator with the same arguments that returns a new tensor, if there is one."""
    if target in _WRITES or target is aten.polygamma_.default:  # `polygamma` has another order
        return _WRITES.get(target)
    name, overload = target._schema.name.rpartition("::")[2], target._overloadname
    if not name.endswith("_") or target.namespace != "aten":
        return None
    packet = getattr(aten, name[:-1], None)
    found: torch._ops.OpOverload | None = getattr(packet, overload, None)
    return found


def _row(place: Any) -> tuple[int, int] | None:
    """Return offset and length of a part that is contiguous in memory; None if it is not."""
    step = 1
    for size, stride in zip(reversed(place[1]), reversed(place[2]), strict=True):
        if size != 1 and stride != step:
            return None
        step *= size
    return place[0], step
