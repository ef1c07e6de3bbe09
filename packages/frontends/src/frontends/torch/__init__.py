"""Plan and run PyTorch training steps, on stock torch.

`parallelize` takes a model, its optimizer and a loss, `parallelize_step` a whole training step as
it was written for one device; `plan_for` plans without any devices. `save` and `restore` keep the
state of a run, and `elastic` goes on from it after processes were lost. `register_rule` lets plans
shard an operator of yours, `check_rules` tries its rule.
"""

import torch

from frontends.base.tried import tell_untried
from frontends.search.plan_step import Planned
from frontends.torch.api.check_rules import check_rules
from frontends.torch.api.checkpoint import latest, restore, save
from frontends.torch.api.elastic import elastic
from frontends.torch.api.parallel import ParallelStep, parallelize, parallelize_step
from frontends.torch.api.plan_for import default_cluster, plan_for
from frontends.torch.rules.rules import register_rule

tell_untried("torch", torch.__version__)

__all__ = [
    "ParallelStep",
    "Planned",
    "check_rules",
    "default_cluster",
    "elastic",
    "latest",
    "parallelize",
    "parallelize_step",
    "plan_for",
    "register_rule",
    "restore",
    "save",
]
