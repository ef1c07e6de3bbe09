"""Moves sharded tensors from one device mesh to another.

`plan` decides which device sends which bytes to whom and in which order; `execute_local` carries a
plan out between the devices of one process.
"""

from importlib.metadata import version

from crossmesh.errors import (
    CrossmeshError,
    PartialLayoutError,
    PlanError,
    RecordError,
    ShardError,
)
from crossmesh.geometry import shard_boxes
from crossmesh.links import Links
from crossmesh.local import LocalTransport, execute_local
from crossmesh.plan import TransferPlan
from crossmesh.planner import plan
from crossmesh.search import Order
from crossmesh.simulate import TimedHop, Timeline, lower_bound_s, simulate
from crossmesh.task import Copy, Hop, Piece, Strategy, UnitTask
from crossmesh.tensor import Tensor

__version__ = version("meshwright-crossmesh")

__all__ = [
    "Copy",
    "CrossmeshError",
    "Hop",
    "Links",
    "LocalTransport",
    "Order",
    "PartialLayoutError",
    "Piece",
    "PlanError",
    "RecordError",
    "ShardError",
    "Strategy",
    "Tensor",
    "TimedHop",
    "Timeline",
    "TransferPlan",
    "UnitTask",
    "execute_local",
    "lower_bound_s",
    "plan",
    "shard_boxes",
    "simulate",
]
