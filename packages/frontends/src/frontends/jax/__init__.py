"""Plan and run JAX training steps, on stock JAX.

`init` gives the process virtual devices, `parallelize` makes a parallel step from a step written
for one device, and `plan_for` plans without any devices. `save` and `restore` keep a run's state,
and `elastic` goes on from it after processes were lost. `register_rule` lets plans shard a
primitive of yours, `check_rules` tests its rule, and `custom_op` makes a primitive of a function.
`partition_specs` gives a plan's layouts to programs that use plain `jax.jit`. In a pipeline,
stacked layers of a step's state are a `StackedArray`.
"""

import jax

from frontends.base.tried import tell_untried
from frontends.jax.api.check_rules import check_rules
from frontends.jax.api.checkpoint import latest, restore, save
from frontends.jax.api.elastic import Elastic, elastic
from frontends.jax.api.parallel import ParallelStep, parallelize
from frontends.jax.api.partition_specs import partition_specs
from frontends.jax.api.plan_for import default_cluster, init, plan_for
from frontends.jax.base.stacked_array import StackedArray
from frontends.jax.rules.custom_op import custom_op
from frontends.jax.rules.rules import register_rule
from frontends.search.plan_step import Planned

tell_untried("jax", jax.__version__)

__all__ = [
    "Elastic",
    "ParallelStep",
    "Planned",
    "StackedArray",
    "check_rules",
    "custom_op",
    "default_cluster",
    "elastic",
    "init",
    "latest",
    "parallelize",
    "partition_specs",
    "plan_for",
    "register_rule",
    "restore",
    "save",
]
