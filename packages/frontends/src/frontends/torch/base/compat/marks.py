"""Metadata that records where a traced node comes from, written when the tracer creates it.

Private interfaces of torch 2.13 in use: the mode in which `make_fx` runs a function
(`fx.experimental.proxy_tensor`), whose tracer creates the nodes, and the stack of active modes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from frontends.base.present import present
from frontends.torch.base.draws import plain_draw

PHASE = "meshwright_phase"
"""Key of a node's metadata: `BEFORE`, `DURING` or `AFTER`, relative to autograd."""

DRAW = "meshwright_draw"
"""Key of a node's metadata: a value that is equal for draws of the same random numbers."""

ORIGIN = "meshwright_origin"
"""Key of a node's metadata: the code that called the operator, an `Origin` or None."""

ASKED = "meshwright_asked"
"""Key of a node's metadata, if Python has read the number that the node produces: the index of the
number, and whether it is known before the step runs."""

BEFORE, DURING, AFTER = range(3)
"""The node is from before the last gradient is complete, from autograd itself, or from later."""


def tracers_module() -> Any:
    """Return the module in which the active tracer keeps constants."""
    tracer: Any = present(get_proxy_mode(), "constants are kept while a step is traced").tracer
    return tracer.root


@contextlib.contextmanager
def autograd_runs() -> Iterator[list[tuple[int, int]]]:
    """Record, for each run of autograd, how many nodes there are before and after it."""
    marks: list[tuple[int, int]] = []

    def marked(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            proxies = get_proxy_mode()
            if proxies is None:
                return original(*args, **kwargs)
            first = len(proxies.tracer.graph.nodes)
            result = original(*args, **kwargs)
            marks.append((first, len(proxies.tracer.graph.nodes)))
            return result

        return call

    with (
        mock.patch("torch.autograd.backward", marked(torch.autograd.backward)),
        mock.patch("torch.autograd.grad", marked(torch.autograd.grad)),
    ):
        yield marks


def mark_phases(module: GraphModule, marks: Sequence[tuple[int, int]], *, is_forward: bool) -> None:
    """Mark nodes as made before, by or after autograd.

    Args:
        module: The traced module; its nodes have no `PHASE` yet.
        marks: The record of `autograd_runs`.
        is_forward: Whether all nodes count as made before autograd if it does not run.
    """
    otherwise = len(module.graph.nodes) if is_forward else 0
    last = max((end for _, end in marks), default=otherwise)
    for index, node in enumerate(module.graph.nodes):
        is_during = any(first <= index < end for first, end in marks)
        node.meta[PHASE] = DURING if is_during else BEFORE if index < last else AFTER


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Marks each random draw with the state of the generator, and advances the generator.

    Activation checkpointing sets the state back and draws the same numbers again: such draws have
    equal marks.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        proxies = get_proxy_mode()
        if proxies is None or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        plain = plain_draw(func, args, kwargs or {})
        if plain is not None:
            with self:
                return plain()
        with _disable_current_modes():
            state = hash(torch.get_rng_state().numpy().tobytes())
            torch.rand(())
        result = func(*args, **(kwargs or {}))
        node = next(iter(reversed(proxies.tracer.graph.nodes)))
        node.meta[DRAW] = state
        return result


class Marked(Interpreter):
    """Runs a module while it is traced again; copies each node's marks to the nodes it becomes."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self._now: dict[str, Any] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        with marked(lambda: self._now):
            return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        """Run a node."""
        self._now = {key: n.meta[key] for key in (PHASE, DRAW, ORIGIN, ASKED) if key in n.meta}
        return super().run_node(n)


@contextlib.contextmanager
def marked(marks: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Add metadata to each node that is created inside the `with`: what `marks` returns then."""
    tracer = present(get_proxy_mode(), "nodes are made while something is traced").tracer
    create = tracer.create_node

    def with_marks(*args: Any, **kwargs: Any) -> Node:
        node: Node = create(*args, **kwargs)
        node.meta.update(marks())
        return node

    with mock.patch.object(tracer, "create_node", with_marks):
        yield
