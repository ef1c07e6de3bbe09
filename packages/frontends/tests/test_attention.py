"""Fused attention of JAX: what it computes, how it is split, and that any machine can plan it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends import Plan, PlanError
from frontends.errors import FrontendsError
from frontends.jax import check_rules, parallelize, plan_for
from frontends.jax.base import attention, attention_rows
from frontends.jax.base.attention import Attention, attend, attend_backward
from frontends.jax.rules.attention import (
    forward,
    meshwright_attention,
    meshwright_attention_gradient,
)
from frontends.jax.rules.rules import flops_of
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.cudnn.fused_attention_stablehlo import dot_product_attention as cudnn_attention

B, T, N, K, H, D = 4, 64, 4, 2, 8, 32
CLUSTER = Cluster.preset("virtual-cpu").resized(devices_per_host=8)
RNG = np.random.default_rng(0)


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def jax_attention(
    q: Any, k: Any, v: Any, bias: Any, lengths: Any, how: Attention, **more: Any
) -> Any:
    """What JAX makes of it without a kernel."""
    window = None if how.window is None else (how.window - 1, 0)
    lengths = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
    named = lengths | {"scale": how.scale, "is_causal": how.is_causal, "local_window_size": window}
    return jax.nn.dot_product_attention(q, k, v, bias, **named, **more)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Attention, list[Any], int]:
    """An attention and its operands, and the most scores of a head to compute at once."""
    batch, rows = 2, draw(st.sampled_from((6, 8)))
    shared, heads = draw(st.sampled_from((1, 2))), 2
    is_causal, has_bias = draw(st.booleans()), draw(st.booleans())
    window = draw(st.sampled_from((None, 1, 3))) if is_causal else None
    has_lengths = draw(st.booleans())
    same = rows if has_lengths or is_causal else draw(st.sampled_from((4, rows)))
    how = Attention(0.3, is_causal, window, has_bias, has_lengths, has_bias)
    shapes = [(batch, rows, shared * heads, 4), *[(batch, same, heads, 4)] * 2]
    if has_bias:
        apart = draw(st.booleans()), draw(st.booleans())
        shapes.append((batch if apart[0] else 1, shared * heads if apart[1] else 1, rows, same))
    operands = [numbers(*shape) for shape in shapes]
    if has_lengths:
        lengths = draw(st.lists(st.integers(1, rows), min_size=batch, max_size=batch))
        operands += [jnp.asarray(lengths, jnp.int32)] * 2
    return how, operands, draw(st.sampled_from((12, 1 << 20)))


@given(problems())
@settings(max_examples=settings().max_examples // 12)
def test_attention_and_its_gradients_are_those_of_jax(problem: Any) -> None:
    how, operands, most = problem
    bias = operands[3] if how.has_bias else None
    lengths = operands[-1] if how.has_lengths else None
    read = (*operands[:3], *([] if bias is None else [bias]))

    def plain(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        return jax_attention(q, k, v, bias, lengths, how)

    def by_jax(gradient: Any, *read: Any) -> Any:
        expected, pull = jax.vjp(plain, *read)
        return [expected, *pull(gradient)]

    def by_us(gradient: Any, *operands: Any) -> Any:
        result, statistics = attend(operands, how)
        return [result, *attend_backward([*operands, statistics, result, gradient], how)]

    gradient = numbers(*jax.eval_shape(plain, *read).shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_BLOCK_SCORES", most)
        made = jax.jit(by_us)(gradient, *operands)
    for ours, theirs in zip(made, jax.jit(by_jax)(gradient, *read), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def both(how: Attention) -> Callable[..., Any]:
    """Attention and its gradients, of operands that end with the result's gradient."""

    def run(*operands: Any) -> Any:
        *read, gradient = operands
        result, statistics = meshwright_attention(*read, how=how)
        return meshwright_attention_gradient(*read, statistics, result, gradient, how=how)

    return run


