"""The pairs of layouts to plan, the price of a plan, and how planners are measured."""

import itertools
import math
import random
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from shardspec import Layout, Mesh, ReshardPlan, reshard
from shardspec.testing import every_spec

ITEMSIZE = 4
"""Bytes per element: float32."""

ELEMENTS = 2**24
"""Elements of a tensor: 64 MiB, so that latency hardly counts. There are more if dims would
otherwise be shorter than the mesh."""

RUNS = 3
"""How often each pair is planned; the median leaves out a disturbed run."""

Pair = tuple[Layout, Layout]


@dataclass(frozen=True)
class Case:
    """All ordered pairs of specs of one tensor, or a sample of them; shards are even throughout."""

    mesh: tuple[int, ...]
    """Length of each axis."""
    rank: int
    """Number of the tensor's dims."""
    partial: bool = False
    """Whether each source has partial sums; the destinations have none."""
    at_most: int = 2500
    """If there are more pairs, this many are drawn, the same in every run."""

    def pairs(self) -> list[Pair]:
        """The pairs to plan."""
        mesh = Mesh(self.mesh, tuple("abcdefgh"[: len(self.mesh)]))
        side = max(mesh.size, round(ELEMENTS ** (1 / self.rank)))

        def layouts(partial: bool) -> list[Layout]:
            specs = every_spec(mesh, self.rank, partial=partial)
            return [Layout((side,) * self.rank, mesh, s) for s in specs if s.is_partial == partial]

        sources, destinations = layouts(self.partial), layouts(False)
        total = len(sources) * len(destinations)
        drawn = random.Random(0).sample(range(total), min(total, self.at_most))
        numbers = (divmod(number, len(destinations)) for number in sorted(drawn))
        return [(sources[i], destinations[j]) for i, j in numbers]

    def __str__(self) -> str:
        mesh = "x".join(map(str, self.mesh))
        return f"{mesh} {self.rank}-D{' sums' if self.partial else ''}"


class Price(NamedTuple):
    """Bytes and collectives of a plan."""

    received_bytes: int
    """Bytes that all devices together receive."""
    collectives: int
    """Number of collectives, one after another; local steps do not count."""


class Planner(Protocol):
    """A library that plans reshardings."""

    def prepare(self, src: Layout, dst: Layout) -> tuple[Any, ...]:
        """The arguments of `plan`, in the library's own types, with nothing in its caches."""

    def plan(self, *prepared: Any) -> Any:
        """Plans; this is timed."""

    def price(self, src: Layout, dst: Layout) -> Price:
        """The price of the plan for a pair."""


class Shardspec:
    """`reshard`, with its default cost and limits."""

    def __init__(self) -> None:
        """Finds all caches of the package, so that `prepare` can clear them."""
        modules = [m for name, m in sys.modules.items() if name.partition(".")[0] == "shardspec"]
        values = [value for module in modules for value in vars(module).values()]
        self.caches = [value for value in values if hasattr(value, "cache_clear")]

    def prepare(self, src: Layout, dst: Layout) -> Pair:
        """The pair in new objects."""
        for cache in self.caches:
            cache.cache_clear()
        mesh = Mesh(src.mesh.shape, src.mesh.axis_names)
        return Layout(src.shape, mesh, src.spec), Layout(dst.shape, mesh, dst.spec)

    def plan(self, src: Layout, dst: Layout) -> ReshardPlan:
        """The plan of `reshard`."""
        return reshard(src, dst)

    def price(self, src: Layout, dst: Layout) -> Price:
        """The price according to the plan itself, which tests compare with a simulation."""
        plan = reshard(src, dst)
        return Price(plan.total_bytes(ITEMSIZE), plan.n_collectives)


def measure(benchmark: Any, planner: Planner, pairs: list[Pair], runs: int = RUNS) -> None:
    """Prices the plan of each pair, then times planning; a round is one pair."""
    received = least = collectives = 0
    worst = 1.0
    for src, dst in pairs:
        price = planner.price(src, dst)
        bound = reshard(src, dst).lower_bound_bytes(ITEMSIZE)
        assert price.received_bytes >= bound, f"{src} to {dst.spec}: {price}, less than {bound}"
        received += price.received_bytes
        least += bound
        collectives += price.collectives
        if price.received_bytes > bound:
            worst = max(worst, price.received_bytes / bound if bound else math.inf)
    benchmark.extra_info["pairs"] = len(pairs)
    benchmark.extra_info["bytes / bound"] = f"{received / least:.3f}"
    benchmark.extra_info["worst pair"] = f"{worst:.2f}"
    benchmark.extra_info["collectives"] = f"{collectives / len(pairs):.2f}"

    coming = itertools.cycle(pairs)
    benchmark.pedantic(
        planner.plan,
        setup=lambda: (planner.prepare(*next(coming)), {}),
        rounds=runs * len(pairs),
    )
    if not benchmark.disabled:
        seconds = np.reshape(benchmark.stats.stats.data, (runs, len(pairs)))
        slow_ms = 1e3 * np.quantile(np.median(seconds, axis=0), 0.99)
        benchmark.extra_info["99th percentile"] = f"{slow_ms:.3f} ms"
