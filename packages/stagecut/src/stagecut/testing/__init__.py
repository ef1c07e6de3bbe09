"""Hypothesis strategies for small problems, and brute-force solvers that share no code with ours.

There is one file for each subject. The extra `testing` is needed.
"""

from stagecut.testing.clustering import (
    ClusteringProblem,
    brute_force_clustering,
    clustering_problems,
    layer_quality,
)
from stagecut.testing.clusters import (
    all_assignments,
    cluster_shapes,
    clusters,
    host_kinds,
    pipeline_distance,
    requests,
    tilings,
)
from stagecut.testing.graphs import (
    GraphSplittingProblem,
    brute_force_graph_split,
    brute_force_linear_cut,
    graph_split_time_s,
    graph_splitting_problems,
)
from stagecut.testing.pipelines import (
    PipelineProblem,
    brute_force_pipelines,
    pipeline_problems,
    pipeline_step_s,
)
from stagecut.testing.slicing import (
    SlicingProblem,
    all_slicings,
    brute_force_peak,
    brute_force_slicing,
    slicing_problems,
)

__all__ = [
    "ClusteringProblem",
    "GraphSplittingProblem",
    "PipelineProblem",
    "SlicingProblem",
    "all_assignments",
    "all_slicings",
    "brute_force_clustering",
    "brute_force_graph_split",
    "brute_force_linear_cut",
    "brute_force_peak",
    "brute_force_pipelines",
    "brute_force_slicing",
    "cluster_shapes",
    "clustering_problems",
    "clusters",
    "graph_split_time_s",
    "graph_splitting_problems",
    "host_kinds",
    "layer_quality",
    "pipeline_distance",
    "pipeline_problems",
    "pipeline_step_s",
    "requests",
    "slicing_problems",
    "tilings",
]
