"""Measures this machine as eight virtual JAX devices and prints it as a cluster in JSON.

    python packages/costmodel/benchmarks/measure_virtual_cpu.py > virtual-cpu.json

The preset `virtual-cpu` comes from this program. It needs jax, which the package itself does not.
All devices work at the same time, so every figure is one device's share of the machine, the best of
many runs.
"""

import datetime
import functools
import os
import time
from collections.abc import Callable
from typing import Any

N = 8
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={N}"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"

import jax  # noqa: E402  (reads the environment)
import numpy as np  # noqa: E402
from costmodel import Cluster, Device, Link  # noqa: E402
from costmodel.measured.machine import Machine  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

FLOAT32_BYTES = 4
SHARDED = PartitionSpec("x")
MESH = Mesh(np.array(jax.devices()), ("x",))


def best_time(
    function: Callable[[Any], Any],
    local_shape: tuple[int, ...],
    repeats: int,
    dtype: str = "float32",
) -> float:
    """Seconds of `function` when all devices run it at once, each on a shard of this shape."""
    on_shard = jax.shard_map(
        function, mesh=MESH, in_specs=SHARDED, out_specs=SHARDED, check_vma=False
    )
    compiled = jax.jit(on_shard)
    rows, *rest = local_shape
    noise = np.random.default_rng(0).random((N * rows, *rest), np.float32).astype(dtype)
    x = jax.device_put(noise, NamedSharding(MESH, SHARDED))
    compiled(x).block_until_ready()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        compiled(x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def dot_chain(length: int, x: jax.Array) -> jax.Array:
    """`length` dependent matrix products, which XLA cannot fuse."""
    y = x
    for _ in range(length):
        y = y @ x
    return y


def measure_link(call_s: float) -> Link:
    """A link by least squares over collectives and sizes (AutoDDL 3.2), with relative residuals."""
    collectives = {  # name: (function, alphas and betas of Table 2, ratio of n to the shard)
        "all_gather": (lambda x: jax.lax.all_gather(x, "x", tiled=True)[: len(x)], N - 1, 1, N),
        "reduce_scatter": (lambda x: jax.lax.psum_scatter(x, "x", tiled=True), N - 1, 1, 1),
        "all_reduce": (lambda x: jax.lax.psum(x, "x"), 2 * N - 1, 2, 1),
    }
    rows, times = [], []
    for function, alphas, volume, growth in collectives.values():
        for shard_elements in (2**8, 2**14, 2**18):
            seconds = best_time(function, (shard_elements,), 30) - call_s
            n_bytes = shard_elements * growth * FLOAT32_BYTES
            rows.append((alphas, volume * (N - 1) / N * n_bytes))
            times.append(seconds)
    matrix, seconds = np.array(rows), np.array(times)
    alpha, beta = np.linalg.lstsq(matrix / seconds[:, None], np.ones(len(times)), rcond=None)[0]
    return Link(round(float(alpha), 7), float(f"{1 / beta:.2e}"))


def main() -> None:
    """Measures the machine and prints the cluster."""
    call_s = best_time(lambda x: x + 1, (4,), 200)
    size, length = 256, 10
    peaks = []
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        chain_s = best_time(functools.partial(dot_chain, length), (size, size), 20, dtype) - call_s
        peaks.append((dtype, float(f"{length * 2 * size**3 / chain_s:.2e}")))
    tiny = [best_time(functools.partial(dot_chain, k), (16, 16), 50) for k in (50, 450)]
    elements = 4 * 2**20
    stream_s = best_time(lambda x: 2 * x + 1, (elements,), 20) - call_s
    machine = Machine.this()
    link = measure_link(call_s)
    cluster = Cluster.uniform(
        name="virtual-cpu",
        n_hosts=1,
        devices_per_host=N,
        device=Device(
            name=f"1/{N} of {machine.n_cores} cores of {machine.cpu}",
            flops_per_s=tuple(peaks),
            memory_bytes=machine.memory_bytes // N,
            memory_bandwidth_bytes_per_s=float(f"{2 * FLOAT32_BYTES * elements / stream_s:.2e}"),
            launch_s=round((tiny[1] - tiny[0]) / 400, 7),
        ),
        intra_host=link,
        inter_host=link,
        source=(
            f"[measured] {datetime.date.today()} on {machine.n_cores} cores of {machine.cpu} with "
            f"jax {jax.__version__} by benchmarks/measure_virtual_cpu.py: {N} virtual devices in "
            "one process, all at work at once, best of many runs. memory_bytes is the machine's "
            "divided equally. The devices share the machine's memory, so the network of a host, if "
            "more are asked for, repeats the link inside it."
        ),
    )
    print(cluster.to_json())


if __name__ == "__main__":
    main()
