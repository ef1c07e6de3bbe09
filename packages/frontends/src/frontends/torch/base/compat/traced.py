"""Traces a function into a graph of operators.

Private interfaces of torch 2.13 in use: `make_fx` (`fx.experimental.proxy_tensor`), its tracer, and
`_subclasses.fake_tensor`. Their module paths are public, but how they treat optimizers, Python's
numbers and random draws is not documented.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from frontends.torch.base.compat.marks import (
    AFTER,
    ASKED,
    ORIGIN,
    PHASE,
    Draws,
    Marked,
    autograd_runs,
    mark_phases,
    marked,
)
from frontends.torch.base.compat.operators import in_plain_operators
from frontends.torch.base.compat.stand_ins import StandIns
from frontends.torch.base.compat.symbols import Numbers
from frontends.torch.base.compat.values import stand_in_of
from frontends.torch.base.known import ITEM, Known, symbols_of
from frontends.torch.base.origins import Origins
from frontends.torch.base.supposed import Answers

Tensor = torch.Tensor


class TracedFunction:
    """The traced graph of a function that may differentiate and write in place.

    The function uses the user's own tensors, but these do not change: each operator that gets one
    of them runs on its stand-in instead, which has shape, type and strides but no memory. So it
    does not matter through which name or list the function reaches them. A tensor that the function
    reaches and that is not among `tensors` becomes a further input. The metadata `PHASE`, `DRAW`
    and `ORIGIN` of a node say where it comes from.

    Args:
        function: From the stand-ins of `tensors`, and symbols for `numbers`, to tensors and
            numbers. The program also returns the final values of the further inputs.
        tensors: All tensors that are known beforehand; their values are not read.
        numbers: Numbers that may differ at each call.
        decompositions: How to write operators in terms of others.
        is_made_here: Whether the function itself has created a tensor, as by `torch.tensor(3)`;
            such a tensor is a constant.
        are_there: For each of `tensors`, whether its values are available before each run.
        answers: Gives answers to conditions on numbers that the program computes.
        is_forward: Whether a function that does not differentiate is forward, and no update.
        n_examples: How many examples the batch has; 1 if they cannot be counted.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Any]],
        tensors: Sequence[Tensor],
        numbers: Sequence[float | int] = (),
        decompositions: Mapping[Any, Callable[..., Any]] | None = None,
        is_made_here: Callable[[Tensor], bool] = lambda tensor: False,
        are_there: Sequence[bool] = (),
        answers: Answers | None = None,
        *,
        is_forward: bool = False,
        n_examples: int = 1,
    ) -> None:
        self.numbers = Numbers(answers or Answers())
        self._mode = FakeTensorMode(shape_env=self.numbers, allow_non_fake_inputs=True)
        with self._mode:
            self._fakes = [stand_in_of(t) for t in tensors]
            self._fakes += [
                torch.empty((), dtype=torch.int64 if isinstance(n, int) else torch.float64)
                for n in numbers
            ]
        state = torch.get_rng_state()
        n_tensors = len(tensors)

        known = zip(tensors, are_there, strict=False)
        available = {i: tensor for i, (tensor, is_there) in enumerate(known) if is_there}
        available |= {n_tensors + i: torch.tensor(number) for i, number in enumerate(numbers)}

        def traced(*values: Tensor) -> Sequence[Any]:
            tracer: Any = get_proxy_mode().tracer  # type: ignore[union-attr]
            self.numbers.tensors = Known(tracer.graph, available, tracer.root)
            python: list[Any] = [value.item() for value in values[n_tensors:]]
            for number, known in zip(python, numbers, strict=True):
                self.numbers.known[number.node.expr] = known
            origins = self._stand_ins.origins = Origins(sys._getframe())
            with marked(lambda: {ORIGIN: origins.find()}), Draws(), self._stand_ins:  # type: ignore[no-untyped-call]
                results = function(*values[:n_tensors], *python)
                with torch.no_grad():
                    left = [self._stand_ins.of(t).detach() for t in self._stand_ins.outside]
            return [*results, *left]

        self._stand_ins = StandIns(self._mode, is_made_here, n_examples)
        for real, fake in zip(tensors, self._fakes, strict=False):
            self._stand_ins.add(real, fake)
        try:
            with autograd_runs() as marks, self._mode, in_plain_operators():
                module = make_fx(traced, dict(decompositions or {}), "real")(*self._fakes)
        finally:
            torch.set_rng_state(state)
        mark_phases(module, marks, is_forward=is_forward)
        self._mark_asked(module)
        self.module: GraphModule = module
        """The graph with writes in place."""

        self.outside = self._stand_ins.outside
        """Tensors that were not among the given ones: further inputs, after the numbers."""

        self._fakes += _as_inputs(module, self._stand_ins.nodes)
        module.graph.eliminate_dead_code(lambda node: node.is_impure() or ASKED in node.meta)

    def _mark_asked(self, module: GraphModule) -> None:
        """Mark the nodes that produce the numbers about which Python has asked something."""
        looked_up = {symbol: k for k, symbol in enumerate(self.numbers.looked_up)}
        computed = {symbol: k for k, symbol in enumerate(self.numbers.computed)}
        for node in module.graph.nodes:
            if node.target is ITEM:
                for symbol in symbols_of(node):
                    if symbol in looked_up:
                        node.meta[ASKED] = looked_up[symbol], True
                    elif symbol in computed:
                        node.meta[ASKED] = computed[symbol], False

    def without_writes(self) -> GraphModule:
        """Return the graph with every write turned into a new value.

        This traces once more, which takes long. Functionalization cannot see through
        `requires_grad_`, therefore it is a second step.
        """
        pure = torch.func.functionalize(
            lambda *args: Marked(self.module).run(*args), remove="mutations"
        )
        with self._mode, torch.no_grad():
            module: GraphModule = make_fx(pure, tracing_mode="real")(*self._fakes)
        for node in module.graph.nodes:  # views of what was written are read at the very end
            node.meta.setdefault(PHASE, AFTER)
        return module


def _as_inputs(module: GraphModule, nodes: Sequence[Node]) -> list[Tensor]:
    """Turn nodes that read attributes of a module into further inputs; return their stand-ins."""
    graph = module.graph
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    stand_ins = []
    for node in nodes:
        with graph.inserting_after(last):
            last = graph.placeholder(node.name)
        last.meta.update(node.meta)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        stand_ins.append(last.meta["val"])
    module.recompile()
    return stand_ins
