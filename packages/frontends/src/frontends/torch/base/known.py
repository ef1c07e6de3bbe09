"""Numbers of tensors that Python reads during a step and that are known before the step runs.

An optimizer reads its count of steps, a wrapper how many models it has averaged, a layer the
lengths in its batch. Such numbers follow, with little work, from what each call passes in: the
batch, tensors from elsewhere, and the optimizer's counts. While a step is traced, they are computed
when Python asks for one. At each call they are computed again before the step runs, and then
treated as numbers of Python, like those in `param_groups` (`host`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from frontends.torch.base.calls import name_of

Tensor = torch.Tensor
aten = torch.ops.aten

ITEM = aten._local_scalar_dense.default

_WORK = frozenset(
    ("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "convolution", "embedding")
) | frozenset(("convolution_backward", "_scaled_dot_product_flash_attention_for_cpu"))
"""Operators that are work for devices: what depends on their results is not known beforehand."""

Unknown: Any = type("Unknown", (), {})()


class Known:
    """Runs those nodes of a growing graph that depend only on tensors with known values.

    Args:
        graph: The tracer's graph; new nodes are run when a number is asked for.
        given: By a placeholder's index, the tensor, if it is available before the step runs.
        root: The module in which the tracer keeps tensors.
    """

    def __init__(self, graph: Graph, given: Mapping[int, Tensor], root: torch.nn.Module) -> None:
        self._graph, self._given, self._root = graph, given, root
        self._values: dict[Node, Any] = {}
        self._lost: set[int] = set()
        """Keys of memory into which something unknown was written."""

        self._items: dict[Any, Node] = {}
        self._last: Node | None = None
        self._n_given = 0

    def item(self, symbol: Any) -> tuple[Node, Any] | None:
        """Return the node that reads a number from a tensor, and the number or `Unknown`.

        Args:
            symbol: Stands for the number; None is returned if it is not a tensor's.
        """
        self._go_on()
        node = self._items.get(symbol)
        return None if node is None else (node, self._value(node))

    def _go_on(self) -> None:
        nodes = list(self._graph.nodes)
        first = 0 if self._last is None else nodes.index(self._last) + 1
        for node in nodes[first:]:
            self._last = node
            if node.target is ITEM:
                for symbol in symbols_of(node):
                    self._items.setdefault(symbol, node)
            with torch.no_grad():
                self._values[node] = self._run(node)

    def _run(self, node: Node) -> Any:
        if node.op == "placeholder":
            tensor = self._given.get(self._n_given, Unknown)
            self._n_given += 1
            return tensor.detach().clone() if isinstance(tensor, Tensor) else Unknown
        if node.op == "get_attr":
            kept = getattr(self._root, str(node.target))
            is_there = isinstance(kept, Tensor) and not kept.is_meta
            return kept.detach().clone() if is_there else Unknown
        if node.op != "call_function":
            return Unknown
        values = [self._value(needed) for needed in node.all_input_nodes]
        if any(value is Unknown for value in values) or not _is_light(node):
            if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
                self._lost.update(_memories(values))
            return Unknown
        arguments = map_arg(node.args, self._value), map_arg(node.kwargs, self._value)
        return node.target(*arguments[0], **arguments[1])  # type: ignore[operator]

    def _value(self, node: Node) -> Any:
        value = self._values[node]
        return Unknown if self._lost.intersection(_memories([value])) else value


def symbols_of(node: Node) -> set[Any]:
    """Return the symbols of a number read from a tensor; none if it is a constant of the step."""
    number = getattr(node.meta.get("val"), "node", None)
    return set() if number is None else set(number.expr.free_symbols)


def _is_light(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    return name_of(node.target) not in _WORK


def _memories(values: Sequence[Any]) -> set[int]:
    return {
        leaf.untyped_storage()._cdata
        for value in values
        for leaf in (value if isinstance(value, list | tuple) else [value])
        if isinstance(leaf, Tensor)
    }