@pytest.mark.parametrize(
    ("how", "bias", "heads"),
    [
        (Attention(0.3), None, 4),
        pytest.param(Attention(0.3, is_causal=True), None, 2, marks=pytest.mark.nightly),
        (Attention(0.3, is_causal=True, window=3), None, 1),
        (Attention(0.3, has_bias=True, bias_gradient=True), (1, 1, 8, 8), 2),
        (Attention(0.3, is_causal=True, has_bias=True, bias_gradient=True), (4, 4, 8, 8), 2),
        (Attention(0.3, is_causal=True, has_lengths=True), None, 2),
    ],
    ids=str,
)
def test_every_part_of_attention_is_that_of_the_whole(
    how: Attention, bias: tuple[int, ...] | None, heads: int
) -> None:
    operands = [numbers(4, 8, 4, 4), numbers(4, 8, heads, 4), numbers(4, 8, heads, 4)]
    operands += [] if bias is None else [numbers(*bias)]
    operands += [jnp.asarray([8, 3, 4, 5], jnp.int32)] * (2 * how.has_lengths)
    tried = check_rules(both(how), *operands, numbers(4, 8, 4, 4), at_most=None)
    # On two axes: each splits examples, heads, rows or nothing; gradients may be partial sums, too.
    assert tried["meshwright_attention"] >= 4**2
    assert tried["meshwright_attention_gradient"] >= 5**2


@pytest.mark.parametrize("parts", [2, 4])
def test_a_kernel_that_counts_from_zero_computes_any_rows(parts: int) -> None:
    how, shapes = Attention(0.3, is_causal=True), [(2, 16, 4, 8), *[(2, 16, 2, 8)] * 2]
    operands = [numbers(*shape) for shape in shapes]
    result, statistics = attend(operands, how)
    gradient = numbers(*result.shape)
    expected = attend_backward([*operands, statistics, result, gradient], how)
    size = 16 // parts
    of_keys = of_values = 0
    for first in range(0, 16, size):
        rows = slice(first, first + size)
        some = [operands[0][:, rows], *operands[1:]]
        made, sums = attention_rows.forward(attend, some, how, jnp.int32(first))
        np.testing.assert_allclose(made, result[:, rows], atol=1e-5)
        np.testing.assert_allclose(sums, statistics[:, :, rows], atol=1e-5)
        given_back = [*some, sums, made, gradient[:, rows]]
        grads = attention_rows.backward(attend_backward, given_back, how, jnp.int32(first))
        np.testing.assert_allclose(grads[0], expected[0][:, rows], atol=1e-5)
        of_keys, of_values = of_keys + grads[1], of_values + grads[2]
    np.testing.assert_allclose(of_keys, expected[1], atol=1e-5)
    np.testing.assert_allclose(of_values, expected[2], atol=1e-5)


def test_a_gpu_gets_the_kernel_for_the_whole_and_for_rows() -> None:
    shapes = [jax.ShapeDtypeStruct((2, n, 4, 64), jnp.bfloat16) for n in (32, 128, 128)]
    how = Attention(0.125, is_causal=True)

    def calls(function: Callable[..., Any], *operands: Any) -> int:
        lowered = jax.jit(function).trace(*operands).lower(lowering_platforms=("cuda",))
        return str(lowered.as_text()).count("__cudnn$fmha")

    whole = [shapes[1]] * 4
    assert calls(both(how), *whole) == 2
    assert calls(lambda *x: forward(x[:3], how, x[3]), *shapes, jnp.int32(32)) == 2
    assert calls(both(Attention(0.125)), *[jnp.zeros((1, 8, 2, 8))] * 4) == 0  # float32


def model(params: Any, x: Any, how: Attention, **more: Any) -> Any:
    for weights in params.values():
        h = x.astype(jnp.bfloat16)
        q = (h @ weights["q"].astype(h.dtype)).reshape(B, T, N, H)
        k, v = jnp.split((h @ weights["kv"].astype(h.dtype)).reshape(B, T, 2 * K, H), 2, axis=2)
        mixed = jax_attention(q, k, v, None, None, how, **more).reshape(B, T, N * H)
        x = x + (mixed @ weights["o"].astype(h.dtype)).astype(jnp.float32)
        x = x + jnp.tanh(x @ weights["w"])
    return x


def step_of(how: Attention, **more: Any) -> Callable[..., Any]:
    def step(params: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return jnp.mean((model(params, batch["x"], how, **more) - batch["y"]) ** 2)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradients), loss

    return step


