"""Small training steps for tests, each with something that is hard to plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st
from jax import lax

from frontends.jax.base import _compat
from frontends.jax.trace.trace import Trace, trace
from frontends.models import gpt
from frontends.step.step import APPLY, BACKWARD, FORWARD, IDENTITY

_EXAMPLES = 8
"""Examples in a batch: cut into two microbatches, four devices still get one example each."""

_EPSILON = 1e-2
"""Adam's epsilon. Adam divides a gradient by its magnitude: unless epsilon is far above the
rounding, a gradient that is zero up to rounding becomes an update as large as any other. Then one
device and many would differ by whole updates without an error in either."""


@dataclass(frozen=True)
class Example:
    """A training step `(params, opt_state, batch) -> (params, opt_state, loss)`, with arguments."""

    function: Callable[..., Any]
    params: Any
    opt_state: Any
    batch: Any

    @property
    def arguments(self) -> tuple[Any, Any, Any]:
        """What the step is called with."""
        return self.params, self.opt_state, self.batch

    def trace(self, microbatches: int = 2) -> Trace:
        """The step as the planner sees it."""
        return trace(self.function, self.arguments, batch_argnums=(2,), microbatches=microbatches)


def _example(
    loss: Callable[..., Any], params: Any, optimizer: optax.GradientTransformation, batch: Any
) -> Example:
    def step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, Any]:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return Example(step, params, optimizer.init(params), batch)


def _numbers(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape, scale=0.5), jnp.float32)


def mlp(optimizer: optax.GradientTransformation | None = None, width: int = 8) -> Example:
    """Four equal layers, with a loss that is a mean over the batch."""
    rng = np.random.default_rng(0)
    params = [{"w": _numbers(rng, width, width), "b": _numbers(rng, width)} for _ in range(4)]

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for layer in params:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return jnp.mean((x - batch["y"]) ** 2)

    batch = {name: np.asarray(_numbers(rng, _EXAMPLES, width)) for name in ("x", "y")}
    return _example(loss, params, optimizer or optax.sgd(0.1), batch)


def skip() -> Example:
    """The last layer reads the output of the first one again: a value that skips stages."""
    rng = np.random.default_rng(1)
    params = [_numbers(rng, 8, 8) for _ in range(4)]

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        first = jnp.tanh(x @ params[0])
        x = jnp.tanh(first @ params[1])
        x = jnp.tanh(x @ params[2])
        return jnp.mean(((x + first) @ params[3] - y) ** 2)

    batch = tuple(np.asarray(_numbers(rng, _EXAMPLES, 8)) for _ in range(2))
    return _example(loss, params, optax.sgd(0.1), batch)


def tied() -> Example:
    """An embedding that is also the output layer: the first and last stage share a parameter."""
    rng = np.random.default_rng(2)
    params = {"embedding": _numbers(rng, 16, 8), "hidden": [_numbers(rng, 8, 8) for _ in range(3)]}

    def loss(params: Any, batch: Any) -> Any:
        tokens, targets = batch
        x = params["embedding"][tokens]
        for weight in params["hidden"]:
            x = x + jnp.tanh(x @ weight)
        logits = x @ params["embedding"].T
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))

    batch = tuple(rng.integers(0, 16, (_EXAMPLES, 4)).astype(np.int32) for _ in range(2))
    return _example(loss, params, optax.sgd(0.1), batch)


def adamw() -> Example:
    """An optimizer with a schedule and state for each parameter."""
    return mlp(optax.adamw(optax.linear_schedule(1e-2, 1e-3, 10), eps=_EPSILON))


def clipped() -> Example:
    """An update that needs the norm of all gradients: in apply, all stages wait for each other."""
    return mlp(optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2, eps=_EPSILON)))


def small_gpt(n_layers: int = 1, width: int = 16, sequence: int = 8) -> Example:
    """The demo's GPT, by default as small as possible."""
    config = gpt.GPTConfig(n_layers=n_layers, d_model=width, n_heads=4, sequence=sequence)
    rng = np.random.default_rng(3)
    params = gpt.init(jax.random.key(0), config)
    optimizer = optax.sgd(0.1)
    shape = (_EXAMPLES, sequence)
    tokens = [rng.integers(0, gpt.VOCABULARY, shape).astype(np.int32) for _ in range(2)]
    step = gpt.make_train_step(config, optimizer)
    return Example(step, params, optimizer.init(params), tuple(tokens))


