"""Cuts a model into pipeline stages and gives each stage a part of the cluster."""

from importlib.metadata import version

from stagecut.ask import PriceCache
from stagecut.baseline import equal_layers
from stagecut.blocks import at_marks, repeated_blocks
from stagecut.boundary import Boundary
from stagecut.branches import (
    split_graph,
)
from stagecut.cluster import cluster_operators
from stagecut.errors import (
    InfeasibleClusteringError,
    InfeasibleStagesError,
    InvalidBoundError,
    InvalidInputError,
    MissingExtraError,
    RecordError,
    StagecutError,
    SubmeshError,
    UnfinishedSearchError,
    UnknownNameError,
)
from stagecut.given import price_stages
from stagecut.graph import (
    GraphSplit,
    GraphStage,
)
from stagecut.hosts import HostKind
from stagecut.network import TransferFunction
from stagecut.places import Places, SubmeshOfKind
from stagecut.plan import (
    Alternative,
    BoundaryFunction,
    BoundFunction,
    CostFunction,
    Rejection,
    Slicing,
    Span,
    StageCost,
    StageSlice,
    Submesh,
    pipeline_time_s,
)
from stagecut.planner import plan_stages
from stagecut.schedule import (
    SCHEDULES,
    InFlightFunction,
    eager_one_f_one_b,
    gpipe,
    one_f_one_b,
)
from stagecut.slice import slice_stages
from stagecut.stage_plan import PlannedStage, Rival, StagePlan
from stagecut.submesh import assign_devices, submesh_shapes

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
    "InvalidBoundError",
    "InvalidInputError",
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