SHAPES = {"q": (D, N * H), "kv": (D, 2 * K * H), "o": (N * H, D), "w": (D, D)}
PARAMS = {f"layer{i}": {k: numbers(*s) * 0.1 for k, s in SHAPES.items()} for i in range(2)}
BATCH = {"x": numbers(B, T, D), "y": numbers(B, T, D)}
KERNEL = "meshwright_attention"
BOTH = (KERNEL, "meshwright_attention_gradient")
WAYS: dict[str, dict[str, Any]] = {
    "examples": {"mesh": (2, 4), "pin": {KERNEL: "S1RRR"}, "microbatches": 1},
    "heads": {"mesh": (4, 2), "pin": {KERNEL: "S0RS1R"}, "microbatches": 1},
    "rows": {"mesh": (1, 8), "pin": {KERNEL: "RS0RR"}, "microbatches": 1},
    "rows in the order of both axes": {"mesh": (2, 4), "pin": {KERNEL: "RS01RR"}},
    "rows and examples": {"mesh": (2, 4), "pin": {KERNEL: "S1S0RR"}, "microbatches": 1},
    "rows and heads": {"mesh": (4, 2), "pin": {KERNEL: "RS0S1R"}, "microbatches": 2},
    "rows, from sequences to heads": {
        "mesh": (4, 2),
        "pin": {KERNEL: "S0RS1R", "batch['x']": "S0S1R", "batch['y']": "S0S1R"},
        "microbatches": 1,
    },
    "stages": {"stages": 2, "microbatches": 2, "pin": {KERNEL: "RS0RR"}},
    "ring": {"mesh": (1, 8), "pin": dict.fromkeys(BOTH, "RS0RR,RS0RR"), "microbatches": 1},
    "ring of some axes of the rows": {
        "mesh": (2, 4),
        "pin": dict.fromkeys(BOTH, "RS01RR,RS1RR"),
        "microbatches": 1,
    },
    "ring of both axes, with stages": {
        "stages": 2,
        "mesh": (2, 2),
        "pin": dict.fromkeys(BOTH, "RS01RR,RS01RR"),
        "microbatches": 2,
    },
    "ring and heads, computed again": {
        "mesh": (4, 2),
        "pin": dict.fromkeys(BOTH, "RS0S1R,RS0S1R"),
        "remat": "all",
    },
}


def attention_specs(plan: Plan) -> list[str]:
    """How queries and keys of attention are laid out, forward."""
    placed = (p for stage in plan.stages for p in stage.placements)
    attentions = (p for p in placed if p.operator.startswith("meshwright_attention."))
    return [",".join(map(str, p.operands[:2])) for p in attentions]


@pytest.mark.parametrize("way", WAYS)
def test_a_step_with_cudnn_runs_on_any_device_in_every_way(way: str) -> None:
    options = {"stages": 1} | WAYS[way]
    how = Attention(H**-0.5, is_causal=True)
    step = parallelize(step_of(how, implementation="cudnn"), **options)
    expected = jax.jit(step_of(how))
    state = ours = PARAMS
    for _ in range(3):
        state, loss = expected(state, BATCH)
        ours, our_loss = step(ours, BATCH)
        assert float(our_loss) == pytest.approx(float(loss), abs=2e-4)  # rounding of bfloat16
    pinned = options["pin"][KERNEL]
    assert all(specs.startswith(pinned) for specs in attention_specs(step.plan))
    assert len(attention_specs(step.plan)) >= 2
    step.plan.verify()
    assert step.verify(PARAMS, BATCH, n_steps=2)


def test_a_pin_that_no_operator_can_have_is_refused() -> None:
    step = step_of(Attention(H**-0.5), implementation="cudnn")
    with pytest.raises(PlanError, match=r"got 'RRRS0' for .* of whose dim 3 each device makes all"):
        plan_for(step, (PARAMS, BATCH), CLUSTER, pin={KERNEL: "RRRS0"}, microbatches=1, stages=1)


def test_windows_lengths_biases_masks_and_orders_of_cudnn_are_read() -> None:
    lengths = jnp.asarray([64, 10, 33, 2], jnp.int32)
    bias, mask = numbers(1, N, T, T), jnp.asarray(RNG.random((B, 1, T, T)) < 0.9)
    options: list[dict[str, Any]] = [
        {"is_causal": True, "local_window_size": (5, 0)},
        {"local_window_size": (5, 0)},
        {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths},
        {"bias": bias.astype(jnp.bfloat16)},
        {"mask": mask | jnp.eye(T, dtype=bool)},
        {"mask": mask.at[:, :, 5:9].set(False)},  # rows that see nothing see all alike
    ]

    def heads_first(q: Any, k: Any, v: Any) -> Any:
        turned = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
        return jnp.swapaxes(cudnn_attention(*turned, scale=H**-0.5, qkv_layout="BNTH"), 1, 2)

    def losses(weights: Any, batch: Any, kind: str) -> Any:
        def loss_of(w: Any) -> Any:
            q, k, v = ((batch[name] * w).astype(jnp.bfloat16) for name in "qkv")
            made = [
                jax.nn.dot_product_attention(q, k, v, implementation=kind, **o) for o in options
            ]
            made.append(
                heads_first(q, k, v) if kind == "cudnn" else jax.nn.dot_product_attention(q, k, v)
            )
            return jnp.stack([jnp.mean(x.astype(jnp.float32) ** 2) for x in made])

        (values, gradient) = loss_of(weights), jax.grad(lambda w: loss_of(w).sum())(weights)
        return weights - gradient, values

    batch = {name: numbers(B, T, n, H) for name, n in (("q", N), ("k", K), ("v", K))}
    weights = jnp.float32(1.1)
    step = parallelize(lambda w, b: losses(w, b, "cudnn"), microbatches=1, cluster=CLUSTER)
    expected = jax.jit(lambda w, b: losses(w, b, "xla"))(weights, batch)
    for ours, theirs in zip(step(weights, batch), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-2)


