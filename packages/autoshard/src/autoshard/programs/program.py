"""Writes a training step operator by operator, as a tracer would see it, and differentiates it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Operator, Output, Phase, Role, Value
from autoshard.graph.rule import Rule
from autoshard.rules import broadcast, einsum, elementwise, reduction, reshape, rule_of, transpose

FORWARD, BACKWARD, APPLY = range(3)

Optimizer = Literal["adam", "sgd"]
Linear = tuple[tuple[int, ...], ...]
Pullback = Callable[[str], str]
"""From the gradient of an operator's result to that of one of its operands."""

FIRST: Linear = ((0,),)
SUM: Linear = ((0, 1),)
PRODUCT: Linear = ((0,), (1,))


class StepBuilder:
    """A training step that grows by one method call an operator.

    Only what a planner needs is modelled: which values each operator reads and makes, with the rule
    and the FLOP of the real one. Scalar constants, such as a layer norm's epsilon, are part of the
    operator that reads them. An operator on n elements that is no contraction counts as n FLOP.

    Examples:
        >>> program = StepBuilder()
        >>> x, w = program.input("x", 8, 4), program.parameter("w", 4, 2)
        >>> y = program.unary("tanh", program.einsum("bi,ij->bj", x, w))
        >>> step = program.finish(program.mean(y), optimizer="sgd")
        >>> [operator.kind for operator in step.operators][-2:]
        ['mul_const', 'sub']
    """

    def __init__(self, *, microbatches: int = 1, dtype: str = "float32") -> None:
        self.dtype = dtype
        self.phases = (
            Phase("forward", microbatches),
            Phase("backward", microbatches),
            Phase("apply", 1),
        )
        self.values: dict[str, Value] = {}
        self.operators: list[Operator] = []
        self.inputs: list[str] = []
        self.outputs: list[Output] = []
        self.phase = FORWARD
        self._tape: list[tuple[str, list[tuple[str, Pullback]]]] = []
        self._trained: set[str] = set()
        """The parameters and everything that depends on them: what has a gradient."""

    def input(self, name: str, *shape: int, role: Role = "batch", dtype: str | None = None) -> str:
        """A new input."""
        self.values[name] = Value(name, shape, dtype or self.dtype, role)
        self.inputs.append(name)
        return name

    def parameter(self, name: str, *shape: int) -> str:
        """A new input that `finish` updates by its gradient."""
        self._trained.add(name)
        return self.input(name, *shape, role="parameter")

    def shape(self, name: str) -> tuple[int, ...]:
        """A value's shape."""
        return self.values[name].shape

    def emit(
        self,
        kind: str,
        inputs: tuple[str, ...],
        rule: Rule,
        flops: float = 0.0,
        dtype: str | None = None,
    ) -> str:
        """An operator with one result that is not differentiated; returns the result's name."""
        name = f"{kind}_{len(self.operators)}"
        self.values[name] = Value(name, rule.result_shapes[0], dtype or self.dtype)
        self.operators.append(Operator(name, kind, inputs, (name,), rule, float(flops), self.phase))
        return name

    def apply(
        self,
        kind: str,
        shape: tuple[int, ...],
        *inputs: str,
        flops: float = 0.0,
        dtype: str | None = None,
        **attributes: object,
    ) -> str:
        """An operator of the table of rules that is not differentiated; see `rule_of`."""
        rule = rule_of(kind, tuple(map(self.shape, inputs)), (shape,), **attributes)
        return self.emit(kind, inputs, rule, flops, dtype)

    def record(self, made: str, *pullbacks: tuple[str, Pullback]) -> str:
        """Say how the operator that made a value is differentiated by its operands."""
        if trained := [(x, back) for x, back in pullbacks if x in self._trained]:
            self._trained.add(made)
            self._tape.append((made, trained))
        return made

    def einsum(self, formula: str, *inputs: str) -> str:
        """A contraction."""
        left, _, result = formula.partition("->")
        words = left.split(",")

        def pullback(i: int) -> Pullback:
            others = [k for k in range(len(words)) if k != i]
            backward = ",".join([result, *(words[k] for k in others)]) + f"->{words[i]}"
            return lambda g: self._contract(backward, (g, *(inputs[k] for k in others)))

        made = self._contract(formula, inputs)
        return self.record(made, *((x, pullback(i)) for i, x in enumerate(inputs)))

    def add(self, x: str, y: str) -> str:
        """`x + y` with `y` broadcast."""
        made = self.pointwise("add", SUM, x, y)
        return self.record(made, (x, lambda g: g), (y, lambda g: self._sum_to(g, y)))

    def sub(self, x: str, y: str) -> str:
        """`x - y` with `y` broadcast."""
        return self.record(
            self.pointwise("sub", SUM, x, y),
            (x, lambda g: g),
            (y, lambda g: self._sum_to(self.pointwise("neg", FIRST, g), y)),
        )

    def mul(self, x: str, y: str) -> str:
        """`x * y` with `y` broadcast."""
        return self.record(
            self.pointwise("mul", PRODUCT, x, y),
            (x, lambda g: self.pointwise("mul", PRODUCT, g, y)),
            (y, lambda g: self._sum_to(self.pointwise("mul", PRODUCT, g, x), y)),
        )

    def linear(self, kind: str, x: str) -> str:
        """A linear function of one value, element by element: `neg`, `mul_const`."""
        made = self.pointwise(kind, FIRST, x)
        return self.record(made, (x, lambda g: self.pointwise(kind, FIRST, g)))

    def unary(self, kind: str, x: str) -> str:
        """A nonlinear function of one value, element by element."""
        made = self.pointwise(kind, (), x)
        return self.record(made, (x, lambda g: self.pointwise("derivative", FIRST, g, x)))

    def reduce(self, x: str, dim: int) -> str:
        """The sum over a dim, which is kept with size 1."""
        shape = self.shape(x)
        rule = reduction(shape, (dim,), keepdims=True)
        back = broadcast(rule.result_shapes[0], shape, tuple(range(len(shape))))
        made = self.emit("reduce_sum", (x,), rule, float(math.prod(shape)))
        return self.record(made, (x, lambda g: self.emit("broadcast", (g,), back)))

    def mean(self, x: str) -> str:
        """The mean of all elements, a dim at a time; every dim is kept with size 1."""
        for dim in reversed(range(len(self.shape(x)))):
            x = self.reduce(x, dim)
        return self.linear("mul_const", x)

    def broadcast(self, x: str, *shape: int) -> str:
        """`x` repeated to a shape, aligned at the last dim as in numpy."""
        before = self.shape(x)
        rule = broadcast(before, shape, tuple(range(len(shape) - len(before), len(shape))))
        made = self.emit("broadcast", (x,), rule, dtype=self.values[x].dtype)
        return self.record(made, (x, lambda g: self._sum_to(g, x)))

    def reshape(self, x: str, *shape: int) -> str:
        """Regroup the dims."""
        forward, back = reshape(self.shape(x), shape), reshape(shape, self.shape(x))
        made = self.emit("reshape", (x,), forward)
        return self.record(made, (x, lambda g: self.emit("reshape", (g,), back)))

    def transpose(self, x: str, *permutation: int) -> str:
        """Reorder the dims."""
        forward = transpose(self.shape(x), permutation)
        inverse = tuple(permutation.index(dim) for dim in range(len(permutation)))
        back = transpose(forward.result_shapes[0], inverse)
        made = self.emit("transpose", (x,), forward)
        return self.record(made, (x, lambda g: self.emit("transpose", (g,), back)))

    def lookup(self, table: str, ids: str) -> str:
        """Rows of `table` (v, d) for `ids` (b, t): a one-hot product, so the rows can be split."""
        rows, places = self.shape(table), self.shape(ids)
        made = self.apply("embedding", (*places, rows[1]), table, ids)
        return self.record(made, (table, lambda g: self.apply("embedding_gradient", rows, g, ids)))

    def pointwise(self, kind: str, linear: Linear, x: str, *others: str) -> str:
        """An operator on corresponding elements that is not differentiated; `x` has its shape."""
        inputs = (x, *others)
        shapes = tuple(map(self.shape, inputs))
        rule = elementwise(shapes, shapes[0], linear)
        return self.emit(kind, inputs, rule, float(math.prod(shapes[0])))

    def backward(self, loss: str) -> dict[str, str]:
        """Differentiate a value; returns the gradient of each value it depends on.

        With microbatches, a parameter's gradient is added to the sum of those before it as soon as
        it is there: what accumulates may be split more than what is made (stage 2 of ZeRO).
        """
        self.phase = BACKWARD
        gradients = {loss: self.pointwise("ones_like", (), loss)}
        accumulates = self.phases[BACKWARD].repeats > 1
        first_use = {x: made for made, pullbacks in reversed(self._tape) for x, _ in pullbacks}
        for made, pullbacks in reversed(self._tape):
            if made not in gradients:
                continue
            for x, pullback in pullbacks:
                gradient = pullback(gradients[made])
                if x in gradients:
                    gradient = self.pointwise("add_any", SUM, gradients[x], gradient)
                gradients[x] = gradient
            for x in dict(pullbacks):
                if accumulates and x in self.inputs and first_use[x] == made:
                    gradients[x] = self.pointwise("accumulate", FIRST, gradients[x])
        return gradients

    def finish(self, loss: str, optimizer: Optimizer = "adam") -> Graph:
        """Add backward and the update of every parameter, and close the graph."""
        gradients = self.backward(loss)
        self.phase = APPLY
        self.outputs.append(Output(loss, whole=True))
        for name in [name for name in self.inputs if self.values[name].role == "parameter"]:
            if optimizer == "adam":
                update = self._adam(name, gradients[name])
            else:
                update = self.pointwise("mul_const", FIRST, gradients[name])
            self.outputs.append(Output(self.pointwise("sub", SUM, name, update), name))
        return self.graph()

    def graph(self) -> Graph:
        """What has been written so far."""
        return Graph(
            self.phases,
            tuple(self.values.values()),
            tuple(self.operators),
            tuple(self.inputs),
            tuple(self.outputs),
        )

    def _adam(self, name: str, g: str) -> str:
        """What Adam with decoupled weight decay subtracts (Loshchilov, Hutter, ICLR 2019)."""
        shape = self.shape(name)
        m = self.input(f"{name}_m", *shape, role="optimizer_state")
        v = self.input(f"{name}_v", *shape, role="optimizer_state")

        def scaled(x: str) -> str:
            return self.pointwise("mul_const", FIRST, x)

        new_m = self.pointwise("add", SUM, scaled(m), scaled(g))
        square = self.pointwise("mul", PRODUCT, g, g)
        new_v = self.pointwise("add", SUM, scaled(v), scaled(square))
        # scaled a second time: both start at zero, and Adam corrects for it
        root = self.pointwise("rsqrt", (), scaled(new_v))
        step = self.pointwise("mul", PRODUCT, scaled(new_m), root)
        self.outputs += [Output(new_m, m), Output(new_v, v)]
        return self.pointwise("add", SUM, step, scaled(name))

    def _contract(self, formula: str, inputs: tuple[str, ...]) -> str:
        rule = einsum(formula, *map(self.shape, inputs))
        flops = 2.0 * math.prod(factor.size for factor in rule.factors)
        return self.emit("einsum", inputs, rule, flops)

    def _sum_to(self, gradient: str, value: str) -> str:
        """Sum a gradient over the dims that its value was broadcast along."""
        full, shape = self.shape(gradient), self.shape(value)
        skipped = len(full) - len(shape)
        dims = tuple(d for d in range(len(full)) if d < skipped or shape[d - skipped] != full[d])
        if dims:
            rule = reduction(full, dims)
            gradient = self.emit("reduce_sum", (gradient,), rule, float(math.prod(full)))
        if self.shape(gradient) != shape:
            gradient = self.emit("reshape", (gradient,), reshape(self.shape(gradient), shape))
        return gradient


def step_flops(graph: Graph) -> float:
    """FLOP of one step on one device: of every operator, in every repeat of its phase."""
    return sum(
        operator.flops * graph.phases[operator.phase].repeats for operator in graph.operators
    )


def join_phases(graph: Graph) -> Graph:
    """The same program, in which phases in a row that repeat equally are one.

    What forward has converted is then there for backward, too, as it is where one mesh runs both.

    Examples:
        >>> from autoshard.programs import mlp_step
        >>> step = mlp_step(batch=4, width=2, hidden=4, microbatches=8)
        >>> [(phase.name, phase.repeats) for phase in join_phases(step).phases]
        [('forward+backward', 8), ('apply', 1)]
    """
    phases: list[Phase] = []
    joined: list[int] = []
    for phase in graph.phases:
        if phases and phases[-1].repeats == phase.repeats:
            phases[-1] = replace(phases[-1], name=f"{phases[-1].name}+{phase.name}")
        else:
            phases.append(phase)
        joined.append(len(phases) - 1)
    operators = tuple(replace(op, phase=joined[op.phase]) for op in graph.operators)
    return replace(graph, phases=tuple(phases), operators=operators)
