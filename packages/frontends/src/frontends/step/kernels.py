"""Which operators of a step an engine runs in one kernel, and what each then reads and writes.

A compiler like XLA keeps on the chip what one operator hands to the next, where both go over the
same elements. The price of a step follows from the kernels that are left: an operator inside one
reads and writes no memory but what the kernel itself reads and writes, and is not launched.

For every operator we ask in which kernels it is computed, from the last one back to the first:

- An operator that needs whole tensors (a matrix product, a sort) is a kernel of its own. What it
  reads and writes lies in memory.
- A *view* is no kernel. Whoever reads it reads what it is a view of.
- A *loop* (elementwise arithmetic, a broadcast, a slice) is computed in the kernels that read its
  result, unless that takes more traffic than to write it once. A result that is written, for this
  reason or as another phase reads it, is written by the first kernel that reads it, if that is a
  loop over as many elements.
- A *reduction* is a kernel of its own, with the loops that lead to it. One over rows may be part of
  the only kernel that reads its result, such as the sum of a softmax: the row is on the chip then.
  A kernel holds at most one of these.

A kernel reads a value in memory once, however many of its operators do.

Reference: XLA's GPU compiler decides on fusions by the traffic that they save
(`xla/service/gpu/transforms/priority_fusion.cc`), merges a producer whose result is needed with its
reader (`multi_output_fusion.cc`), and fuses softmaxes by rows (`softmax_rewriter_triton.cc`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from autoshard import Accesses, Graph, Operator

KernelClass = Literal["view", "loop", "reduction", "own"]


@dataclass(frozen=True, slots=True)
class KernelMaker:
    """What makes kernels of a stage's operators: which kinds it takes together.

    A kind that is in no set is a kernel of its own.
    """

    name: str
    views: frozenset[str]
    """Kinds of operators whose result is the memory of their first operand."""
    loops: frozenset[str] = frozenset()
    """Kinds whose every element is computed from few elements of each operand."""
    parts: frozenset[str] = frozenset()
    """Kinds that read only those elements of their first operand that they return."""
    reductions: frozenset[str] = frozenset()
    """Kinds that combine elements along some dims."""
    products: frozenset[str] = frozenset()
    """Kinds that take matrices in either order, so that a transposition beside them is a view."""

    def class_of(self, op: Operator) -> KernelClass:
        """How this engine takes an operator."""
        if op.kind in self.views:
            return "view"
        if op.kind in self.loops or op.kind in self.parts:
            return "loop"
        return "reduction" if op.kind in self.reductions else "own"


def with_kernels(graph: Graph, engine: KernelMaker, summed: Collection[str] = ()) -> Graph:
    """The graph with the part of each operator in the engine's kernels, as its `accesses`.

    An operator that has accesses already, such as a loop, launches as many kernels as these say.

    Args:
        graph: The graph of a step.
        engine: What runs it.
        summed: Results that are added up over the repeats of their phase: each repeat reads and
            writes the sum, too.
    """
    accesses = Kernels(graph, engine).accesses()
    operators = []
    for op, its in zip(graph.operators, accesses, strict=True):
        extra = [2.0 * (n in summed and graph.phases[op.phase].repeats > 1) for n in op.outputs]
        times = [*its.times]
        for position, more in enumerate(extra, len(op.inputs)):
            times[position] += more
        launches = its.launches * (op.accesses.launches if op.accesses else 1.0)
        operators.append(replace(op, accesses=Accesses(tuple(times), launches)))
    return replace(graph, operators=tuple(operators))


class Kernels:
    """The kernels of a graph; each has the index of its last operator."""

    def __init__(self, graph: Graph, engine: KernelMaker) -> None:
        self._graph, self._engine = graph, engine
        self.classes = [self._class_of(op) for op in graph.operators]
        """By operator: how the engine takes it."""
        self._left = {output.value for output in graph.outputs}
        self._sources: dict[str, str] = {}
        """By view, the value that it is a view of."""
        for op, of_class in zip(graph.operators, self.classes, strict=True):
            if of_class == "view" and op.inputs:
                source = self.source(op.inputs[0])
                self._sources.update(dict.fromkeys(op.outputs, source))
        self._n_bytes = {value.name: value.n_bytes for value in graph.values}
        n = len(graph.operators)
        self.of: list[frozenset[int]] = [frozenset()] * n
        """By operator: the kernels in which it is computed; none for a view."""
        self.written = [True] * n
        """By operator: whether its results are written to memory."""
        self._with_rows: set[int] = set()
        """Kernels that hold a reduction besides their own."""
        for index in reversed(range(n)):
            self._decide(index)

    def accesses(self) -> Iterator[Accesses]:
        """Yield what each operator reads, writes and launches."""
        read: set[tuple[int, str]] = set()
        for index, op in enumerate(self._graph.operators):
            if self.classes[index] == "view":
                yield Accesses((0.0,) * (len(op.inputs) + len(op.outputs)), 0.0)
                continue
            times = []
            for position, name in enumerate(op.inputs):
                source = self.source(name)
                made_in = self._made_in(source)
                kernels = {k for k in self.of[index] - made_in if (k, source) not in read}
                read.update((kernel, source) for kernel in kernels)
                times.append(len(kernels) * self._part_read(op, position))
            written = [float(self.written[index])] * len(op.outputs)
            yield Accesses((*times, *written), float(index in self.of[index]))

    def _class_of(self, op: Operator) -> KernelClass:
        of_kind = self._engine.class_of(op)
        if of_kind == "loop" and _swaps_last_dims(op):
            graph, products = self._graph, self._engine.products
            beside = [graph.operators[i].kind for i in graph.readers[op.outputs[0]]]
            if op.inputs[0] in graph.producers:
                beside.append(graph.operators[graph.producers[op.inputs[0]][0]].kind)
            if not products.isdisjoint(beside):
                return "view"
        return of_kind

    def _decide(self, index: int) -> None:
        """Decide where an operator is computed, given where all later ones are."""
        alone = frozenset((index,))
        op, of_class = self._graph.operators[index], self.classes[index]
        readers = list(self._readers(index)) if of_class != "view" else []
        inside = [i for i in readers if self.classes[i] != "own"]
        others = [i for i in readers if self.classes[i] == "own"]
        here = [i for i in inside if self._graph.operators[i].phase == op.phase]
        left = any(name in self._left for name in self._names(index)) or len(here) < len(inside)
        kernels = frozenset[int]().union(*(self.of[i] for i in here))
        self.of[index] = alone
        if of_class == "view":
            self.of[index] = frozenset()
        elif not kernels or of_class == "own" or others:
            pass
        elif of_class == "reduction":
            (kernel, *more) = kernels
            is_loop = self.classes[kernel] == "loop" and kernel not in self._with_rows
            if is_loop and not more and _is_of_rows(op):
                self._with_rows.add(kernel)
                self.of[index], self.written[index] = kernels, left
        elif left or (len(kernels) > 1 and not self._is_less_traffic(op, len(kernels))):
            first = min(kernels)  # the others may need what comes of it, and it nothing of theirs
            if self._is_like(first, index) and first not in self._with_rows:
                self.of[index] = frozenset((first,))
        else:
            self.of[index], self.written[index] = kernels, False

    def _is_like(self, kernel: int, index: int) -> bool:
        """Whether a kernel is a loop over as many elements as an operator's result has."""
        graph = self._graph
        sizes = [graph.value(graph.operators[i].outputs[0]) for i in (kernel, index)]
        return self.classes[kernel] == "loop" and sizes[0].shape == sizes[1].shape

    def _is_less_traffic(self, op: Operator, n_kernels: int) -> bool:
        """Whether reading the operands in each kernel is less than writing the result for them.

        The kernel that writes it can be one of those that read it, so that the others read it. What
        takes as much either way is written: of a chain of sums, as the residuals of a model are,
        each would else be computed again for all that come after it.
        """
        read = sum(self._n_bytes[name] * self._part_read(op, k) for k, name in enumerate(op.inputs))
        written = sum(self._n_bytes[name] for name in op.outputs)
        return (n_kernels - 1) * read < n_kernels * written

    def _part_read(self, op: Operator, position: int) -> float:
        """The part of an operand that an operator reads."""
        if position or op.kind not in self._engine.parts:
            return 1.0
        n_bytes = self._n_bytes[op.inputs[0]]
        return min(1.0, self._n_bytes[op.outputs[0]] / n_bytes) if n_bytes else 1.0

    def source(self, name: str) -> str:
        """What a value is a view of, or the value itself."""
        return self._sources.get(name, name)

    def _made_in(self, name: str) -> frozenset[int]:
        """The kernels that compute a value; none for an input of the graph."""
        if name not in self._graph.producers:
            return frozenset()
        return self.of[self._graph.producers[name][0]]

    def _names(self, index: int) -> Iterator[str]:
        """An operator's results, and all views of them."""
        for name in self._graph.operators[index].outputs:
            yield name
            for reader in self._graph.readers[name]:
                if self.classes[reader] == "view":
                    yield from self._names(reader)

    def _readers(self, index: int) -> Iterator[int]:
        """The operators that read an operator's results, or views of them."""
        for name in self._graph.operators[index].outputs:
            for reader in self._graph.readers[name]:
                if self.classes[reader] == "view":
                    yield from self._readers(reader)
                else:
                    yield reader


def _swaps_last_dims(op: Operator) -> bool:
    """Whether an operator does nothing but exchange the last two dims of its only operand."""
    if len(op.rule.operands) != 1 or len(op.rule.results) != 1 or op.flops:
        return False
    before, after = op.rule.operands[0], op.rule.results[0]
    return before != after and before == (*after[:-2], *reversed(after[-2:]))


def _is_of_rows(op: Operator) -> bool:
    """Whether a reduction is over the last dims of its operand."""
    if not op.rule.operands:  # it reads a number that the program states
        return False
    (operand, *_), (result, *_) = op.rule.operands, op.rule.results
    return 0 < len(result) < len(operand) and operand[: len(result)] == result
