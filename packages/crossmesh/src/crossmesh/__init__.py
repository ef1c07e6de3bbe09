"""Moves sharded tensors from one device mesh to another.

`plan` decides which device sends which bytes to whom and in which order; `execute` carries a plan
out between processes, over any `Transport`; `execute_local` between the devices of one.
"""

from importlib.metadata import version

from crossmesh.errors import (
    ChecksumError,
    CrossmeshError,
    DeadlineError,
    MismatchError,
    MissingExtraError,
    PartialLayoutError,
    PlanError,
    RankError,
    RankShardError,
    RecordError,
    ShardError,
    TransferError,
    TransportError,
)
from crossmesh.executor import Execution, execute
from crossmesh.explain import explain
from crossmesh.geometry import shard_boxes
from crossmesh.links import Links
from crossmesh.local import LocalTransport, execute_local
from crossmesh.picture import picture
from crossmesh.plan import TransferPlan
from crossmesh.planner import plan
from crossmesh.search import Order
from crossmesh.simulate import TimedHop, Timeline, lower_bound_s, simulate
from crossmesh.task import Copy, Hop, Piece, Strategy, UnitTask
from crossmesh.tensor import Tensor
from crossmesh.transport import Transport

__version__ = version("meshwright-crossmesh")

__all__ = [
    "ChecksumError",
    "Copy",
    "CrossmeshError",
    "DeadlineError",
    "Execution",
    "Hop",
    "Links",
    "LocalTransport",
    "MismatchError",
    "MissingExtraError",
    "Order",
    "PartialLayoutError",
    "Piece",
    "PlanError",
    "RankError",
    "RankShardError",
    "RecordError",
    "ShardError",
    "Strategy",
    "Tensor",
    "TimedHop",
    "Timeline",
    "TransferError",
    "TransferPlan",
    "Transport",
    "TransportError",
    "UnitTask",
    "execute",
    "execute_local",
    "explain",
    "lower_bound_s",
    "picture",
    "plan",
    "shard_boxes",
    "simulate",
]
