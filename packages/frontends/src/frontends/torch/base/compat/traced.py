"""What a function does, as a graph of operators.

Of torch 2.13 it touches `make_fx` (`fx.experimental.proxy_tensor`), its tracer, and
`_subclasses.fake_tensor`: public by their module paths, but how they meet optimizers, Python's
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


class Program:
    """What a function does that may differentiate and write in place.

    The function works on the tensors that the user has, which are not touched: whatever is called
    with one is called with its stand-in, which has shape, type and strides but no memory. So it
    does not matter by which name or list the function gets hold of them. A tensor that is met
    besides becomes an input, too. A node of its graphs says where it comes from by `PHASE`, `DRAW`
    and `ORIGIN`.

    Args:
        function: From the stand-ins of `tensors`, and numbers as Python's, to tensors and numbers.
            The program returns besides what becomes of tensors that are met.
        tensors: All that is known beforehand; their values are not read.
        numbers: That may be others at each call.
        decompositions: How operators are to be written in others.
        is_made_here: Whether a tensor was made by the function itself, as by `torch.tensor(3)`;
            such a one is a constant.
        are_there: For each of `tensors`, whether its values are there before each run.
        answers: What is supposed of numbers that the program computes.
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
        there = {i: tensor for i, (tensor, is_there) in enumerate(known) if is_there}
        there |= {n_tensors + i: torch.tensor(number) for i, number in enumerate(numbers)}

        def traced(*values: Tensor) -> Sequence[Any]:
            tracer: Any = get_proxy_mode().tracer  # type: ignore[union-attr]
            self.numbers.tensors = Known(tracer.graph, there, tracer.root)
            python: list[Any] = [value.item() for value in values[n_tensors:]]
            for number, known in zip(python, numbers, strict=True):
                self.numbers.known[number.node.expr] = known
            origins = self._stand_ins.origins = Origins(sys._getframe())
            with marked(lambda: {ORIGIN: origins.find()}), Draws(), self._stand_ins:  # type: ignore[no-untyped-call]
                made = function(*values[:n_tensors], *python)
                with torch.no_grad():
                    left = [self._stand_ins.of(t).detach() for t in self._stand_ins.outside]
            return [*made, *left]

        self._stand_ins = StandIns(self._mode, is_made_here)
        for real, fake in zip(tensors, self._fakes, strict=False):
            self._stand_ins.add(real, fake)
        try:
            with autograd_runs() as marks, self._mode, in_plain_operators():
                module = make_fx(traced, dict(decompositions or {}), "real")(*self._fakes)
        finally:
            torch.set_rng_state(state)
        mark_phases(module, marks)
        self._mark_asked(module)
        self.module: GraphModule = module
        """With writes as they are."""

        self.outside = self._stand_ins.outside
        """Tensors that were met besides: further inputs, after the numbers."""

        self._fakes += _as_inputs(module, self._stand_ins.nodes)
        module.graph.eliminate_dead_code(lambda node: node.is_impure() or ASKED in node.meta)

    def _mark_asked(self, module: GraphModule) -> None:
        """Find the nodes again that make the numbers of which Python has asked something."""
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
        """The same with every write turned into a new value: traced once more, which takes long.

        Functionalization cannot see through `requires_grad_`, so that it comes second.
        """
        pure = torch.func.functionalize(
            lambda *args: Marked(self.module).run(*args), remove="mutations"
        )
        with self._mode, torch.no_grad():
            module: GraphModule = make_fx(pure, tracing_mode="real")(*self._fakes)
        for node in module.graph.nodes:  # parts of what was written are read when all has run
            node.meta.setdefault(PHASE, AFTER)
        return module


def _as_inputs(module: GraphModule, nodes: Sequence[Node]) -> list[Tensor]:
    """Turn nodes that read attributes of a module into further arguments; their stand-ins."""
    graph = module.graph
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    found = []
    for node in nodes:
        with graph.inserting_after(last):
            last = graph.placeholder(node.name)
        last.meta.update(node.meta)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        found.append(last.meta["val"])
    module.recompile()
    return found
