"""`GraphBuilder`: a graph written by hand, an operator a line."""

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
    """A graph that grows by one method call an operator; values are called by their names.

    Every operator's rule comes from the table (`rule_of`), and so do its FLOP unless they are given
    (`flops_of`).

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
        """Of values that are given no other."""
        self._phases: list[Phase] = []
        self._values: dict[str, Value] = {}
        self._operators: list[Operator] = []
        self.inputs: list[str] = []
        """Names of what is given to the program, in order."""
        self._outputs: list[Output] = []

    def phase(self, name: str, repeats: int = 1) -> None:
        """Begin a phase: the operators that follow run `repeats` times a step.

        Without any there is one phase, `step`, that runs once.
        """
        self._phases.append(Phase(name, repeats))

    def input(self, name: str, *shape: int, role: Role = "batch", dtype: str | None = None) -> str:
        """A value that is given to the program."""
        self.inputs.append(self._value(name, shape, dtype, role))
        return name

    def parameter(self, name: str, *shape: int, dtype: str | None = None) -> str:
        """An input whose role is that of a parameter."""
        return self.input(name, *shape, role="parameter", dtype=dtype)

    def output(self, value: str, *, alias: str | None = None, whole: bool = False) -> None:
        """Let a value leave the program; see `Output` for what may be asked of its layout."""
        self._outputs.append(Output(value, alias, whole))

    def shape(self, value: str) -> Shape:
        """The shape of a value.

        Raises:
            GraphError: there is no such value yet.
        """
        if not isinstance(value, str) or value not in self._values:
            raise GraphError(
                f"an operator reads values that were made before; got {value!r}, after "
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
        """An operator with one result; returns the result's name.

        Args:
            kind: A key of `RULES`; any other kind runs whole.
            operands: Names of values.
            shape: The result's; by default the operands' shapes broadcast as in numpy.
            dtype: The result's; by default the first operand's.
            name: The operator's and its result's; by default the kind, numbered if it is taken.
            flops: On one device; by default those of the table.
            attributes: As the kind's rule asks (`rule_of`).
        """
        if shape is None:
            shape = self._broadcast(kind, operands)
        (made,) = self.apply_all(
            kind, *operands, shapes=(shape,), dtype=dtype, name=name, flops=flops, **attributes
        )
        return made

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
        """An operator with any number of results, as `apply`; returns their names."""
        given = tuple(map(self.shape, operands))
        rule = rule_of(kind, given, shapes, **attributes)
        if flops is None:
            flops = flops_of(kind, given, shapes, **attributes)
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
        """An operator whose rule is given; returns the names of its results."""
        if name is None:
            base = "dot" if kind == "dot_general" else kind
            number = sum(operator.kind == kind for operator in self._operators)
            name = f"{base}_{number}" if number or base in self._values else base
        if dtype is None and operands:
            dtype = self._values[operands[0]].dtype
        shapes = rule.result_shapes
        made = [name] if len(shapes) == 1 else [f"{name}.{i}" for i in range(len(shapes))]
        results = tuple(
            self._value(result, shape, dtype, "intermediate")
            for result, shape in zip(made, shapes, strict=True)
        )
        phase = max(len(self._phases) - 1, 0)
        self._operators.append(Operator(name, kind, operands, results, rule, flops, phase))
        return results

    def dot(self, x: str, w: str, *, name: str | None = None) -> str:
        """`x @ w` as in numpy: the last dim of `x` with the last but one of `w`.

        All dims of `w` before its last two are batch dims, the same as the first ones of `x`.
        """
        if not self.shape(x) or len(self.shape(w)) < 2:
            raise GraphError(
                "dot multiplies an array of one dim or more with one of two or more; got shapes "
                f"{self.shape(x)} and {self.shape(w)}: einsum multiplies any"
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
        """A contraction, as `numpy.einsum` writes it with an arrow."""
        left, _, right = formula.partition("->")
        sizes = {
            letter: size
            for word, operand in zip(left.split(","), operands, strict=False)
            for letter, size in zip(word.strip(), self.shape(operand), strict=False)
        }
        shape = tuple(sizes.get(letter, 1) for letter in right.strip())
        return self.apply("einsum", *operands, shape=shape, name=name, formula=formula)

    def add(self, x: str, y: str, *, name: str | None = None) -> str:
        """`x + y`, broadcast."""
        return self.apply("add", x, y, name=name)

    def mul(self, x: str, y: str, *, name: str | None = None) -> str:
        """`x * y`, broadcast."""
        return self.apply("mul", x, y, name=name)

    def reduce_sum(
        self, x: str, *dims: int, keepdims: bool = False, name: str | None = None
    ) -> str:
        """The sum over dims."""
        shape = tuple(
            1 if d in dims else n for d, n in enumerate(self.shape(x)) if keepdims or d not in dims
        )
        return self.apply("reduce_sum", x, shape=shape, name=name, dims=dims)

    def reshape(self, x: str, *shape: int, name: str | None = None) -> str:
        """The elements in the same order, as other dims."""
        return self.apply("reshape", x, shape=shape, name=name)

    def transpose(self, x: str, *permutation: int, name: str | None = None) -> str:
        """Result dim `d` is operand dim `permutation[d]`."""
        before = self.shape(x)
        if sorted(permutation) != list(range(len(before))):
            raise GraphError(
                f"a transpose permutes all dims, 0 to {len(before) - 1} of {x!r}; got {permutation}"
            )
        shape = tuple(before[d] for d in permutation)
        return self.apply("transpose", x, shape=shape, name=name, permutation=permutation)

    def build(self) -> Graph:
        """The graph that was written, verified.

        Raises:
            GraphError: it breaks a rule of `verify`, or a value's name was used twice.
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
                f"without a shape= the operands broadcast as in numpy; those of {kind!r} have "
                f"shapes {', '.join(map(str, shapes))}"
            ) from None

    def _value(self, name: str, shape: Shape, dtype: str | None, role: Role) -> str:
        try:
            shape = tuple(map(index, shape))  # numpy's whole numbers are ints from here on
        except TypeError as error:
            raise GraphError(
                f"a shape is whole numbers, each an argument; got {shape} for {name!r}"
            ) from error
        if name in self._values:
            raise GraphError(
                f"the names of values are unique; {name!r} is already '{self._values[name]}': "
                "give the operator another name="
            )
        self._values[name] = Value(name, shape, dtype or self.dtype, role)
        return name
