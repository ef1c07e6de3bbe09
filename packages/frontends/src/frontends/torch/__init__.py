"""Plan and run PyTorch training steps, on stock torch.

`parallelize` takes a model, its optimizer and a loss, `parallelize_step` a whole training step as
it was written for one device; `plan_for` plans without any devices. `save` and `restore` keep the
state of a run.
"""

from frontends.planning import Planned
from frontends.torch.api import default_cluster, plan_for
from frontends.torch.checkpoint import latest, restore, save
from frontends.torch.parallel import ParallelStep, parallelize, parallelize_step

__all__ = [
    "ParallelStep",
    "Planned",
    "default_cluster",
    "latest",
    "parallelize",
    "parallelize_step",
    "plan_for",
    "restore",
    "save",
]
