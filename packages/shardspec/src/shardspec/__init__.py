"""Meshes, sharding specs with partial sums, exact slices, and resharding as collectives."""

from importlib.metadata import version

from .axis import Axis, Entry, Split, SubAxis
from .chunking import Chunking, Rule
from .errors import (
    LayoutError,
    MeshError,
    MissingExtraError,
    NotationError,
    PictureError,
    ReshardError,
    ShardsError,
    ShardspecError,
    SpecError,
    StridedLayoutError,
    UnevenLayoutError,
    UnknownAxisError,
    UnknownDeviceError,
)
from .explain import explain
from .layout import Layout
from .mesh import Mesh
from .partial import Operation, Partial, Reduction
from .picture import picture
from .remesh import on_mesh
from .reshard import COLLECTIVES, WHOLE_AXES, reshard, reshard_whole_axes
from .schedule import StepKind
from .shards import assemble, shard
from .sheet import Picture
from .simulate import simulate
from .spec import Spec
from .step import ReshardPlan, Step
from .terminal import draw
from .transfer import Transfer, transfers
from .transpose import LocalTranspose

__all__ = [
    "COLLECTIVES",
    "WHOLE_AXES",
    "Axis",
    "Chunking",
    "Entry",
    "Layout",
    "LayoutError",
    "LocalTranspose",
    "Mesh",
    "MeshError",
    "MissingExtraError",
    "NotationError",
    "Operation",
    "Partial",
    "Picture",
    "PictureError",
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
    "Transfer",
    "UnevenLayoutError",
    "UnknownAxisError",
    "UnknownDeviceError",
    "assemble",
    "draw",
    "explain",
    "on_mesh",
    "picture",
    "reshard",
    "reshard_whole_axes",
    "shard",
    "simulate",
    "transfers",
]

__version__ = version("meshwright-shardspec")
