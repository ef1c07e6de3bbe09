"""What a cluster charges: seconds of collectives and operators, bytes of memory."""

from importlib.metadata import version

from costmodel.activation import ActivationBytes, transformer_layer_bytes
from costmodel.algorithms import Choice, algorithms_of, collective_time, fastest
from costmodel.alpa import AlpaMesh
from costmodel.cluster import Cluster
from costmodel.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    broadcast_time,
    permute_time,
    point_to_point_time,
    reduce_scatter_time,
)
from costmodel.device import Device, operator_time
from costmodel.errors import (
    ClusterFormatError,
    CostmodelError,
    HeterogeneousClusterError,
    PlacementError,
    QuantityError,
    UnknownDtypeError,
    UnknownNameError,
)
from costmodel.link import GroupLinks, Link, MeshLinks, Tier
from costmodel.memory import stage_memory_bytes
from costmodel.operators import Work, work_time
from costmodel.optimizer import ParameterBytes, StateBytes
from costmodel.pipeline import InFlight, in_flight
from costmodel.presets import presets
from costmodel.resharding import reshard_time, sequence_time, step_time
from costmodel.rounds import Kind
from costmodel.topology import Host, Level

__all__ = [
    "ActivationBytes",
    "AlpaMesh",
    "Choice",
    "Cluster",
    "ClusterFormatError",
    "CostmodelError",
    "Device",
    "GroupLinks",
    "HeterogeneousClusterError",
    "Host",
    "InFlight",
    "Kind",
    "Level",
    "Link",
    "MeshLinks",
    "ParameterBytes",
    "PlacementError",
    "QuantityError",
    "StateBytes",
    "Tier",
    "UnknownDtypeError",
    "UnknownNameError",
    "Work",
    "algorithms_of",
    "all_gather_time",
    "all_reduce_time",
    "all_to_all_time",
    "broadcast_time",
    "collective_time",
    "fastest",
    "in_flight",
    "operator_time",
    "permute_time",
    "point_to_point_time",
    "presets",
    "reduce_scatter_time",
    "reshard_time",
    "sequence_time",
    "stage_memory_bytes",
    "step_time",
    "transformer_layer_bytes",
    "work_time",
]

__version__ = version("meshwright-costmodel")
