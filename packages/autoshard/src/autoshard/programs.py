"""Training steps written as graphs, to plan, test and measure with."""

from __future__ import annotations

import math

from autoshard.graph import Graph, Operator, Output, Phase, Role, Value
from autoshard.rule import (
    Rule,
    broadcast,
    einsum,
    elementwise,
    labelled,
    reduction,
    reshape,
    transpose,
)

FORWARD, BACKWARD, APPLY = range(3)


class Program:
    """Writes a training step operator by operator, and differentiates it.

    Only what the backward pass needs is modelled: which values each operator reads and makes, with
    the rules and FLOP of the real ones.
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
        self._tape: list[tuple[str, tuple[str, ...], str, object]] = []

    def input(self, name: str, *shape: int, role: Role = "batch", dtype: str | None = None) -> str:
        """A new input."""
        self.values[name] = Value(name, shape, dtype or self.dtype, role)
        self.inputs.append(name)
        return name

    def parameter(self, name: str, *shape: int) -> str:
        """A new input that `finish` updates by its gradient."""
        return self.input(name, *shape, role="parameter")

    def shape(self, name: str) -> tuple[int, ...]:
        """A value's shape."""
        return self.values[name].shape

    def emit(self, kind: str, inputs: tuple[str, ...], rule: Rule, flops: float = 0.0) -> str:
        """An operator with one result; returns the result's name."""
        name = f"{kind}_{len(self.operators)}"
        self.values[name] = Value(name, rule.result_shapes[0], self.dtype)
        self.operators.append(Operator(name, kind, inputs, (name,), rule, flops, self.phase))
        return name

    def einsum(self, formula: str, *inputs: str) -> str:
        """A contraction."""
        rule = einsum(formula, *map(self.shape, inputs))
        flops = 2.0 * math.prod(factor.size for factor in rule.factors)
        return self._record("einsum", inputs, self.emit("einsum", inputs, rule, flops), formula)

    def add(self, x: str, y: str) -> str:
        """`x + y` with `y` broadcast."""
        return self._record("add", (x, y), self._pointwise("add", (x, y), ((0, 1),)), None)

    def mul(self, x: str, y: str) -> str:
        """`x * y` with `y` broadcast."""
        return self._record("mul", (x, y), self._pointwise("mul", (x, y), ((0,), (1,))), None)

    def unary(self, kind: str, x: str) -> str:
        """A nonlinear function of one value."""
        return self._record("unary", (x,), self._pointwise(kind, (x,), ()), None)

    def reduce(self, x: str, dim: int) -> str:
        """The sum over a dim, which is kept with size 1."""
        rule = reduction(self.shape(x), (dim,), keepdims=True)
        return self._record("reduce", (x,), self.emit("reduce_sum", (x,), rule), None)

    def reshape(self, x: str, *shape: int) -> str:
        """Regroup the dims."""
        made = self.emit("reshape", (x,), reshape(self.shape(x), shape))
        return self._record("reshape", (x,), made, None)

    def transpose(self, x: str, *permutation: int) -> str:
        """Reorder the dims."""
        made = self.emit("transpose", (x,), transpose(self.shape(x), permutation))
        return self._record("transpose", (x,), made, permutation)

    def lookup(self, table: str, ids: str) -> str:
        """Rows of `table` (v, d) for `ids` (b, t): a one-hot product, so the rows can be split."""
        v, d = self.shape(table)
        b, t = self.shape(ids)
        rule = labelled("vd,bt->btd", ((v, d), (b, t)), ((b, t, d),), linear=((0,),))
        return self._record("lookup", (table, ids), self.emit("gather", (table, ids), rule), None)

    def backward(self, loss: str) -> dict[str, str]:
        """Differentiate a value; returns the gradient of each value it depends on."""
        self.phase = BACKWARD
        gradients = {loss: self._pointwise("ones_like", (loss,), ())}

        def accumulate(name: str, gradient: str) -> None:
            if name in gradients:
                gradient = self._pointwise("add_any", (gradients[name], gradient), ((0, 1),))
            gradients[name] = gradient

        for kind, inputs, made, detail in reversed(self._tape):
            if made not in gradients:
                continue
            g = gradients[made]
            match kind:
                case "einsum":
                    left, _, result = str(detail).partition("->")
                    words = left.split(",")
                    for i, word in enumerate(words):
                        others = [k for k in range(len(words)) if k != i]
                        formula = ",".join([result, *(words[k] for k in others)]) + f"->{word}"
                        operands = (g, *(inputs[k] for k in others))
                        rule = einsum(formula, *map(self.shape, operands))
                        flops = 2.0 * math.prod(factor.size for factor in rule.factors)
                        accumulate(inputs[i], self.emit("einsum", operands, rule, flops))
                case "add":
                    for name in inputs:
                        accumulate(name, self._unbroadcast(g, self.shape(name)))
                case "mul":
                    for name, other in zip(inputs, reversed(inputs), strict=True):
                        product = self._pointwise("mul", (g, other), ((0,), (1,)))
                        accumulate(name, self._unbroadcast(product, self.shape(name)))
                case "unary":
                    accumulate(inputs[0], self._pointwise("derivative", (g, inputs[0]), ((0,),)))
                case "reduce":
                    shape = self.shape(inputs[0])
                    rule = broadcast(self.shape(g), shape, tuple(range(len(shape))))
                    accumulate(inputs[0], self.emit("broadcast", (g,), rule))
                case "reshape":
                    rule = reshape(self.shape(g), self.shape(inputs[0]))
                    accumulate(inputs[0], self.emit("reshape", (g,), rule))
                case "transpose":
                    assert isinstance(detail, tuple)
                    inverse = tuple(detail.index(d) for d in range(len(detail)))
                    rule = transpose(self.shape(g), inverse)
                    accumulate(inputs[0], self.emit("transpose", (g,), rule))
                case "lookup":
                    (v, d), (b, t) = map(self.shape, inputs)
                    rule = labelled("btd,bt->vd", ((b, t, d), (b, t)), ((v, d),), linear=((0,),))
                    accumulate(inputs[0], self.emit("scatter_add", (g, inputs[1]), rule))
        return gradients

    def finish(self, loss: str) -> Graph:
        """Add backward and an Adam update of every parameter, and close the graph."""
        gradients = self.backward(loss)
        self.phase = APPLY
        self.outputs.append(Output(loss, whole=True))
        parameters = [n for n in self.inputs if self.values[n].role == "parameter"]
        for name in parameters:
            g, shape = gradients[name], self.shape(name)
            m = self.input(f"{name}_m", *shape, role="optimizer_state")
            v = self.input(f"{name}_v", *shape, role="optimizer_state")
            decayed = self._pointwise("mul_const", (m,), ((0,),))
            scaled = self._pointwise("mul_const", (g,), ((0,),))
            new_m = self._pointwise("add", (decayed, scaled), ((0, 1),))
            square = self._pointwise("mul", (g, g), ((0,), (1,)))
            slow = self._pointwise("mul_const", (square,), ((0,),))
            decayed_v = self._pointwise("mul_const", (v,), ((0,),))
            new_v = self._pointwise("add", (decayed_v, slow), ((0, 1),))
            root = self._pointwise("rsqrt", (new_v,), ())
            update = self._pointwise("mul", (new_m, root), ((0,), (1,)))
            shrunk = self._pointwise("mul_const", (name,), ((0,),))
            update = self._pointwise("add", (update, shrunk), ((0, 1),))
            new = self._pointwise("sub", (name, update), ((0, 1),))
            self.outputs += [Output(new, name), Output(new_m, m), Output(new_v, v)]
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

    def _record(self, kind: str, inputs: tuple[str, ...], made: str, detail: object) -> str:
        self._tape.append((kind, inputs, made, detail))
        return made

    def _pointwise(
        self, kind: str, inputs: tuple[str, ...], linear: tuple[tuple[int, ...], ...]
    ) -> str:
        shapes = tuple(map(self.shape, inputs))
        rule = elementwise(shapes, shapes[0], linear)
        return self.emit(kind, inputs, rule, float(math.prod(shapes[0])))

    def _unbroadcast(self, gradient: str, shape: tuple[int, ...]) -> str:
        """Sum a gradient over the dims that its value was broadcast along."""
        full = self.shape(gradient)
        skipped = len(full) - len(shape)
        dims = tuple(d for d in range(len(full)) if d < skipped or shape[d - skipped] != full[d])
        if dims:
            gradient = self.emit("reduce_sum", (gradient,), reduction(full, dims))
        if self.shape(gradient) != shape:
            gradient = self.emit("reshape", (gradient,), reshape(self.shape(gradient), shape))
        return gradient


