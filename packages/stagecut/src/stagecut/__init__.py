"""Cuts a model into pipeline stages and gives each stage a part of the cluster."""

from importlib.metadata import version

from stagecut.base.edges import Boundary
from stagecut.base.held_microbatches import (
    SCHEDULES,
    InFlightFunction,
    eager_one_f_one_b,
    gpipe,
    one_f_one_b,
)
from stagecut.base.types import (
    Alternative,
    BoundaryFunction,
    BoundFunction,
    CostFunction,
    MemoryLimit,
    Rejection,
    Slicing,
    Span,
    StageCost,
    StageSlice,
    Submesh,
    pipeline_time_s,
)
from stagecut.branches.graph import GraphSplit, GraphStage
from stagecut.branches.split_graph import split_graph
from stagecut.errors import (
    InfeasibleClusteringError,
    InfeasibleStagesError,
    InternalError,
    InvalidBoundError,
    InvalidInputError,
    MissingExtraError,
    RecordError,
    StagecutError,
    SubmeshError,
    UnfinishedSearchError,
    UnknownNameError,
)
from stagecut.layers.cluster_operators import cluster_operators
from stagecut.layers.repeated_blocks import at_marks, repeated_blocks
from stagecut.placement.host_packing import HostKind
from stagecut.placement.offers import Places, SubmeshOfKind
from stagecut.placement.submesh import assign_devices, submesh_shapes
from stagecut.plan.baseline import equal_layers
from stagecut.plan.plan_stages import plan_stages
from stagecut.plan.price_stages import price_stages
from stagecut.plan.stage_plan import StagePlan
from stagecut.plan.stage_plan_fields import PlannedStage, Rival
from stagecut.slice.price_requests import PriceCache
from stagecut.slice.slice import slice_stages
from stagecut.slice.transfers import TransferFunction

__version__ = version("meshwright-stagecut")

__all__ = [
    "SCHEDULES",
    "Alternative",
    "BoundFunction",
    "Boundary",
    "BoundaryFunction",
    "CostFunction",
    "GraphSplit",
    "GraphStage",
    "HostKind",
    "InFlightFunction",
    "InfeasibleClusteringError",
    "InfeasibleStagesError",
    "InternalError",
    "InvalidBoundError",
    "InvalidInputError",
    "MemoryLimit",
    "MissingExtraError",
    "Places",
    "PlannedStage",
    "PriceCache",
    "RecordError",
    "Rejection",
    "Rival",
    "Slicing",
    "Span",
    "StageCost",
    "StagePlan",
    "StageSlice",
    "StagecutError",
    "Submesh",
    "SubmeshError",
    "SubmeshOfKind",
    "TransferFunction",
    "UnfinishedSearchError",
    "UnknownNameError",
    "assign_devices",
    "at_marks",
    "cluster_operators",
    "eager_one_f_one_b",
    "equal_layers",
    "gpipe",
    "one_f_one_b",
    "pipeline_time_s",
    "plan_stages",
    "price_stages",
    "repeated_blocks",
    "slice_stages",
    "split_graph",
    "submesh_shapes",
]
