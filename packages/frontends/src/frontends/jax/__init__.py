"""Plan and run JAX training steps, on stock JAX.

`init` gives the process virtual devices, `parallelize` takes a step written for one device, and
`plan_for` plans without any devices.
"""

from frontends.jax.api import (
    ParallelStep,
    Planned,
    default_cluster,
    init,
    parallelize,
    plan_for,
)

__all__ = ["ParallelStep", "Planned", "default_cluster", "init", "parallelize", "plan_for"]
