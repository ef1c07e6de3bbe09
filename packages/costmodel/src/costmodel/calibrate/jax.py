"""Collectives of JAX among virtual CPU devices of one process, compiled as in a training step.

A `Repeat` is one compiled loop, so the cost of the call is divided by the number of operations.
Each operation works on the result of the one before, so that XLA can neither drop nor merge them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from costmodel.calibrate.backend import KINDS, Repeat
from costmodel.errors import CalibrationError

_AXIS = "device"


class JaxBackend:
    """All virtual devices of this process."""

    rank = 0
    kinds = tuple(kind for kind in KINDS if kind != "broadcast")  # XLA has none on the CPU
    dtypes = ("float32", "float64", "bfloat16")

    def __init__(self) -> None:
        self.n_processes = jax.device_count()
        self._compiled: dict[Any, Callable[[Any, Any], Any]] = {}
        self.versions = (("jax", jax.__version__), ("numpy", np.__version__))

    def collective(self, kind: str, n: int, n_bytes: int) -> Repeat:
        """See `Backend`; operands have the size of the larger of input and output."""
        return self._repeat(partial(_once, kind, n), (kind, n), (n_bytes // 4,), "float32", n)

    def matmul(self, m: int, n: int, k: int, dtype: str) -> Repeat:
        """See `Backend`; only for square products, as each result is an operand of the next."""
        return self._repeat(lambda x: x @ x, "matmul", (m, n), dtype, self.n_processes)

    def stream(self, n_bytes: int) -> Repeat:
        """See `Backend`."""
        shape = (n_bytes // 8,)
        return self._repeat(lambda x: 2 * x + 1, "stream", shape, "float32", self.n_processes)

    def slowest(self, seconds: list[float]) -> list[float]:
        """See `Backend`: there is one process."""
        return seconds

    def message(self, first: int, second: int, n_bytes: int) -> Repeat:
        """See `Backend`; virtual devices of one process are no machines to describe."""
        raise CalibrationError("links are measured between processes; got backend jax, which has 1")

    def gather(self, text: str) -> list[str]:
        """See `Backend`."""
        return [text]

    def close(self) -> None:
        """See `Backend`."""

    def _repeat(
        self, once: Callable[[Any], Any], name: Any, shape: tuple[int, ...], dtype: str, n: int
    ) -> Repeat:
        mesh = Mesh(np.array(jax.devices()[:n]), (_AXIS,))
        sharded = PartitionSpec(_AXIS)
        if name not in self._compiled:  # jax.jit keeps one program for each shape and dtype itself

            def loop(times: Any, x: Any) -> Any:
                return lax.fori_loop(0, times, lambda _, y: once(y), x)

            on_devices = jax.shard_map(
                loop,
                mesh=mesh,
                in_specs=(PartitionSpec(), sharded),
                out_specs=sharded,
                check_vma=False,
            )
            # If the operand were not donated, each call would first copy it.
            self._compiled[name] = jax.jit(on_devices, donate_argnums=1)
        compiled = self._compiled[name]
        zeros = np.zeros((n * shape[0], *shape[1:]), dtype)
        x = jax.device_put(zeros, NamedSharding(mesh, sharded))

        def repeat(times: int) -> None:
            nonlocal x
            x = compiled(jnp.int32(times), x)
            x.block_until_ready()

        repeat(0)
        return repeat


def join(deadline_s: float) -> JaxBackend:
    """See `costmodel.calibrate.backend.join`."""
    return JaxBackend()


def _once(kind: str, n: int, x: Any) -> Any:
    part = len(x) // n
    match kind:
        case "point_to_point":  # only device 0 sends; it receives zeros itself
            return lax.ppermute(x, _AXIS, [(0, 1)])
        case "all_reduce":
            return lax.psum(x, _AXIS)
        case "all_gather":
            return lax.all_gather(x[:part], _AXIS, tiled=True)
        case "reduce_scatter":
            return lax.dynamic_update_slice(x, lax.psum_scatter(x, _AXIS, tiled=True), (0,))
        case "all_to_all":
            return lax.all_to_all(x, _AXIS, 0, 0, tiled=True)
        case _:
            return lax.ppermute(x, _AXIS, [(i, (i + 1) % n) for i in range(n)])