EXAMPLES: dict[str, Callable[[], Example]] = {
    "mlp": mlp,
    "skip": skip,
    "tied": tied,
    "adamw": adamw,
    "clipped": clipped,
    "gpt": small_gpt,
}


_OPERATIONS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "tanh": ("r", "r", lambda r, b: jnp.tanh(r)),
    "product": ("rr", "r", lambda r, s, b: r * s),
    "difference": ("rr", "r", lambda r, s, b: r - s),
    "times matrix": ("rm", "r", lambda r, m, b: r @ m),
    "plus row of matrix": ("rm", "r", lambda r, m, b: r + m[0]),
    "times scalar": ("rs", "r", lambda r, s, b: r * s),
    "softmax": ("r", "r", lambda r, b: jax.nn.softmax(r, 1)),
    "where": ("rr", "r", lambda r, s, b: jnp.where(b["token"][:, None] > 1, r, s)),
    "lookup": ("m", "r", lambda m, b: m[b["token"]]),
    "along": ("r", "r", lambda r, b: r * jnp.take_along_axis(r, b["token"][:, None], 1)),
    "cumulative": ("r", "r", lambda r, b: jnp.cumsum(r, 1)),
    "cumulative over examples": ("r", "r", lambda r, b: jnp.cumsum(r, 0)),
    "reversed": ("r", "r", lambda r, b: r[::-1]),
    "reversed within": ("r", "r", lambda r, b: r[:, ::-1]),
    "rolled": ("r", "r", lambda r, b: jnp.roll(r, 1, 0)),
    "sorted": ("r", "r", lambda r, b: jnp.sort(r, 0)),
    "reshaped": ("r", "r", lambda r, b: jnp.tanh(r.reshape(-1)).reshape(r.shape)),
    "transposed": ("r", "r", lambda r, b: jnp.tanh(r.T.reshape(-1)).reshape(4, -1).T),
    "centred": ("r", "r", lambda r, b: r - r.mean(0)),
    "centred within": ("r", "r", lambda r, b: r - r.mean(1, keepdims=True)),
    "first example": ("r", "r", lambda r, b: r * r[0]),
    "by token": ("r", "r", lambda r, b: r[b["token"]]),
    "position": ("r", "r", lambda r, b: r * jnp.arange(len(r))[:, None]),
    "share": ("r", "r", lambda r, b: r / len(r)),
    "gram": ("rr", "m", lambda r, s, b: r.T @ s),
    "histogram": ("r", "m", lambda r, b: jnp.zeros((4, 4)).at[b["token"]].add(r)),
    "histogram on top": ("rm", "m", lambda r, m, b: m.at[b["token"]].add(r)),
    "tanh of matrix": ("m", "m", lambda m, b: jnp.tanh(m)),
    "sum of matrices": ("mm", "m", lambda m, n, b: m + n),
    "product of matrices": ("mm", "m", lambda m, n, b: m @ n),
    "scaled matrix": ("ms", "m", lambda m, s, b: m * s),
    "sum": ("r", "s", lambda r, b: r.sum()),
    "mean": ("r", "s", lambda r, b: r.mean()),
    "maximum": ("r", "s", lambda r, b: r.max()),
    "sum of matrix": ("m", "s", lambda m, b: m.sum()),
    "sum of scalars": ("ss", "s", lambda s, t, b: s + t),
    "product of scalars": ("ss", "s", lambda s, t, b: s * t),
    "offset": ("s", "s", lambda s, b: s + 1.0),
    "sine": ("s", "s", lambda s, b: jnp.sin(s)),
}
"""The operations of random steps: kinds of the operands, kind of the result, and the function,
whose last operand is the batch. Each row of kind `r` belongs to an example; matrices (`m`) and
scalars (`s`) belong to none."""


