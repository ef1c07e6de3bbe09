"""Pallas kernels are split along their grid where that is the same, and nowhere else."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.errors import VerificationError
from frontends.jax import check_rules, parallelize
from frontends.jax.base._compat import eliminate_dead_code, inline_calls
from frontends.jax.rules.rules import flops_of, rule_of
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.gpu import attention as gpu_attention
from jax.experimental.pallas.ops.gpu import rms_norm
from jax.experimental.pallas.ops.tpu import flash_attention as tpu_attention

RNG = np.random.default_rng(0)
CLUSTER = Cluster.preset("virtual-cpu").resized(devices_per_host=4)
BLOCKS = gpu_attention.BlockSizes(
    block_q=16, block_k=16, block_q_dkv=16, block_kv_dkv=16, block_q_dq=16, block_kv_dq=16
)


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def attention(q: Any, k: Any, v: Any, *, interpret: bool = True) -> Any:
    return gpu_attention.mha(
        q, k, v, None, sm_scale=0.25, causal=True, block_sizes=BLOCKS, interpret=interpret
    )


def call(
    kernel: Callable[..., None], shape: tuple[int, ...], grid: tuple[int, ...], *blocks: Any, **more
) -> Callable[..., Any]:
    """A kernel whose blocks are given as shape and index map, those of the result last."""
    specs = [pl.BlockSpec(*block) for block in blocks]
    out = jax.ShapeDtypeStruct(shape, jnp.float32)
    more = {"interpret": True} | more
    return pl.pallas_call(kernel, out, grid=grid, in_specs=specs[:-1], out_specs=specs[-1], **more)


def product(a: Any, b: Any, out: Any) -> None:
    out[...] = a[...] * b[...]


def matmul(a: Any, b: Any, out: Any) -> None:
    out[...] = a[...] @ b[...]


def add_up(a: Any, out: Any) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        out[...] = jnp.zeros_like(out)

    out[...] += a[...]


SUM = call(add_up, (32, 8), (4, 4), ((8, 8), lambda i, j: (i, j)), ((8, 8), lambda i, j: (i, 0)))


def gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*operands: Any) -> Any:
        made, pull = jax.vjp(function, *operands)
        return pull(made)

    return run


@pytest.mark.parametrize(
    ("function", "shapes", "least"),
    [
        (gradients(attention), [(4, 32, 4, 16)] * 3, 3 * 9),  # three kernels, examples and heads
        (
            call(
                product, (8, 32), (8, 4),
                ((1, 8), lambda h, i: (h, i)), ((1, 8), lambda h, i: (h // 2, i)),
                ((1, 8), lambda h, i: (h, i)),
            ),
            [(8, 32), (4, 32)], 9,
        ),
        (
            call(
                matmul, (32, 32), (4, 4),
                ((8, 16), lambda i, j: (i, 0)), ((16, 8), lambda i, j: (0, j)),
                ((8, 8), lambda i, j: (i, j)),
            ),
            [(32, 16), (16, 32)], 9,
        ),
        (SUM, [(32, 32)], 4),  # the sum is over blocks in a row
        (jax.vmap(SUM), [(4, 32, 32)], 9),
        (
            gradients(lambda x, w, b: rms_norm.rms_norm(x, w, b, interpret=True)),
            [(4, 8, 16), (16,), (16,)], 9,
        ),
    ],
    ids=["attention", "shared heads", "matmul", "sum", "sums of examples", "norm"],
)  # fmt: skip
def test_a_kernel_on_parts_makes_the_parts(
    function: Callable[..., Any], shapes: list[Any], least: int
) -> None:
    tried = check_rules(function, *(numbers(*shape) for shape in shapes), at_most=None)
    assert tried["pallas_call"] >= least


def kernels(function: Callable[..., Any], *shapes: Any) -> list[Any]:
    """The equations of kernels in a program."""
    flat = eliminate_dead_code(inline_calls(jax.make_jaxpr(function)(*shapes)))
    return [e for e in flat.jaxpr.eqns if e.primitive.name == "pallas_call"]


def split_sizes(equation: Any) -> list[int]:
    return [f.size for f in rule_of(equation).factors if f.kind != "whole"]


def number_of(a: Any, out: Any) -> None:
    out[...] = a[...] + pl.program_id(0)


def running_sum(a: Any, out: Any, scratch: Any) -> None:
    scratch[...] += a[...]
    out[...] = scratch[...]


BLOCK = ((8, 8), lambda i: (i, 0))
CARRIES = {"scratch_shapes": [pltpu.VMEM((8, 8), jnp.float32)]}
PARALLEL = {"compiler_params": pltpu.CompilerParams(dimension_semantics=("parallel",))}


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (call(number_of, (32, 8), (4,), BLOCK, BLOCK), (32, 8)),
        (call(running_sum, (32, 8), (4,), BLOCK, BLOCK, **CARRIES), (32, 8)),
        (
            call(
                add_up, (8, 32), (4, 4),
                ((8, 8), lambda i, j: (j, i)), ((8, 8), lambda i, j: (0, i)),
            ),
            (32, 32),
        ),
        (call(lambda a, out: None, (32, 8), (4,), ((8, 8), lambda i: (3 - i, 0)), BLOCK), (32, 8)),
        (call(lambda a, out: None, (30, 8), (4,), BLOCK, BLOCK), (30, 8)),
        (call(lambda a, out: None, (8, 8), (4,), BLOCK, ((8, 8), lambda i: (0, 0))), (32, 8)),
        (call(lambda a, out: None, (32, 8), (4,), ((8, 8), lambda i: (i, i)), BLOCK), (32, 32)),
    ],
    ids=[
        "by number", "carries", "sums of columns", "backwards", "ragged", "writes one block",
        "diagonal",
    ],
)  # fmt: skip
def test_what_depends_on_the_point_of_the_grid_is_whole(
    function: Callable[..., Any], shape: tuple[int, ...]
) -> None:
    (equation,) = kernels(function, numbers(*shape))
    expected = [4] if len(equation.params["grid_mapping"].grid) == 2 else []  # its other dim
    assert split_sizes(equation) == expected


def test_a_kernel_without_a_grid_is_whole() -> None:
    shape = jax.ShapeDtypeStruct((16, 8), jnp.float32)
    whole = pl.pallas_call(lambda a, out: None, shape, interpret=True)
    (equation,) = kernels(whole, numbers(16, 8))
    assert split_sizes(equation) == []


def test_scratch_memory_is_private_to_points_that_are_declared_parallel() -> None:
    (equation,) = kernels(
        call(running_sum, (32, 8), (4,), BLOCK, BLOCK, **CARRIES, **PARALLEL), numbers(32, 8)
    )
    assert split_sizes(equation) == [4]


def test_published_kernels_are_split_by_examples_and_heads_and_have_a_price() -> None:
    shape = jax.ShapeDtypeStruct((2, 8, 1024, 128), jnp.bfloat16)
    run = gradients(lambda q, k, v: tpu_attention.flash_attention(q, k, v, causal=True))
    found = kernels(run, *[shape] * 3)
    assert [split_sizes(e) for e in found] == [[2, 8]] * 3
    scores = 2 * 8 * 1024 * 1024 * 128 * 2
    assert [flops_of(e) / scores for e in found] == pytest.approx([2, 4, 3], rel=0.1)


def step_of(mix: Callable[..., Any]) -> Callable[..., Any]:
    def step(weights: Any, batch: Any) -> Any:
        def loss_of(weights: Any) -> Any:
            q, k, v = ((batch @ weights[name]).reshape(4, 32, 4, 16) for name in "qkv")
            return jnp.mean((mix(q, k, v).reshape(4, 32, 64) @ weights["o"]) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), loss

    return step


WEIGHTS = {name: numbers(64, 64) * 0.2 for name in "qkvo"}


@pytest.mark.parametrize(
    "options",
    [
        {"microbatches": 2},
        {"mesh": (1, 4), "pin": {"weights['q']": "RS0"}},
    ],
    ids=["examples", "heads"],
)
def test_a_step_with_a_kernel_runs_in_parallel(options: dict[str, Any]) -> None:
    step = parallelize(step_of(attention), cluster=CLUSTER, stages=1, **options)
    batch = numbers(4, 32, 64)
    step(WEIGHTS, batch)
    assert step.verify(WEIGHTS, batch, n_steps=2)
    assert not step.plan.unsharded


def test_a_kernel_for_accelerators_is_planned_and_interpreted_on_cpus() -> None:
    def on_gpu(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, interpret=False)

    batch = numbers(4, 32, 64)
    step = parallelize(step_of(on_gpu), cluster=CLUSTER, microbatches=1, stages=1)
    ours, theirs = step(WEIGHTS, batch), jax.jit(step_of(attention))(WEIGHTS, batch)
    assert float(ours[1]) == pytest.approx(float(theirs[1]), rel=1e-5)
    with pytest.raises(VerificationError, match="it fails: ValueError: Only interpret mode"):
        step.verify(WEIGHTS, batch)
