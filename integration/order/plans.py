"""Steps and clusters that are similar, so that a wrong cache key could mix up their plans.

The clusters have the same links with other devices, the same devices with other links, or other
hosts. The steps are of JAX and PyTorch: equal ones in other dtypes, some with partial maxima as
well as partial sums, and some with integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import frontends.jax
import frontends.torch
import jax
import jax.numpy as jnp
import torch
from costmodel import Cluster, Device
from frontends.answer.plan import Plan
from jax import Array
from torch import nn
from torch.nn import functional

_BASE = Cluster.preset("two-hosts")


def _devices_times(cluster: Cluster, factor: float) -> Cluster:
    """The same links, with devices that are `factor` times as fast."""
    device = cluster.device
    faster = replace(
        device,
        flops_per_s=tuple((name, rate * factor) for name, rate in device.flops_per_s),
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * factor,
        launch_s=device.launch_s / factor,
    )
    return replace(cluster, hosts=tuple(replace(h, device=faster) for h in cluster.hosts))


def _links_times(cluster: Cluster, factor: float) -> Cluster:
    """The same devices, with networks that are `factor` times as fast."""
    levels = tuple(replace(level, link=level.link.times(factor)) for level in cluster.levels)
    return replace(cluster, levels=levels)


def _without_matrix_units(cluster: Cluster) -> Cluster:
    """The same links, with devices on which bfloat16 is no faster than float32."""
    rates = dict(cluster.device.flops_per_s)
    slow: Device = replace(
        cluster.device, flops_per_s=tuple((name, min(rates.values())) for name in rates)
    )
    return replace(cluster, hosts=tuple(replace(h, device=slow) for h in cluster.hosts))


CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "two-hosts": lambda: _BASE,
    "fast-devices": lambda: _devices_times(_BASE, 100.0),
    "slow-devices": lambda: _devices_times(_BASE, 0.1),
    "fast-network": lambda: _links_times(_BASE, 100.0),
    "one-rate": lambda: _without_matrix_units(_BASE),
    "one-host": lambda: _BASE.resized(n_hosts=1),
    "h100": lambda: Cluster.preset("h100-sxm").resized(devices_per_host=4),
}


def _layers(x: Array, weights: list[Array]) -> Array:
    for weight in weights:
        x = jnp.tanh(jnp.dot(x, weight, preferred_element_type=jnp.float32)).astype(weight.dtype)
    return x


def _softmax(x: Array, weights: list[Array]) -> Array:
    """Layers with maxima and sums over a dim that may be sharded."""
    for weight in weights:
        x = jax.nn.softmax(x @ weight, axis=-1) + x
    return x


def _rounded(x: Array, weights: list[Array]) -> Array:
    """Layers with a product of integers each, as with quantized activations."""
    for weight in weights:
        few, fewer = (jnp.round(of * 16).astype(jnp.int8) for of in (x, weight))
        x = jnp.tanh(x @ weight) + jnp.dot(few, fewer, preferred_element_type=jnp.int32)
    return x


def _plan_jax(
    forward: Callable[[Array, list[Array]], Array], dtype: str, width: int, cluster: str
) -> Plan:
    def step(weights: list[Array], x: Array) -> tuple[list[Array], Array]:
        def loss(weights: list[Array]) -> Array:
            return jnp.mean(forward(x, weights).astype(jnp.float32) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        updated = [w - 0.1 * g.astype(w.dtype) for w, g in zip(weights, gradients, strict=True)]
        return updated, value

    weights = [jax.ShapeDtypeStruct((width, width), dtype) for _ in range(4)]
    x = jax.ShapeDtypeStruct((256, width), dtype)
    return frontends.jax.plan_for(step, (weights, x), CLUSTERS[cluster](), microbatches=4).plan


class _Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            heads = layer(x).unflatten(-1, (4, -1)).transpose(1, 2)
            x = functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2)
            x = x.flatten(-2)
        return x


def _plan_torch(dtype: str, width: int, cluster: str) -> Plan:
    with torch.device("meta"):
        model = _Model(width).to(getattr(torch, dtype))
        x = torch.zeros(16, 32, width, dtype=getattr(torch, dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    arguments = (step, model, optimizer, x, CLUSTERS[cluster]())
    planned = frontends.torch.plan_for(*arguments, microbatches=4)
    return planned.plan


STEPS: dict[str, Callable[[str], Plan]] = {
    "layers": partial(_plan_jax, _layers, "float32", 1024),
    "layers-bfloat16": partial(_plan_jax, _layers, "bfloat16", 1024),
    "softmax": partial(_plan_jax, _softmax, "float32", 512),
    "rounded": partial(_plan_jax, _rounded, "float32", 512),
    "attention": partial(_plan_torch, "float32", 256),
    "attention-bfloat16": partial(_plan_torch, "bfloat16", 256),
}

CASES: dict[str, Callable[[], Plan]] = {
    f"{step} on {cluster}": partial(plan, cluster)
    for step, plan in STEPS.items()
    for cluster in CLUSTERS
}
"""Every step on every cluster, by name."""
