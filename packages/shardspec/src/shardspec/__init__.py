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
from .spec import Partial, Reduction, Spec

__all__ = [
    "Layout",
    "LayoutError",
    "Mesh",
    "MeshError",
    "Partial",
    "Reduction",
    "ReshardError",
    "ShardsError",
    "ShardspecError",
    "Spec",
    "SpecError",
    "UnevenLayoutError",
    "UnknownAxisError",
    "UnknownDeviceError",
]

__version__ = version("meshwright-shardspec")