@st.composite
def steps(
    draw: st.DrawFn, max_operations: int = 5, only: Collection[str] = tuple(_OPERATIONS)
) -> tuple[Callable[[Any, Any], Any], tuple[Any, Any]]:
    """A random step `(weights, batch) -> (weights, results)` and arguments for it.

    Many of them mix examples, so that they run only in one microbatch. Some do not train: they
    evaluate, and return the loss in place of weights.

    Args:
        draw: Hypothesis's.
        max_operations: The largest number of operations.
        only: Which operations there may be.
    """
    n_arrays = {"r": 1, "m": 1, "s": 0}
    program = []
    for _ in range(draw(st.integers(1, max_operations))):
        possible = [
            name
            for name, (reads, _, _) in _OPERATIONS.items()
            if name in only and all(n_arrays[kind] for kind in reads)
        ]
        name = draw(st.sampled_from(possible))
        reads, kind, _ = _OPERATIONS[name]
        program.append((name, [draw(st.integers(0, n_arrays[k] - 1)) for k in reads]))
        n_arrays[kind] += 1

    def loss(w: Any, batch: Any) -> Any:
        arrays: dict[str, list[Any]] = {"r": [batch["x"] @ w], "m": [w], "s": []}
        for name, operands in program:
            reads, kind, function = _OPERATIONS[name]
            values = [arrays[k][i] for k, i in zip(reads, operands, strict=True)]
            arrays[kind].append(function(*values, batch))
        last = arrays[_OPERATIONS[program[-1][0]][1]][-1]
        return jnp.sum(last) + jnp.mean(arrays["r"][0]), [*arrays["m"][1:], *arrays["s"]]

    def step(w: Any, batch: Any) -> Any:
        results, gradient = jax.value_and_grad(loss, has_aux=True)(w, batch)
        return w - gradient, results

    trains = draw(st.sampled_from((True, True, True, False)))
    rng = np.random.default_rng(4)
    tokens = (np.arange(_EXAMPLES) % 3).astype(np.int32)
    batch = {"x": np.asarray(_numbers(rng, _EXAMPLES, 4)), "token": tokens}
    return step if trains else loss, (_numbers(rng, 4, 4), batch)


_SCANS = ("scan", "reversed", "unrolled", "nested", "rows")
"""How a step goes through its layers: `rows` takes their weights by their number."""


