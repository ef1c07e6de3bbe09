"""`StepBuilder`: writes a training step operator by operator, and differentiates it."""

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
"""Maps the gradient of an operator's result to that of one of its operands."""

FIRST: Linear = ((0,),)
SUM: Linear = ((0, 1),)
PRODUCT: Linear = ((0,), (1,))


class StepBuilder:
    """A training step under construction: each method call adds an operator.

    It models only what a planner needs: the values that each operator reads and computes, and the
    rule and FLOP of the real operator. Scalar constants, such as a layer norm's epsilon, are part
    of the operator that reads them. An operator on n elements counts n FLOP, unless it is a
    contraction.

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
        """The parameters and everything that depends on them: the values with a gradient."""

    def input(self, name: str, *shape: int, role: Role = "batch", dtype: str | None = None) -> str:
        """Add an input; returns its name."""
        self.values[name] = Value(name, shape, dtype or self.dtype, role)
        self.inputs.append(name)
        return name

    def parameter(self, name: str, *shape: int) -> str:
        """Add an input that `finish` updates by its gradient; returns its name."""
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
        """Add an operator of one result without a derivative; returns the result's name."""
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
        """Add an operator of the table of rules (`rule_of`) without a derivative."""
        rule = rule_of(kind, tuple(map(self.shape, inputs)), (shape,), **attributes)
        return self.emit(kind, inputs, rule, flops, dtype)

    def record(self, made: str, *pullbacks: tuple[str, Pullback]) -> str:
        """Set the derivatives of a result by the operands of its operator; returns the result."""
        if trained := [(x, back) for x, back in pullbacks if x in self._trained]:
            self._trained.add(made)
            self._tape.append((made, trained))
        return made

    def einsum(self, formula: str, *inputs: str) -> str:
        """Add a contraction."""
        left, _, result = formula.partition("->")
        words = left.split(",")

        def pullback(i: int) -> Pullback:
            others = [k for k in range(len(words)) if k != i]
            backward = ",".join([result, *(words[k] for k in others)]) + f"->{words[i]}"
            return lambda g: self._contract(backward, (g, *(inputs[k] for k in others)))

        product = self._contract(formula, inputs)
        return self.record(product, *((x, pullback(i)) for i, x in enumerate(inputs)))

    def add(self, x: str, y: str) -> str:
        """Add `x + y`, with `y` broadcast."""
        result = self.pointwise("add", SUM, x, y)
        return self.record(result, (x, lambda g: g), (y, lambda g: self._sum_to(g, y)))

    def sub(self, x: str, y: str) -> str:
        """Add `x - y`, with `y` broadcast."""
        return self.record(
            self.pointwise("sub", SUM, x, y),
            (x, lambda g: g),
            (y, lambda g: self._sum_to(self.pointwise("neg", FIRST, g), y)),
        )

    def mul(self, x: str, y: str) -> str:
        """Add `x * y`, with `y` broadcast."""
        return self.record(
            self.pointwise("mul", PRODUCT, x, y),
            (x, lambda g: self.pointwise("mul", PRODUCT, g, y)),
            (y, lambda g: self._sum_to(self.pointwise("mul", PRODUCT, g, x), y)),
        )

    def linear(self, kind: str, x: str) -> str:
        """Add a linear function of one value, element by element: `neg`, `mul_const`."""
        result = self.pointwise(kind, FIRST, x)
        return self.record(result, (x, lambda g: self.pointwise(kind, FIRST, g)))

    def unary(self, kind: str, x: str) -> str:
        """Add a nonlinear function of one value, element by element."""
        result = self.pointwise(kind, (), x)
        return self.record(result, (x, lambda g: self.pointwise("derivative", FIRST, g, x)))

    def reduce(self, x: str, dim: int) -> str:
        """Add the sum over a dim, which remains with size 1."""
        shape = self.shape(x)
        rule = reduction(shape, (dim,), keepdims=True)
        back = broadcast(rule.result_shapes[0], shape, tuple(range(len(shape))))
        result = self.emit("reduce_sum", (x,), rule, float(math.prod(shape)))
        return self.record(result, (x, lambda g: self.emit("broadcast", (g,), back)))

    def mean(self, x: str) -> str:
        """Add the mean of all elements, one dim at a time; every dim remains with size 1."""
        for dim in reversed(range(len(self.shape(x)))):
            x = self.reduce(x, dim)
        return self.linear("mul_const", x)

    def broadcast(self, x: str, *shape: int) -> str:
        """Add `x` broadcast to a shape, aligned at the last dim as in numpy."""
        before = self.shape(x)
        rule = broadcast(before, shape, tuple(range(len(shape) - len(before), len(shape))))
        result = self.emit("broadcast", (x,), rule, dtype=self.values[x].dtype)
        return self.record(result, (x, lambda g: self._sum_to(g, x)))

    def reshape(self, x: str, *shape: int) -> str:
        """Add a reshape."""
        forward, back = reshape(self.shape(x), shape), reshape(shape, self.shape(x))
        result = self.emit("reshape", (x,), forward)
        return self.record(result, (x, lambda g: self.emit("reshape", (g,), back)))

    def transpose(self, x: str, *permutation: int) -> str:
        """Add a transpose."""
        forward = transpose(self.shape(x), permutation)
        inverse = tuple(permutation.index(dim) for dim in range(len(permutation)))
        back = transpose(forward.result_shapes[0], inverse)
        result = self.emit("transpose", (x,), forward)
        return self.record(result, (x, lambda g: self.emit("transpose", (g,), back)))

    def lookup(self, table: str, ids: str) -> str:
        """Add the rows of `table` (v, d) for `ids` (b, t); as a one-hot product, rows may split."""
        rows, indices = self.shape(table), self.shape(ids)
        result = self.apply("embedding", (*indices, rows[1]), table, ids)
        gradient = (table, lambda g: self.apply("embedding_gradient", rows, g, ids))
        return self.record(result, gradient)

    def pointwise(self, kind: str, linear: Linear, x: str, *others: str) -> str:
        """Add an operator on corresponding elements, of `x`'s shape and without a derivative."""
        inputs = (x, *others)
        shapes = tuple(map(self.shape, inputs))
        rule = elementwise(shapes, shapes[0], linear)
        return self.emit(kind, inputs, rule, float(math.prod(shapes[0])))

    def backward(self, loss: str) -> dict[str, str]:
        """Differentiate a value; returns the gradient of each value that it depends on.

        With microbatches, each parameter's gradient is added to the sum over earlier microbatches
        as soon as it is computed: the sum may be split more than the gradient (stage 2 of ZeRO).
        """
        self.phase = BACKWARD
        gradients = {loss: self.pointwise("ones_like", (), loss)}
        accumulates = self.phases[BACKWARD].repeats > 1
        first_use = {x: result for result, pullbacks in reversed(self._tape) for x, _ in pullbacks}
        for result, pullbacks in reversed(self._tape):
            if result not in gradients:
                continue
            for x, pullback in pullbacks:
                gradient = pullback(gradients[result])
                if x in gradients:
                    gradient = self.pointwise("add_any", SUM, gradients[x], gradient)
                gradients[x] = gradient
            for x in dict(pullbacks):
                if accumulates and x in self.inputs and first_use[x] == result:
                    gradients[x] = self.pointwise("accumulate", FIRST, gradients[x])
        return gradients

    def finish(self, loss: str, optimizer: Optimizer = "adam") -> Graph:
        """Add backward and the update of every parameter; returns the graph."""
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
        """The graph of all that has been added so far."""
        return Graph(
            self.phases,
            tuple(self.values.values()),
            tuple(self.operators),
            tuple(self.inputs),
            tuple(self.outputs),
        )

    def _adam(self, name: str, g: str) -> str:
        """The update that Adam with decoupled weight decay subtracts (Loshchilov, Hutter, 2019)."""
        shape = self.shape(name)
        m = self.input(f"{name}_m", *shape, role="optimizer_state")
        v = self.input(f"{name}_v", *shape, role="optimizer_state")

        def scaled(x: str) -> str:
            return self.pointwise("mul_const", FIRST, x)

        new_m = self.pointwise("add", SUM, scaled(m), scaled(g))
        square = self.pointwise("mul", PRODUCT, g, g)
        new_v = self.pointwise("add", SUM, scaled(v), scaled(square))
        # scaled again, since Adam corrects the bias of moments that start at zero
        root = self.pointwise("rsqrt", (), scaled(new_v))
        step = self.pointwise("mul", PRODUCT, scaled(new_m), root)
        self.outputs += [Output(new_m, m), Output(new_v, v)]
        return self.pointwise("add", SUM, step, scaled(name))

    def _contract(self, formula: str, inputs: tuple[str, ...]) -> str:
        rule = einsum(formula, *map(self.shape, inputs))
        flops = 2.0 * math.prod(factor.size for factor in rule.factors)
        return self.emit("einsum", inputs, rule, flops)

    def _sum_to(self, gradient: str, value: str) -> str:
        """Sum a gradient over the dims along which its value was broadcast."""
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
    """FLOP of one step: of all operators, in all repeats of their phases."""
    return sum(
        operator.flops * graph.phases[operator.phase].repeats for operator in graph.operators
    )


def join_phases(graph: Graph) -> Graph:
    """The same program, with consecutive phases of equal repeats joined into one.

    Backward can then use forward's conversions, which is right if one mesh runs both.

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
