"""Meshes, sharding specs with partial sums, exact slices, and resharding as collectives."""

from importlib.metadata import version

from .axis import Axis, Entry, Split, SubAxis
from .chunking import Chunking, Rule
from .errors import (
    LayoutError,
    MeshError,
    NotationError,
    ReshardError,
    ShardsError,
    ShardspecError,
    SpecError,
    StridedLayoutError,
    UnevenLayoutError,
    UnknownAxisError,
    UnknownDeviceError,
)
from .layout import Layout
from .mesh import Mesh
from .partial import Operation, Partial, Reduction
from .remesh import on_mesh
from .reshard import COLLECTIVES, WHOLE_AXES, reshard, reshard_whole_axes
from .shards import assemble, shard
from .simulate import simulate
from .spec import Spec
from .schedule import StepKind
from .step import ReshardPlan, Step
from .transfer import Transfer, transfers

__all__ = [
    "transfers",
    "Transfer",
    "reshard_whole_axes",
    "WHOLE_AXES",
    "COLLECTIVES",
    "Axis",
    "Chunking",
    "Entry",
    "Layout",
    "LayoutError",
    "Mesh",
    "MeshError",
    "NotationError",
    "Operation",
    "Partial",
    "Reduction",
    "ReshardError",
    "ReshardPlan",
    "Rule",
    "ShardsError",
    "ShardspecError",
    "Spec",
    "SpecError",
    "Split",
    "Step",
    "StepKind",
    "StridedLayoutError",
    "SubAxis",
    "UnevenLayoutError",
    "UnknownAxisError",
    "UnknownDeviceError",
    "assemble",
    "on_mesh",
    "reshard",
    "shard",
    "simulate",
]

__version__ = version("meshwright-shardspec")
