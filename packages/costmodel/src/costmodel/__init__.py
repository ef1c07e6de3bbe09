"""Cost model of a cluster: seconds of collectives and operators, bytes of memory."""

from importlib.metadata import version

from costmodel.errors import (
    ClusterFormatError,
    CostmodelError,
    HeterogeneousClusterError,
    PlacementError,
    QuantityError,
    RegistrationError,
    UnknownDtypeError,
    UnknownNameError,
)
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device, operator_bound, operator_time
from costmodel.hardware.link import GroupLinks, Link, MeshLinks, Tier, slowest_link
from costmodel.hardware.presets import presets
from costmodel.hardware.products import Product, ProductUnits
from costmodel.hardware.slowest import slowest_device
from costmodel.hardware.topology import Host, Level
from costmodel.memory.activation import ActivationBytes, transformer_layer_bytes
from costmodel.memory.held_microbatches import LINEAR_SCHEDULES, InFlight, in_flight
from costmodel.memory.memory import stage_memory_bytes
from costmodel.memory.optimizer import ParameterBytes, StateBytes
from costmodel.operators import Work, work_time
from costmodel.time.algorithm import AlgorithmEntry, CollectiveKind, Family
from costmodel.time.algorithm_table import Algorithms, known_algorithms, register_algorithm
from costmodel.time.alpa import AlpaMesh
from costmodel.time.choose import Choice, algorithms_of, collective_time, fastest
from costmodel.time.resharding import reshard_time, sequence_time, step_time
from costmodel.time.ring import (
    Rounds,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    broadcast_time,
    permute_time,
    point_to_point_time,
    reduce_scatter_time,
)

__all__ = [
    "LINEAR_SCHEDULES",
    "ActivationBytes",
    "AlgorithmEntry",
    "Algorithms",
    "AlpaMesh",
    "Choice",
    "Cluster",
    "ClusterFormatError",
    "CollectiveKind",
    "CostmodelError",
    "Device",
    "Family",
    "GroupLinks",
    "HeterogeneousClusterError",
    "Host",
    "InFlight",
    "Level",
    "Link",
    "MeshLinks",
    "ParameterBytes",
    "PlacementError",
    "Product",
    "ProductUnits",
    "QuantityError",
    "RegistrationError",
    "Rounds",
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
    "known_algorithms",
    "operator_bound",
    "operator_time",
    "permute_time",
    "point_to_point_time",
    "presets",
    "reduce_scatter_time",
    "register_algorithm",
    "reshard_time",
    "sequence_time",
    "slowest_device",
    "slowest_link",
    "stage_memory_bytes",
    "step_time",
    "transformer_layer_bytes",
    "work_time",
]

__version__ = version("meshwright-costmodel")
