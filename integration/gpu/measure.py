"""Runs a training step on one device by `jax.jit` and by `frontends.jax`, and times both."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from costmodel import Cluster
from frontends.jax import parallelize
from zoo import bert, gpt, moe, vit, wide_resnet
from zoo.example import Example

_WARM, _TIMED = 2, 5


@dataclass(frozen=True, slots=True)
class Row:
    """A step that was measured on one device."""

    name: str
    jit_s: float
    """Median seconds of a step by `jax.jit` with its state donated."""
    ours_s: float
    """Median seconds of a step by `frontends.jax.parallelize`, state donated."""
    predicted_s: float
    """The seconds that the plan states."""
    difference: float
    """The largest relative difference of the losses of the first three steps."""
    kernels: int
    """Kernels and library calls in the program of `jax.jit`."""
    predicted_kernels: int
    """Kernels that the plan counts."""


def _example(model: Any, config: Any, **options: Any) -> Callable[[], Example]:
    return lambda: model.make(config, **options)


BFLOAT16 = {"dtype": "bfloat16"}
GPT2 = gpt.Config(768, 12, 12, vocabulary=50_304)
WIDE = gpt.Config(2304, 8, 24, vocabulary=50_304)

CASES: dict[str, Callable[[], Example]] = {
    "GPT-2 small, bfloat16, 8 x 1,024 tokens": _example(gpt, GPT2, batch=8, **BFLOAT16),
    "GPT of width 2,304, 8 layers, bfloat16, 4 x 1,024": _example(gpt, WIDE, batch=4, **BFLOAT16),
    "GPT-350M, bfloat16, 8 x 1,024": _example(gpt, gpt.CONFIGS["gpt-350m"], batch=8, **BFLOAT16),
    "GPT-1.3B, bfloat16, 4 x 1,024": _example(gpt, gpt.CONFIGS["gpt-1.3b"], batch=4, **BFLOAT16),
    "MoE of width 768 with 8 experts, bfloat16, 8 x 1,024": _example(
        moe, moe.Config(768, 8, 16, n_experts=8), batch=8, **BFLOAT16
    ),
    "ViT-B/16, float32, 32 images": _example(vit, vit.CONFIGS["vit-base-16"], batch=32),
    "Wide-ResNet-50, float32, 32 images": _example(
        wide_resnet, wide_resnet.Config(50, 64, 2), batch=32
    ),
    "BERT base, float32, 16 x 512": _example(bert, bert.Config(768, 12, 12), batch=16),
}
"""Steps by name. Those in float32 multiply in float32, too (`jax_default_matmul_precision`)."""


def measure(name: str, make: Callable[[], Example], cluster: Cluster) -> Row:
    """Measure a step on the first device.

    Args:
        name: What the row is called.
        make: Makes the step.
        cluster: One device, which the plan is made for.
    """
    example = make()
    jitted = jax.jit(example.step, donate_argnums=(0, 1))
    compiled = jitted.lower(*example.arguments).compile()
    theirs, jit_s = _run(compiled, example)
    ours = parallelize(example.step, cluster=cluster, donate=True, microbatches=1)
    losses, ours_s = _run(ours, example)
    shardings = [stage.sharding for stage in ours.plan.stages]
    launched = [op.accesses for one in shardings if one is not None for op in one.graph.operators]
    return Row(
        name=name,
        jit_s=jit_s,
        ours_s=ours_s,
        predicted_s=ours.plan.step_s,
        difference=max(abs(a - b) / abs(a) for a, b in zip(theirs[:3], losses[:3], strict=True)),
        kernels=kernels_of(compiled.as_text() or ""),
        predicted_kernels=round(sum(one.launches for one in launched if one is not None)),
    )


def kernels_of(hlo: str) -> int:
    """Fusions, library calls and other kernels of a compiled program's text.

    Examples:
        >>> kernels_of("ENTRY %main { %a = f32[] fusion(%x), kind=kLoop, calls=%f\\n"
        ...     "%b = f32[] bitcast(%a)\\n }")
        1
    """
    entry = hlo[hlo.find("ENTRY") :]
    kinds = re.findall(r" = .*?[\])}] ([a-z][a-z0-9-]*)\(", entry)
    free = ("bitcast", "constant", "get-tuple-element", "parameter", "tuple")
    return sum(kind not in free for kind in kinds)


def _run(step: Callable[..., Any], example: Example) -> tuple[list[float], float]:
    """The losses of a few steps, and the median time of the last of them."""
    weights, state, batch, *more = example.init(jax.random.key(0))
    losses, times = [], []
    for _ in range(_WARM + _TIMED):
        start = time.perf_counter()
        weights, state, result = step(weights, state, batch, *more)
        losses.append(float(jnp.ravel(jax.tree.leaves(result)[0])[0]))
        jax.block_until_ready((weights, state))
        times.append(time.perf_counter() - start)
    return losses, median(times[_WARM:])