def mlp_step(
    *, batch: int, width: int, hidden: int, microbatches: int = 1, dtype: str = "float32"
) -> Graph:
    """A training step of `gelu(x @ w1) @ w2` with Adam."""
    program = Program(microbatches=microbatches, dtype=dtype)
    x = program.input("x", batch, width)
    w1, w2 = program.parameter("w1", width, hidden), program.parameter("w2", hidden, width)
    hidden_value = program.unary("gelu", program.einsum("bd,dh->bh", x, w1))
    y = program.einsum("bh,hd->bd", hidden_value, w2)
    return program.finish(program.reduce(program.reduce(program.mul(y, y), 0), 1))


def gpt_step(
    *,
    n_layers: int,
    batch: int,
    length: int,
    width: int,
    heads: int,
    vocabulary: int,
    microbatches: int = 1,
) -> Graph:
    """A training step of a GPT with layer norms, biases and Adam, one operator a primitive."""
    p = Program(microbatches=microbatches)
    ids = p.input("ids", batch, length, dtype="int32")
    x = p.lookup(p.parameter("embedding", vocabulary, width), ids)
    x = p.add(x, p.parameter("positions", length, width))

    def norm(x: str, name: str) -> str:
        centred = p.add(x, p.reduce(x, 2))
        spread = p.unary("rsqrt", p.reduce(p.mul(centred, centred), 2))
        scaled = p.mul(p.mul(centred, spread), p.parameter(f"{name}_scale", width))
        return p.add(scaled, p.parameter(f"{name}_shift", width))

    def dense(x: str, name: str, n: int, m: int) -> str:
        return p.add(
            p.einsum("btd,de->bte", x, p.parameter(f"{name}_w", n, m)), p.parameter(f"{name}_b", m)
        )

    def split(x: str) -> str:
        return p.transpose(p.reshape(x, batch, length, heads, width // heads), 0, 2, 1, 3)

    for layer in range(n_layers):
        h = norm(x, f"{layer}_norm1")
        q, k, v = (split(dense(h, f"{layer}_{n}", width, width)) for n in "qkv")
        scores = p.einsum("bhqe,bhke->bhqk", q, k)
        weights = p.unary("exp", scores)
        weights = p.mul(weights, p.unary("reciprocal", p.reduce(weights, 3)))
        mixed = p.transpose(p.einsum("bhqk,bhke->bhqe", weights, v), 0, 2, 1, 3)
        mixed = p.reshape(mixed, batch, length, width)
        x = p.add(x, dense(mixed, f"{layer}_out", width, width))
        h = p.unary("gelu", dense(norm(x, f"{layer}_norm2"), f"{layer}_up", width, 4 * width))
        x = p.add(x, dense(h, f"{layer}_down", 4 * width, width))
    logits = p.einsum("btd,vd->btv", norm(x, "last"), "embedding")
    total = p.unary("log", p.reduce(p.unary("exp", logits), 2))
    return p.finish(p.reduce(p.reduce(p.reduce(total, 2), 1), 0))
