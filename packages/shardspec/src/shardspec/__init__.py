"""Meshes, sharding specs with partial sums, exact slices, and resharding as collectives."""

from importlib.metadata import version

from .errors import (
    LayoutError,
    MeshError,
    ReshardError,
    ShardsError,
    ShardspecError,
    SpecError,
    UnevenLayoutError,
    UnknownAxisError,
    UnknownDeviceError,
)
from .layout import Layout
from .mesh import Mesh
from .reshard import reshard
from .simulate import assemble, shard, simulate
from .spec import Partial, Reduction, Spec
from .step import ReshardPlan, Step, StepKind

__all__ = [
    "Layout",
    "LayoutError",
    "Mesh",
    "MeshError",
    "Partial",
    "Reduction",
    "ReshardError",
    "ReshardPlan",
    "ShardsError",
    "ShardspecError",
    "Spec",
    "SpecError",
    "Step",
    "StepKind",
    "UnevenLayoutError",
    "UnknownAxisError",
    "UnknownDeviceError",
    "assemble",
    "reshard",
    "shard",
    "simulate",
]

__version__ = version("meshwright-shardspec")
