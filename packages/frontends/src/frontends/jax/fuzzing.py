"""Random training programs like those that people write, compared call by call with `jax.jit`.

A program is data: the container of its parameters, the blocks of its model, its loss, its optimizer
and what changes from call to call. So a failure is one line that can be kept as a test.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from costmodel import Cluster
from hypothesis import strategies as st
from jax import lax

from frontends.errors import FrontendsError, InternalError, RunError
from frontends.jax.api.parallel import parallelize
from frontends.jax.base import _compat
from frontends.jax.base.loops import MOST_ITERATIONS
from frontends.jax.testing import assert_same
from frontends.search.plan_options import Strategy

WIDTH = 4
CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)

_LEAST = 1e-3
"""Numbers are compared relative to the largest number of a leaf, or to this if it is larger."""

_EXPLODED = 1e3
"""A program with a number of this size has exploded. Its functions are saturated, so that nudged
state gives the same results, while rounding errors, such as those of `1 - tanh(x) ** 2`, are
multiplied by factors of this size."""


@dataclass(frozen=True)
class ProgramCall:
    """What changes from call to call of a program."""

    rows: int = 8
    scale: float | int | bool = 1.0
    """A number that is passed beside the batch."""

    mode: str = "tanh"
    """A static argument."""

    dtype: str = "float32"
    """The dtype of the examples."""

    has_mask: bool = True
    """Whether the batch has a mask, or None in its place."""


@dataclass(frozen=True)
class TrainingProgram:
    """A training program and its calls."""

    blocks: tuple[str, ...] = ("linear",)
    container: str = "dict"
    """The kind of tree that the parameters are in."""

    batch: str = "dict"
    """The kind of tree that the batch is."""

    loss: str = "mean"
    optimizer: str = "sgd"
    key: str = "typed"
    """Whether random keys are typed or raw."""

    extras: tuple[str, ...] = ()
    """What else the step keeps, returns or does."""

    strategy: Strategy = "auto"
    microbatches: int | None = None
    donate: bool = False
    calls: tuple[ProgramCall, ...] = (ProgramCall(),)


class NamedParameters(NamedTuple):
    """Parameters by name, one of which is None."""

    first: Any
    rest: Any
    none: Any = None


@jax.tree_util.register_dataclass
@dataclass
class Record:
    """Parameters and a static value."""

    params: Any
    n: int = field(default=3, metadata={"static": True})


_CONTAINERS: dict[str, tuple[Callable[[list[Any]], Any], Callable[[Any], list[Any]]]] = {
    "list": (lambda ps: list(ps), lambda t: list(t)),
    "dict": (
        lambda ps: {"b": ps[:1], "a": None, "z": [{"w": p} for p in ps[1:]]},
        lambda t: [*t["b"], *(each["w"] for each in t["z"])],
    ),
    "named": (
        lambda ps: NamedParameters(ps[0], tuple(ps[1:])),
        lambda t: [t.first, *t.rest],
    ),
    "dataclass": (lambda ps: Record(tuple(ps)), lambda t: list(t.params)),
}


@dataclass(frozen=True)
class _Context:
    """What blocks read besides their own parameters."""

    key: Any
    count: Any
    activation: Callable[[Any], Any]


Block = tuple[tuple[tuple[int, ...], ...], Callable[[Any, Sequence[Any], _Context], Any]]
_W = (WIDTH, WIDTH)


def _associative(x: Any, ps: Sequence[Any], c: _Context, axis: int = 1) -> Any:
    gates = jax.nn.sigmoid(x @ ps[0]), x @ ps[1]
    _, states = lax.associative_scan(
        lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), gates, axis=axis
    )
    return states


def _scan_rows(x: Any, ps: Sequence[Any], c: _Context) -> Any:
    def body(h: Any, column: Any) -> Any:
        h = jnp.tanh(h * ps[0][0] + column[:, None] * ps[0][1])
        return h, h.sum(1)

    _, ys = lax.scan(body, jnp.zeros_like(x), x.T)
    return ys.T


def _recurrent(x: Any, ps: Sequence[Any], c: _Context) -> Any:
    """A loop that is not written out, with a dropout of each example in each step.

    Of the examples it carries two values, of which neither is computed from the other.
    """

    def body(carry: Any, i: Any) -> Any:
        h, fading = carry
        kept = _keyed(jax.random.fold_in(c.key, i), x.shape)
        h = jnp.tanh(h @ ps[0] + jnp.where(kept, x, 0.0))
        return (h, 0.9 * jnp.sin(fading)), h.mean(1)

    (h, fading), means = lax.scan(body, (x, x[:, :1]), jnp.arange(MOST_ITERATIONS + 1))
    return h + fading + means.T[:, :1]


def _until_small(x: Any, ps: Sequence[Any], c: _Context) -> Any:
    """How often depends on the example."""

    def halved(row: Any) -> Any:
        return lax.while_loop(lambda r: jnp.abs(r).max() > 0.3, lambda r: r / 2, row)

    return x @ ps[0] * lax.stop_gradient(jax.vmap(halved)(x))


def _while(x: Any, ps: Sequence[Any], c: _Context) -> Any:
    size = lax.stop_gradient(jnp.abs(ps[0]).max()) + 0.1
    size = lax.while_loop(lambda s: s < 2.0, lambda s: s * 2.0, size)
    return x @ ps[0] / size


def _keyed(key: Any, shape: tuple[int, ...]) -> Any:
    return jax.random.bernoulli(key, 0.7, shape)


_BLOCKS: dict[str, Block] = {
    "linear": ((_W, (WIDTH,)), lambda x, ps, c: c.activation(x @ ps[0] + ps[1])),
    "residual": ((_W,), lambda x, ps, c: x + c.activation(x @ ps[0])),
    "layers": (
        ((2, *_W),),
        lambda x, ps, c: lax.scan(lambda h, w: (c.activation(h @ w), None), x, ps[0])[0],
    ),
    "columns": (((2, WIDTH),), _scan_rows),
    "cond": (
        (_W,),
        lambda x, ps, c: lax.cond(c.count % 2 == 0, lambda: x @ ps[0], lambda: x - x @ ps[0]),
    ),
    "cond on examples": (
        (_W,),
        lambda x, ps, c: lax.cond(jnp.mean(x) > 0, lambda: x @ ps[0], lambda: x),
    ),
    "switch": (
        (_W,),
        lambda x, ps, c: lax.switch(c.count % 3, [lambda y: y, jnp.tanh, jnp.sin], x @ ps[0]),
    ),
    "fori": (
        (_W,),
        lambda x, ps, c: lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ ps[0]) + i, x),
    ),
    "while": ((_W,), _while),
    "recurrent": ((_W,), _recurrent),
    "until small": ((_W,), _until_small),
    "associative": ((_W, _W), _associative),
    "associative over examples": ((_W, _W), lambda x, ps, c: _associative(x, ps, c, 0)),
    "empty": (
        ((0, WIDTH),),
        lambda x, ps, c: jnp.concatenate([x[:, :0], x[:, 2:], x[:, :2]], 1) + ps[0].sum(0),
    ),
    "dropout": (
        (_W,),
        lambda x, ps, c: jnp.where(_keyed(c.key, x.shape), x @ ps[0], 0.0) / 0.7,
    ),
    "noise": (((),), lambda x, ps, c: x + ps[0] * jax.random.normal(c.key, (WIDTH,))),
    "norm": (((WIDTH,),), lambda x, ps, c: ps[0] * x / jnp.sqrt((x**2).mean(1, keepdims=True) + 1)),
    "norm over examples": (((WIDTH,),), lambda x, ps, c: ps[0] * (x - x.mean(0))),
    "lookup": ((_W,), lambda x, ps, c: x + ps[0][(x[:, 0] > 0).astype(int)]),
    "tied": ((_W,), lambda x, ps, c: jnp.tanh(x @ ps[0]) @ ps[0].T),
    "remat": ((_W,), lambda x, ps, c: jax.checkpoint(lambda y, w: jnp.sin(y @ w))(x, ps[0])),
    "vmap": ((_W,), lambda x, ps, c: jax.vmap(lambda row: jnp.tanh(row @ ps[0]))(x)),
    "sorted": ((), lambda x, ps, c: jnp.sort(x, 1)),
    "cumulative": ((), lambda x, ps, c: jnp.cumsum(x, 1) * 0.3),
    "nested jit": ((_W,), lambda x, ps, c: jax.jit(lambda y: y @ ps[0])(x)),
    "scattered": ((_W,), lambda x, ps, c: x.at[:, ::2].add(x[:, 1::2]) @ ps[0]),
    "frozen": ((_W,), lambda x, ps, c: x @ lax.stop_gradient(ps[0])),
    "attention": (
        (_W, _W),
        lambda x, ps, c: jax.nn.softmax((x @ ps[0])[:, :, None] * (x @ ps[1])[:, None], -1).mean(1),
    ),
}


def _per_example(out: Any, target: Any, kind: str) -> Any:
    if kind == "entropy":
        labels = (target[:, 0] > 0).astype(jnp.int32)
        return optax.softmax_cross_entropy_with_integer_labels(out, labels)
    return ((out - target) ** 2).mean(1)


def _reduced(errors: Any, mask: Any, ps: Sequence[Any], kind: str) -> Any:
    if mask is not None and kind == "masked":
        return (errors * mask).sum() / mask.sum()
    if kind == "sum":
        return errors.sum()
    if kind == "max":
        return errors.max()
    if kind == "pairs":  # each example is compared with all others
        apart = jnp.abs(errors[:, None] - errors[None])
        return errors.mean() - jax.nn.logsumexp(-apart, 1).mean()
    if kind == "penalised":
        return errors.mean() + 1e-2 * sum((p**2).sum() for p in ps)
    return errors.mean()


_OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(1e-2, eps=1e-2),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2, eps=1e-2)),
    "scheduled": lambda: optax.sgd(optax.linear_schedule(0.1, 0.01, 3)),
}
LOSSES = ("mean", "sum", "masked", "penalised", "entropy", "max", "pairs")
EXTRAS = ("ema", "seen", "weak", "constant", "errors", "two losses", "unused", "callback")
_MODES: Mapping[str, Callable[[Any], Any]] = {"tanh": jnp.tanh, "sin": jnp.sin}


def function_of(program: TrainingProgram) -> tuple[Callable[..., Any], Any]:
    """The step `(state, batch, scale, mode) -> (state, results)`, and its first state."""
    wrap, unwrap = _CONTAINERS[program.container]
    optimizer = _OPTIMIZERS[program.optimizer]()
    shapes = [_BLOCKS[name][0] for name in program.blocks]
    rng = np.random.default_rng(0)
    params = wrap(
        [
            jnp.asarray(rng.normal(size=shape, scale=0.5), jnp.float32)
            for each in (*shapes, (_W,))
            for shape in each
        ]
    )

    def forward(params: Any, batch: Any, context: _Context, kind: str) -> Any:
        x, target, mask = batch
        ps = unwrap(params)
        at = 0
        h = x.astype(jnp.float32)
        for name in program.blocks:
            of, block = _BLOCKS[name]
            h = block(h, ps[at : at + len(of)], context)
            at += len(of)
        errors = _per_example(h @ ps[-1], target, kind)
        return _reduced(errors, mask, ps, kind), errors

    def step(state: Any, batch: Any, scale: Any, mode: str) -> Any:
        params, extra = state["params"], dict(state["extra"])
        parts = tuple(batch[n] for n in "xym") if isinstance(batch, dict) else tuple(batch)
        keys = state["key"]
        if program.key == "typed":
            keys, used = jax.random.split(keys)
        else:
            used = jax.random.fold_in(keys, state["count"])
        context = _Context(used, state["count"], _MODES[mode])

        def loss(params: Any) -> Any:
            value, errors = forward(params, parts, context, program.loss)
            if "two losses" in program.extras:
                value = value + 0.5 * forward(params, parts, context, "sum")[0]
            return value * scale, errors

        (value, errors), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt = optimizer.update(gradients, state["opt"], params)
        params = optax.apply_updates(params, updates)
        squares = jax.tree.map(lambda g: (g**2).sum(), gradients)
        norm = jnp.sqrt(sum(jax.tree.leaves(squares)))
        results = {"loss": value, "norm": norm, "none": None}
        if "ema" in extra:
            extra["ema"] = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, extra["ema"], params)
        if "seen" in extra:
            extra["seen"] = extra["seen"] + parts[0].astype(jnp.float32).sum(0)
        if "weak" in extra:
            extra["weak"] = extra["weak"] * 0.5
        if "constant" in program.extras:
            results["constant"] = 1.5, jnp.arange(3)
        if "errors" in program.extras:
            results["errors"] = errors
        if "callback" in program.extras:
            jax.debug.callback(lambda *_: None, errors, value, params)
        count = state["count"] + 1
        new = {"params": params, "opt": opt, "count": count, "key": keys, "extra": extra}
        return new, results

    extra: dict[str, Any] = {}
    if "ema" in program.extras:
        extra["ema"] = jax.tree.map(jnp.array, params)
    if "seen" in program.extras:
        extra["seen"] = np.zeros(WIDTH, np.float32)
    if "weak" in program.extras:
        extra["weak"] = 2.0
    if "unused" in program.extras:
        extra["unused"] = jnp.ones(3), np.arange(2)
    key = jax.random.key(1) if program.key == "typed" else jax.random.PRNGKey(1)
    state = {"params": params, "opt": optimizer.init(params), "count": 0, "key": key}
    return step, {**state, "extra": extra}


def batch_of(program: TrainingProgram, call: ProgramCall, seed: int) -> Any:
    """The batch of a call."""
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=(call.rows, WIDTH)) for _ in range(2))
    numbers = (3 * x).astype(call.dtype), y.astype(np.float32)
    mask = (np.arange(call.rows) % 3 != 1).astype(np.float32) if call.has_mask else None
    parts = (*numbers, mask)
    if program.batch == "dict":
        return dict(zip("xym", parts, strict=True))
    return list(parts) if program.batch == "list" else tuple(parts)


def check(program: TrainingProgram) -> int:
    """Run a program by `parallelize` and by plain `jax.jit`, and compare every call.

    Returns:
        How many calls ran; the others were refused.

    Raises:
        AssertionError: A call gave something else than under `jit`, or a refusal changed state.
        Exception: An error that is not a refusal, and therefore a bug.
    """
    step, state = function_of(program)
    ours = parallelize(
        step,
        cluster=CLUSTER,
        batch_argnums=1,
        static_argnames="mode",
        strategy=program.strategy,
        microbatches=program.microbatches,
        donate=program.donate,
        most_variants=99,
    )
    plain = jax.jit(step, static_argnames="mode")
    state = jax.tree.map(_copy, state)
    ran = 0
    for seed, call in enumerate(program.calls):
        batch = batch_of(program, call, seed)
        before = jax.tree.map(_copy, state)  # rounding grows from call to call in some programs
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                state, results = ours(state, batch, call.scale, mode=call.mode)
        except (InternalError, RunError):
            raise
        except FrontendsError:
            leaves = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
            assert not any(leaf.is_deleted() for leaf in leaves), "a refusal deleted state"
            continue
        expected = plain(before, batch, call.scale, mode=call.mode)
        nudged = plain(jax.tree.map(_nudged, before), batch, call.scale, mode=call.mode)
        assert_alike((state, results), expected, nudged)
        ran += 1
    return ran


def _copy(leaf: Any) -> Any:
    """A copy of a leaf on one device."""
    if not isinstance(leaf, jax.Array):
        return leaf
    copied = jnp.array(_numbers(leaf))
    if _compat.holds_keys(leaf):
        return _compat.wrap_keys(copied, leaf.dtype)
    return _compat.as_weak(copied) if leaf.weak_type else copied


def _nudged(leaf: Any) -> Any:
    """The leaf with numbers that differ by one or two units in the last place of float32."""
    if not isinstance(leaf, jax.Array) or not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    numbers = np.asarray(leaf)
    signs = np.where(np.arange(numbers.size).reshape(numbers.shape) % 2, 1, -1)
    nudged = jnp.array((numbers * (1 + signs * 2.0**-22)).astype(numbers.dtype))
    return _compat.as_weak(nudged) if leaf.weak_type else nudged


def assert_alike(ours: Any, theirs: Any, nudged: Any) -> None:
    """Check that trees, shapes and dtypes are equal, and numbers up to rounding.

    Args:
        ours: What the parallel step returned.
        theirs: What the plain step returned.
        nudged: What the plain step returned from almost the same state. Where numbers explode or
            cancel, rounding errors grow as this difference does.
    """
    assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))
    pairs = [*zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)]
    for a, b in pairs:
        assert isinstance(a, jax.Array)
        assert (a.shape, a.dtype, _is_weak(a)) == (b.shape, b.dtype, _is_weak(b))
    plain = [(_numbers(a), _numbers(b)) for a, b in pairs]
    for a, b in plain:
        assert (np.isfinite(a) == np.isfinite(b)).all()
    ours, theirs = (
        [np.nan_to_num(each, posinf=0, neginf=0) for each in of] for of in zip(*plain, strict=True)
    )
    grown = [_numbers(leaf) for leaf in jax.tree.leaves(nudged)]
    largest = max(float(np.abs(np.asarray(b, np.float64)).max(initial=0.0)) for b in theirs)
    exploded = largest / 10 if largest > _EXPLODED else 0.0
    for a, b, c in zip(ours, theirs, grown, strict=True):
        rounding = np.abs(np.nan_to_num(np.asarray(c, np.float64), posinf=0, neginf=0) - b).max(
            initial=0.0
        )
        scale = np.abs(np.asarray(b, np.float64)).max(initial=0.0)
        least = max(_LEAST, scale, exploded, 1e5 * 8 * rounding)
        assert_same([a], [b], least=least)


def _is_weak(leaf: Any) -> bool:
    return bool(getattr(leaf, "weak_type", False))  # typed keys have none


def _numbers(leaf: Any) -> Any:
    return np.asarray(_compat.key_data(leaf) if _compat.holds_keys(leaf) else leaf)


def calls() -> st.SearchStrategy[ProgramCall]:
    """Calls, most of which differ little from the usual one."""
    return st.builds(
        ProgramCall,
        rows=st.sampled_from((8, 8, 8, 4, 6, 3, 1)),
        scale=st.sampled_from((1.0, 1.0, 0.5, 2, True)),
        mode=st.sampled_from(("tanh", "tanh", "sin")),
        dtype=st.sampled_from(("float32", "float32", "float32", "int32", "float16")),
        has_mask=st.sampled_from((True, True, True, False)),
    )


@st.composite
def programs(draw: st.DrawFn, max_blocks: int = 4, n_calls: int = 4) -> TrainingProgram:
    """Training programs, each with calls of at most two kinds."""
    kinds = draw(st.lists(calls(), min_size=2, max_size=2))
    order = draw(st.lists(st.integers(0, 1), min_size=n_calls, max_size=n_calls))
    return TrainingProgram(
        blocks=tuple(draw(st.lists(st.sampled_from([*_BLOCKS]), min_size=1, max_size=max_blocks))),
        container=draw(st.sampled_from([*_CONTAINERS])),
        batch=draw(st.sampled_from(("dict", "tuple", "list"))),
        loss=draw(st.sampled_from(LOSSES)),
        optimizer=draw(st.sampled_from([*_OPTIMIZERS])),
        key=draw(st.sampled_from(("typed", "raw"))),
        extras=tuple(draw(st.lists(st.sampled_from(EXTRAS), max_size=3, unique=True))),
        strategy=draw(st.sampled_from(("auto", "equal_layers", "data_parallel", "zero"))),
        microbatches=draw(st.sampled_from((None, None, 1, 2))),
        donate=draw(st.booleans()),
        calls=tuple(kinds[i] for i in order),
    )
