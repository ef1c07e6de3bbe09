"""`GraphBuilder`: writes a graph by hand, one line of code for each operator."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from autoshard.errors import GraphError
from autoshard.graph.graph import Graph, verify
from autoshard.graph.graph_fields import Operator, Output, Phase, Role, Value
from autoshard.graph.rule import Rule
from autoshard.rules import rule_of
from autoshard.rules.flops import flops_of

Shape = tuple[int, ...]


class GraphBuilder:
    """A graph under construction: one method call adds one operator, and values are their names.

    The rule of every operator comes from the table (`rule_of`); its FLOP, unless they are passed,
    from `flops_of`.

    Examples:
        >>> graph = GraphBuilder()
        >>> x, w = graph.input("x", 64, 512), graph.parameter("w", 512, 2048)
        >>> hidden = graph.apply("gelu", graph.dot(x, w))
        >>> graph.output(graph.apply("softmax", hidden, dims=(1,), name="y"))
        >>> for line in str(graph.build()).splitlines():
        ...     print(line.split("  ")[0])
        phases: step
        inputs: x: float32[64,512] batch, w: float32[512,2048] parameter
        step: dot: float32[64,2048] = dot_general(x, w)
        step: gelu: float32[64,2048] = gelu(dot)
        step: y: float32[64,2048] = softmax(gelu)
        outputs: y
    """

    def __init__(self, *, dtype: str = "float32") -> None:
        self.dtype = dtype
        """The dtype of values for which no other is passed."""
        self._phases: list[Phase] = []
        self._values: dict[str, Value] = {}
        self._operators: list[Operator] = []
        self.inputs: list[str] = []
        """Names of the program's inputs, in order."""
        self._outputs: list[Output] = []

    def phase(self, name: str, repeats: int = 1) -> None:
        """Begin a phase: the operators added after this call run `repeats` times a step.

        A graph without a call of this has one phase, `step`, that runs once.
        """
        self._phases.append(Phase(name, repeats))

    def input(self, name: str, *shape: int, role: Role = "batch", dtype: str | None = None) -> str:
        """Add an input of the program; returns its name."""
        self.inputs.append(self._value(name, shape, dtype, role))
        return name

    def parameter(self, name: str, *shape: int, dtype: str | None = None) -> str:
        """Add an input whose role is `parameter`; returns its name."""
        return self.input(name, *shape, role="parameter", dtype=dtype)

    def output(self, value: str, *, alias: str | None = None, whole: bool = False) -> None:
        """Make a value an output of the program; see `Output` for `alias` and `whole`."""
        self._outputs.append(Output(value, alias, whole))

    def shape(self, value: str) -> Shape:
        """The shape of a value.

        Raises:
            GraphError: the graph has no such value yet.
        """
        if not isinstance(value, str) or value not in self._values:
            raise GraphError(
                f"an operator reads values that were added before it; got {value!r}, after "
                f"{', '.join(self._values) or 'nothing'}"
            )
        return self._values[value].shape

    def apply(
        self,
        kind: str,
        *operands: str,
        shape: Shape | None = None,
        dtype: str | None = None,
        name: str | None = None,
        flops: float | None = None,
        **attributes: Any,
    ) -> str:
        """Add an operator with one result; returns the result's name.

        Args:
            kind: A key of `RULES`; an operator of any other kind is never split.
            operands: Names of values.
            shape: The result's shape; by default the operands' shapes, broadcast as in numpy.
            dtype: The result's dtype; by default that of the first operand.
            name: The name of the operator and of its result; by default the kind, with a number if
                that name is in use.
            flops: Those of the whole operator; by default `flops_of`.
            attributes: Those that the kind's rule takes (`rule_of`).
        """
        if shape is None:
            shape = self._broadcast(kind, operands)
        (result,) = self.apply_all(
            kind, *operands, shapes=(shape,), dtype=dtype, name=name, flops=flops, **attributes
        )
        return result

    def apply_all(
        self,
        kind: str,
        *operands: str,
        shapes: tuple[Shape, ...],
        dtype: str | None = None,
        name: str | None = None,
        flops: float | None = None,
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Add an operator with any number of results; returns their names. See `apply`."""
        operand_shapes = tuple(map(self.shape, operands))
        rule = rule_of(kind, operand_shapes, shapes, **attributes)
        if flops is None:
            flops = flops_of(kind, operand_shapes, shapes, **attributes)
        return self.emit(kind, operands, rule, flops=flops, dtype=dtype, name=name)

    def emit(
        self,
        kind: str,
        operands: tuple[str, ...],
        rule: Rule,
        *,
        flops: float,
        dtype: str | None = None,
        name: str | None = None,
    ) -> tuple[str, ...]:
        """Add an operator with the given rule; returns the names of its results."""
        if name is None:
            base = "dot" if kind == "dot_general" else kind
            number = sum(operator.kind == kind for operator in self._operators)
            name = f"{base}_{number}" if number or base in self._values else base
        if dtype is None and operands:
            dtype = self._values[operands[0]].dtype
        shapes = rule.result_shapes
        names = [name] if len(shapes) == 1 else [f"{name}.{i}" for i in range(len(shapes))]
        results = tuple(
            self._value(result, shape, dtype, "intermediate")
            for result, shape in zip(names, shapes, strict=True)
        )
        phase = max(len(self._phases) - 1, 0)
        self._operators.append(Operator(name, kind, operands, results, rule, flops, phase))
        return results

    def dot(self, x: str, w: str, *, name: str | None = None) -> str:
        """Add `x @ w` as in numpy, which sums over the last dim of `x` and the last but one of `w`.

        All dims of `w` before its last two are batch dims, and the first dims of `x` are the same.
        """
        if not self.shape(x) or len(self.shape(w)) < 2:
            raise GraphError(
                "dot multiplies an array of one dim or more with one of two or more; got shapes "
                f"{self.shape(x)} and {self.shape(w)}: use einsum for other products"
            )
        (*rows, _), (*batch, _, columns) = self.shape(x), self.shape(w)
        dims = tuple(range(len(batch)))
        return self.apply(
            "dot_general",
            x,
            w,
            shape=(*rows, columns),
            name=name,
            contracting=((len(rows),), (len(batch),)),
            batch=(dims, dims),
        )

    def einsum(self, formula: str, *operands: str, name: str | None = None) -> str:
        """Add a contraction, in the notation of `numpy.einsum`, with an arrow."""
        left, _, right = formula.partition("->")
        sizes = {
            letter: size
            for word, operand in zip(left.split(","), operands, strict=False)
            for letter, size in zip(word.strip(), self.shape(operand), strict=False)
        }
        shape = tuple(sizes.get(letter, 1) for letter in right.strip())
        return self.apply("einsum", *operands, shape=shape, name=name, formula=formula)

    def add(self, x: str, y: str, *, name: str | None = None) -> str:
        """Add `x + y`; the operands broadcast."""
        return self.apply("add", x, y, name=name)

    def mul(self, x: str, y: str, *, name: str | None = None) -> str:
        """Add `x * y`; the operands broadcast."""
        return self.apply("mul", x, y, name=name)

    def reduce_sum(
        self, x: str, *dims: int, keepdims: bool = False, name: str | None = None
    ) -> str:
        """Add the sum of `x` over `dims`."""
        shape = tuple(
            1 if d in dims else n for d, n in enumerate(self.shape(x)) if keepdims or d not in dims
        )
        return self.apply("reduce_sum", x, shape=shape, name=name, dims=dims)

    def reshape(self, x: str, *shape: int, name: str | None = None) -> str:
        """Add a reshape, which keeps the row-major order of the elements."""
        return self.apply("reshape", x, shape=shape, name=name)

    def transpose(self, x: str, *permutation: int, name: str | None = None) -> str:
        """Add a transpose: result dim `d` is operand dim `permutation[d]`."""
        before = self.shape(x)
        if sorted(permutation) != list(range(len(before))):
            raise GraphError(
                f"a transpose permutes all dims, 0 to {len(before) - 1} of {x!r}; got {permutation}"
            )
        shape = tuple(before[d] for d in permutation)
        return self.apply("transpose", x, shape=shape, name=name, permutation=permutation)

    def build(self) -> Graph:
        """The graph, verified.

        Raises:
            GraphError: the graph breaks a rule of `verify`.
        """
        graph = Graph(
            tuple(self._phases) or (Phase("step"),),
            tuple(self._values.values()),
            tuple(self._operators),
            tuple(self.inputs),
            tuple(self._outputs),
        )
        verify(graph)
        return graph

    def _broadcast(self, kind: str, operands: tuple[str, ...]) -> Shape:
        shapes = list(map(self.shape, operands))
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            raise GraphError(
                f"without shape= the operands broadcast as in numpy; those of {kind!r} have "
                f"shapes {', '.join(map(str, shapes))}"
            ) from None

    def _value(self, name: str, shape: Shape, dtype: str | None, role: Role) -> str:
        try:
            shape = tuple(map(index, shape))  # numpy's integers become plain ints
        except TypeError as error:
            raise GraphError(
                f"a shape is whole numbers, each a separate argument; got {shape} for {name!r}"
            ) from error
        if name in self._values:
            raise GraphError(
                f"the names of values are unique; {name!r} is already '{self._values[name]}': "
                "give the operator another name="
            )
        self._values[name] = Value(name, shape, dtype or self.dtype, role)
        return name
