"""Steps that compute with complex numbers are planned, priced and run as others are."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.base.complexes import with_complex
from frontends.jax import parallelize
from frontends.jax.testing import assert_same

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)


def test_a_complex_product_takes_four() -> None:
    device = with_complex(CLUSTER, ("float32", "complex64")).device
    assert device.peak("complex64") == CLUSTER.device.peak("float32") / 4
    assert "complex128" not in dict(device.flops_per_s)


def test_real_steps_and_known_rates_stay_as_they_are() -> None:
    assert with_complex(CLUSTER, ("float32", "int8")) is CLUSTER
    rates = (("float32", 1e9), ("complex64", 7e8))
    device = replace(CLUSTER.device, flops_per_s=rates, efficiency=())
    known = replace(CLUSTER, hosts=(replace(CLUSTER.hosts[0], device=device),) * CLUSTER.n_hosts)
    assert with_complex(known, ("complex64", "complex128")) == known


@pytest.mark.parametrize(("strategy", "microbatches"), [("equal_layers", 2), ("zero", 2)])
def test_mixing_by_fourier_transforms_trains(strategy: str, microbatches: int) -> None:
    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.normal(size=(4, 4), scale=0.5), jnp.float32) for _ in range(3)]

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for w in params:
                h = jnp.tanh((h + jnp.fft.fft2(h, axes=(1, 2)).real) @ w)
                h = jnp.fft.irfft(jnp.fft.rfft(h, axis=1) * (1 + 0.5j), n=6, axis=1)
            return jnp.mean(h**2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value

    options: dict[str, Any] = {"strategy": strategy, "microbatches": microbatches, "n_layers": 2}
    ours = parallelize(step, cluster=CLUSTER, **options)
    x = rng.normal(size=(8, 6, 4)).astype(np.float32)
    assert_same(jax.tree.leaves(ours(params, x)), jax.jit(step)(params, x))
