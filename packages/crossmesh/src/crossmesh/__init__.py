"""Moves sharded tensors from one device mesh to another.

`plan` decides which device sends which bytes to which other device, and in which order. `execute`
carries out a plan between processes, over any `Transport`; `execute_local` carries it out between
the devices of one process.
"""

from importlib.metadata import version

from crossmesh.base.geometry import shard_boxes
from crossmesh.base.links import Links
from crossmesh.base.task import Copy, Hop, Piece, TaskStrategy, UnitTask
from crossmesh.base.tensor import Tensor
from crossmesh.engines.local import LocalTransport, execute_local
from crossmesh.errors import (
    ChecksumError,
    CrossmeshError,
    DeadlineError,
    InternalError,
    MismatchError,
    MissingExtraError,
    PartialLayoutError,
    PlanError,
    RankError,
    RankShardError,
    RecordError,
    ShardError,
    StallError,
    TransferError,
    TransportError,
)
from crossmesh.report.explain import explain
from crossmesh.report.picture import picture
from crossmesh.run.executor import Execution, execute
from crossmesh.run.transport import Transport
from crossmesh.search.planner import plan
from crossmesh.transfer.plan import TransferPlan
from crossmesh.transfer.simulate import TimedHop, Timeline, lower_bound_s, simulate
from crossmesh.transfer.solver import Order

__version__ = version("meshwright-crossmesh")

__all__ = [
    "ChecksumError",
    "Copy",
    "CrossmeshError",
    "DeadlineError",
    "Execution",
    "Hop",
    "InternalError",
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
    "StallError",
    "TaskStrategy",
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
