"""Plan and run PyTorch training steps, on stock torch.

`parallelize` takes a model, its optimizer and a loss, `parallelize_step` a whole training step as
it was written for one device; `plan_for` plans without any devices.
"""

from frontends.planning import Planned
from frontends.torch.api import default_cluster, plan_for
from frontends.torch.parallel import ParallelStep, parallelize, parallelize_step

__all__ = [
    "ParallelStep",
    "Planned",
    "default_cluster",
    "parallelize",
    "parallelize_step",
    "plan_for",
]
