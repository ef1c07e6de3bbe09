"""Plan and run JAX training steps, on stock JAX.

`init` gives the process virtual devices, `parallelize` takes a step written for one device, and
`plan_for` plans without any devices. `save` and `restore` keep a run's state.
"""

from frontends.jax.api import default_cluster, init, plan_for
from frontends.jax.checkpoint import latest, restore, save
from frontends.jax.parallel import ParallelStep, parallelize
from frontends.planning import Planned

__all__ = [
    "ParallelStep",
    "Planned",
    "default_cluster",
    "init",
    "latest",
    "parallelize",
    "plan_for",
    "restore",
    "save",
]
