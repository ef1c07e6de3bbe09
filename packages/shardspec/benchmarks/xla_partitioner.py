"""XLA's partitioner, for a program that only changes a sharding."""

import math
import re
from typing import Any

import jax
import numpy as np
from cases import Price
from jax.sharding import NamedSharding, PartitionSpec
from shardspec import Layout

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

_COLLECTIVE = re.compile(
    r"= (?P<result>\(.*?\)|\S+) "
    r"(?P<kind>all-\w+(?:-\w+)*|reduce-scatter|[\w-]*(?:collective|ragged|send|recv)[\w-]*)\("
)
_ARRAY = re.compile(r"[a-z]+(\d+)\[([\d,]*)\]")
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\]<=|mesh\[([^]]*)\][^{]*\{([^}]*)\})"
)
_AXIS = re.compile(r"('\w+')(?::\(\d+\)(\d+))?")


class XlaPartitioner:
    """`jax.jit` of the identity, compiled for eight virtual CPU devices."""

    def prepare(self, src: Layout, dst: Layout) -> tuple[Any, ...]:
        """The program, traced again so that nothing is cached."""
        identity = jax.jit(lambda x: x, in_shardings=_sharding(src), out_shardings=_sharding(dst))
        return (identity.lower(jax.ShapeDtypeStruct(src.shape, np.float32)),)

    def plan(self, lowered: Any) -> Any:
        """Compiles the program, because XLA has no separate partitioning."""
        return lowered.compile()

    def price(self, src: Layout, dst: Layout) -> Price:
        """The price of the collectives in the compiled program."""
        return price_program(self.plan(*self.prepare(src, dst)).as_text(), src.mesh.size)


def price_program(text: str, n_devices: int) -> Price:
    """Bytes that all devices receive in the collectives of a compiled program's text.

    Prices are those of ring algorithms; a permutation counts what goes from one device to another.
    """
    received = collectives = 0
    for line in text.splitlines():
        collective = _COLLECTIVE.search(line)
        if not collective:
            continue
        collectives += 1
        result = sum(
            int(bits) // 8 * math.prod(int(n) for n in dims.split(",") if n)
            for bits, dims in _ARRAY.findall(collective["result"])
        )
        match collective["kind"]:
            case "collective-permute":
                pairs = re.findall(r"\{(\d+),(\d+)\}", line.partition("source_target_pairs=")[2])
                received += result * sum(source != target for source, target in pairs)
            case "all-gather" | "all-to-all":
                n = _group_size(line)
                received += n_devices * (n - 1) * result // n
            case "reduce-scatter":
                received += n_devices * (_group_size(line) - 1) * result
            case "all-reduce":
                n = _group_size(line)
                received += 2 * n_devices * (n - 1) * result // n
            case _:
                raise NotImplementedError(f"no price for this collective: {line.strip()}")
    return Price(received, collectives)


def _group_size(line: str) -> int:
    """Number of devices in each group of a collective, in any of the three notations of groups."""
    listed, iota, axes, used = _GROUPS.search(line).groups()
    if listed:
        return listed.count(",") + 1
    if iota:
        return int(iota)
    lengths = dict(axis.split("=") for axis in axes.split(","))
    return math.prod(int(size or lengths[axis]) for axis, size in _AXIS.findall(used))


def _sharding(layout: Layout) -> NamedSharding:
    devices = np.array(jax.devices()[: layout.mesh.size]).reshape(layout.mesh.shape)
    names = layout.mesh.axis_names
    dims = [tuple(names[axis] for axis in axes) or None for axes in layout.spec.plain_dims]
    return NamedSharding(jax.sharding.Mesh(devices, names), PartitionSpec(*dims))