def _through_layers(how: str, x: Any, layers: Any, axis: int) -> Any:
    """What layers make of x, one after another; weights are stacked in this axis."""

    def layer(x: Any, p: Any) -> tuple[Any, None]:
        return x + jnp.tanh(x @ p["w"] + p["b"]) * p["scale"], None

    stacked = {name: jnp.moveaxis(a, axis if a.ndim > 1 else 0, 0) for name, a in layers.items()}
    n = stacked["w"].shape[0]
    if how == "rows":
        for i in range(n):
            x, _ = layer(x, {name: a[i] for name, a in stacked.items()})
        return x
    if how == "nested":
        groups = {name: a.reshape(n // 2, 2, *a.shape[1:]) for name, a in stacked.items()}
        group: Any = jax.checkpoint(lambda x, g: lax.scan(layer, x, g))
        return lax.scan(group, x, groups)[0]
    return lax.scan(layer, x, stacked, reverse=how == "reversed", unroll=1 + (how == "unrolled"))[0]


@st.composite
def stacked_steps(draw: st.DrawFn) -> Example:
    """A random step of layers whose weights, and what the optimizer keeps of them, are stacked."""
    how, axis = draw(st.sampled_from(_SCANS)), draw(st.integers(0, 1))
    n = 4 if how == "nested" else draw(st.integers(2, 4))
    names = ("adamw", "sgd", "momentum", "adafactor", "lamb", "nesterov", "clipped", "half")
    name = draw(st.sampled_from(names))
    cast = draw(st.booleans())
    reads = draw(st.sampled_from(("nothing", "norms", "row", "whole")))
    optimizer = {
        "adamw": optax.adamw(0.1, eps=_EPSILON),
        "sgd": optax.sgd(0.1),
        "momentum": optax.sgd(0.1, momentum=0.9),
        "adafactor": optax.adafactor(0.1, min_dim_size_to_factor=4),
        "lamb": optax.lamb(0.1, eps=_EPSILON),
        "nesterov": optax.sgd(0.1, momentum=0.5, nesterov=True),
        "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.1, eps=_EPSILON)),
        "half": optax.adam(0.1, eps=_EPSILON, mu_dtype=jnp.bfloat16),
    }[name]
    rng = np.random.default_rng(3)
    shapes = {"w": (8, 8), "b": (8,), "scale": ()}
    layers = {
        of: jnp.moveaxis(_numbers(rng, n, *shape), 0, axis if shape else 0)
        for of, shape in shapes.items()
    }
    params = {"layers": layers, "head": _numbers(rng, 8, 8)}

    def loss(params: Any, batch: Any) -> Any:
        layers = params["layers"]
        if cast:
            layers = jax.tree.map(lambda a: 2 * a.astype(jnp.float32), layers)
        out = _through_layers(how, batch @ params["head"], layers, axis) @ params["head"]
        read = {
            "nothing": jnp.zeros(()),
            "norms": layers["w"],
            "row": lax.index_in_dim(layers["b"], 0, axis),
            "whole": lax.cumsum(layers["b"], axis),
        }[reads]
        return jnp.mean(out**2) + 1e-3 * jnp.sum(read**2)

    return _example(loss, params, optimizer, _numbers(rng, _EXAMPLES, 8))


def sgd(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of plain gradient descent on a loss."""

    def step(w: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value

    return step


def run_in_microbatches(traced: Trace, arguments: Sequence[Any]) -> list[Any]:
    """Run a step's graph on one device without a plan: compute per microbatch, apply on the sums.

    Args:
        traced: The traced step.
        arguments: The arguments of the step.

    Returns:
        The leaves of what the step returns.
    """
    leaves = dict(zip([a.name for a in traced.arguments], traced.flatten(arguments), strict=True))
    results = jax.jit(partial(_run_in_microbatches, traced))(leaves)
    return jax.tree.leaves(traced.unflatten(results))


def _run_in_microbatches(traced: Trace, leaves: dict[str, Any]) -> list[Any]:
    graph, microbatches = traced.step.graph, traced.step.microbatches
    batch = [a.name for a in traced.arguments if a.is_batch]
    leaves.update((name, leaves[name][np.asarray(rows)]) for name, rows in traced.rows.items())
    state = {name: jnp.asarray(leaf) for name, leaf in leaves.items() if name not in batch}
    state.update(traced.constants)

    def run(phases: tuple[int, ...], values: dict[str, Any]) -> None:
        for operator in graph.operators:
            if operator.phase not in phases:
                continue
            if operator.kind == IDENTITY:
                values[operator.outputs[0]] = values[operator.inputs[0]]
                continue
            equation = traced.equations[operator.name]
            operands = [
                values[operand] if isinstance(operand, str) else operand
                for operand in traced.operands[operator.name]
            ]
            results = _compat.bind(equation, operands, dict(equation.params))
            values.update(zip(operator.outputs, results, strict=True))

    totals: dict[str, Any] = {}
    for m in range(microbatches):
        values = dict(state)
        for name in batch:
            values[name] = jnp.split(leaves[name], microbatches)[m]
        run((FORWARD, BACKWARD), values)
        for name in traced.step.summed:
            totals[name] = totals[name] + values[name] if name in totals else values[name]
    values.update(totals)
    for name in batch:
        del values[name]
    run((APPLY,), values)
    return [values[r] if isinstance(r, str) else r for r in traced.results]


def assert_same(
    ours: Sequence[Any], theirs: Any, tolerance: float = 1e-5, least: float = 1e-30
) -> None:
    """Check that leaves are equal up to rounding.

    Args:
        ours: Leaves.
        theirs: A tree with as many leaves.
        tolerance: The largest difference, relative to the largest number of a leaf or to `least`.
        least: Numbers smaller than this count as this large.

    Raises:
        AssertionError: They are not equal.
    """
    for a, b in zip(ours, jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        scale = max(np.abs(b).max(initial=0.0), least)
        assert np.abs(a - b).max(initial=0.0) <= tolerance * scale
