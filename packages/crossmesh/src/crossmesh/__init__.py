"""Moves a sharded tensor from one device mesh to another.

`plan_transfer` decides which device sends which slice to whom and in which order; `execute_local`
carries a plan out between the devices of one process.
"""

from importlib.metadata import version

from crossmesh.errors import CrossmeshError, PartialLayoutError, PlanError, ShardError
from crossmesh.estimate import estimate_time_s, lower_bound_s
from crossmesh.local import LocalTransport, execute_local
from crossmesh.plan import Strategy, TransferPlan, UnitTask
from crossmesh.planner import plan_transfer
from crossmesh.route import Route

__version__ = version("meshwright-crossmesh")

__all__ = [
    "CrossmeshError",
    "LocalTransport",
    "PartialLayoutError",
    "PlanError",
    "Route",
    "ShardError",
    "Strategy",
    "TransferPlan",
    "UnitTask",
    "estimate_time_s",
    "execute_local",
    "lower_bound_s",
    "plan_transfer",
]