def test_no_rows_make_no_results() -> None:
    operands = [jnp.zeros((2, 0, 4, 8)), *[jnp.zeros((2, 6, 4, 8))] * 2]
    result, statistics = attend(operands, Attention(0.3, is_causal=True))
    assert (result.shape, statistics.shape) == ((2, 0, 4, 8), (2, 4, 0))


def test_dropout_of_cudnn_is_refused_without_it() -> None:
    def losses(w: Any, x: Any) -> Any:
        q = (x * w).astype(jnp.bfloat16)
        mixed = cudnn_attention(q, q, q, scale=0.3, dropout_rate=0.1)
        return w, mixed.astype(jnp.float32).sum()

    step = parallelize(losses, microbatches=1, stages=1, cluster=CLUSTER)
    with (
        pytest.warns(match="no sharding rule for dot_product_attention_fwd_wrapper"),
        pytest.raises(FrontendsError, match="drops scores: run it on a GPU"),
    ):
        step(jnp.float32(1), numbers(B, T, N, H))


def test_jax_is_told_of_a_cudnn_only_while_we_trace() -> None:
    step = step_of(Attention(H**-0.5), implementation="cudnn")
    plan_for(step, (PARAMS, BATCH), CLUSTER, microbatches=1, stages=1)
    with pytest.raises(RuntimeError, match="cuDNN is not detected"):
        jax.jit(step)(PARAMS, BATCH)


def test_pairs_under_a_mask_cost_nothing_and_opposite_halves_balance_rows() -> None:
    def count(how: Attention) -> float:
        operands: Sequence[Any] = [jnp.zeros((1, 8, 1, 4))] * 3
        made = jax.make_jaxpr(lambda *x: meshwright_attention(*x, how=how))(*operands)
        return flops_of(next(e for e in made.eqns if e.primitive.name == KERNEL))

    assert count(Attention(1.0)) == 2 * 8 * 8 * (4 + 4)
    assert count(Attention(1.0, is_causal=True)) == 2 * (8 * 9 / 2) * (4 + 4)
    assert count(Attention(1.0, is_causal=True, window=2)) == 2 * (1 + 7 * 2) * (4 + 4)

    def attention_s(option: str, heads: int = 8) -> float:
        """Seconds of forward for a head, most of it attention."""
        how = Attention(1.0, is_causal=True)
        wide = [jnp.zeros((1, 16384, heads, 64), jnp.bfloat16)] * 3
        operands = {name: array for name, array in zip("qkv", wide, strict=True)}

        def forward_only(state: Any, batch: Any) -> Any:
            result, _ = meshwright_attention(*batch.values(), how=how)
            return state, result.astype(jnp.float32).sum()

        planned = plan_for(
            forward_only,
            (jnp.zeros(()), operands),
            Cluster.preset("dgx-a100").resized(n_hosts=1),
            stages=1, mesh=(1, 8), microbatches=1, pin={KERNEL: option},
        )  # fmt: skip
        (specs,) = attention_specs(planned.plan)
        assert specs.startswith(option)
        return planned.plan.stages[0].forward_s / heads

    by_heads, by_rows = (attention_s(spec) for spec in ("RRS0R", "RS0RR"))
    assert by_rows == pytest.approx(by_heads, rel=0.25)  # keys and halves are sent
    # One head has no halves, and of its rows the last eighth has 15 of 64 parts of the pairs.
    assert attention_s("RS0RR", heads=1) > 1.5 * by_rows
    # A ring sends as much as a gather, in seven times as many messages.
    assert by_rows < attention_s("RS0RR,RS0RR") < 4 * by_rows
