"""Meshes, sharding specs with partial sums, exact slices, and resharding as collectives."""

from importlib.metadata import version

from shardspec.base.axis import Axis, Entry, Split, SubAxis
from shardspec.base.chunking import Chunking, ChunkingRule
from shardspec.base.partial import Operation, Partial, Reduction
from shardspec.errors import (
    AmountError,
    InternalError,
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
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.layout.spec import Spec
from shardspec.refine.shards import assemble, shard
from shardspec.refine.transpose import LocalTranspose
from shardspec.remesh import on_mesh
from shardspec.report.canvas import Picture
from shardspec.report.explain import explain
from shardspec.report.picture import picture
from shardspec.report.terminal import draw
from shardspec.resharding.construct import StepKind
from shardspec.resharding.reshard import COLLECTIVES, WHOLE_AXES, reshard, reshard_whole_axes
from shardspec.resharding.step import ReshardPlan, Step
from shardspec.resharding.transfer import Transfer, transfers
from shardspec.simulate import simulate

__all__ = [
    "COLLECTIVES",
    "WHOLE_AXES",
    "AmountError",
    "Axis",
    "Chunking",
    "ChunkingRule",
    "Entry",
    "InternalError",
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
