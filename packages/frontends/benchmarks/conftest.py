"""The job that is planned and run, on virtual devices."""

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import frontends.jax
import numpy as np
import pytest

frontends.jax.init(8)

import jax  # noqa: E402
from costmodel import Cluster  # noqa: E402
from frontends.jax.testing import mlp  # noqa: E402
from frontends.models import gpt  # noqa: E402


@dataclass(frozen=True)
class Job:
    """A training step with its arguments, and how to cut it for which cluster."""

    function: Callable[..., Any]
    arguments: tuple[Any, Any, Any]
    cluster: Cluster
    microbatches: int
    n_layers: int | None = None
    strategy: str = "auto"


@pytest.fixture
def job(benchmark) -> Job:
    """The default GPT; where nothing is measured, something that compiles in a second."""
    two_hosts = Cluster.preset("two-hosts")
    if benchmark.disabled:
        small = mlp()
        pair = two_hosts.resized(devices_per_host=1)
        return Job(small.function, small.arguments, pair, 2, 2, "equal_layers")
    config, optimizer = gpt.GPTConfig(), gpt.make_optimizer(1e-3, 100)
    params = gpt.init(jax.random.key(0), config)
    text = np.random.default_rng(0).integers(0, 256, (2, 16, config.sequence)).astype(np.int32)
    arguments = params, optimizer.init(params), (text[0], text[1])
    return Job(gpt.make_train_step(config, optimizer), arguments, two_hosts, 8)


PLANNERS = ("shardspec", "autoshard", "stagecut", "crossmesh", "pipesched", "frontends")


@pytest.fixture
def forget() -> Callable[[], None]:
    """Empties the caches that planning fills."""

    def empty() -> None:
        jax.clear_caches()
        # By type(), as isinstance asks torch's deprecated objects for their class, and they warn.
        caches = [c for c in gc.get_objects() if type(c) is functools._lru_cache_wrapper]
        for cache in caches:
            if cache.__module__.partition(".")[0] in PLANNERS:
                cache.cache_clear()

    return empty
