"""Wrong arguments of `shard` raise typed errors that have the rule and the argument."""

import math

import numpy as np
import pytest
from autoshard import (
    AutoshardError,
    BaselineError,
    GraphError,
    OptionError,
    Options,
    PinError,
    ProblemError,
    Sharding,
    baseline,
    prepare,
    shard,
)
from autoshard.programs import mlp_step
from costmodel import Cluster
from shardspec import Mesh

GRAPH = mlp_step(batch=8, width=8, hidden=16)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"memory_bytes": math.nan}, OptionError, "a number of bytes.*; got memory_bytes=nan"),
        ({"memory_bytes": -1}, OptionError, "got memory_bytes=-1"),
        ({"memory_bytes": "x"}, OptionError, "got memory_bytes='x'"),
        ({"in_flight": 0}, OptionError, "at least one microbatch is in flight; got in_flight=0"),
        ({"in_flight": 1.5}, OptionError, "got in_flight=1.5"),
        ({"in_flight": "x"}, OptionError, "got in_flight='x'"),
        ({"overlap": math.nan}, OptionError, "at least 0 and below 1; got overlap=nan"),
        ({"overlap": "x"}, OptionError, "at least 0 and below 1; got overlap='x'"),
        ({"bucket_bytes": math.nan}, OptionError, "at least one byte.*; got bucket_bytes=nan"),
        ({"memory_rule": "x"}, OptionError, "a memory rule is one of .*; got 'x'"),
        ({"time_s": 0.0}, ProblemError, "time_s > 0, in seconds; got 0.0"),
        ({"time_s": math.nan}, ProblemError, "time_s > 0, in seconds; got nan"),
        ({"time_s": "x"}, ProblemError, "time_s > 0, in seconds; got 'x'"),
        ({"steps": 0}, ProblemError, "steps >= 1, or None for no limit; got 0"),
        ({"steps": 1.5}, ProblemError, "steps >= 1, or None for no limit; got 1.5"),
        ({"method": "x"}, ProblemError, "a method is one of auto,.*; got 'x'"),
        ({"uneven": 1}, OptionError, "uneven is True or False; got uneven=1"),
        ({"strided": None}, OptionError, "strided is True or False; got strided=None"),
        ({"tie": "x"}, OptionError, "tie is True or False; got tie='x'"),
        ({"polish": 2}, OptionError, "polish is True or False; got polish=2"),
        ({"bucket_bytes": math.inf}, OptionError, "at least one byte.*; got bucket_bytes=inf"),
        ({"method": []}, ProblemError, "a method is one of auto,.*; got \\[\\]"),
        ({"progress": 3}, ProblemError, "a function of an Incumbent, or None; got progress=3"),
        ({"pin": 3}, PinError, "pin maps names to strategies or specs; got pin=3"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(arguments, kind, message):
    assert issubclass(kind, AutoshardError)
    with pytest.raises(kind, match=message):
        shard(
            GRAPH, Mesh((2, 2), ("x", "y")), Cluster.preset("two-hosts"), compare=False, **arguments
        )


@pytest.mark.parametrize("nothing", [None, 3, "x"])
@pytest.mark.parametrize(
    ("place", "kind", "message"),
    [
        (0, GraphError, "a graph is a Graph, as .* makes it; got"),
        (1, OptionError, "mesh must be of class Mesh, as .*; got mesh="),
        (2, OptionError, "cluster must be of class Cluster, as .*; got cluster="),
    ],
)
def test_what_is_no_graph_mesh_or_cluster_is_refused(nothing, place, kind, message):
    given = [GRAPH, Mesh((2, 2), ("x", "y")), Cluster.preset("two-hosts")]
    given[place] = nothing
    for run in (shard, prepare):
        with pytest.raises(kind, match=message):
            run(*given)


def test_what_are_no_options_and_no_baseline_is_refused():
    where = (GRAPH, Mesh((2, 2), ("x", "y")), Cluster.preset("two-hosts"))
    with pytest.raises(OptionError, match=r"options must be of class Options.*; got options=3"):
        prepare(*where, 3)
    with pytest.raises(BaselineError, match=r"a baseline is one of .*; got None"):
        baseline(*where, None)


@pytest.mark.parametrize(
    "given",
    [
        {"memory_bytes": 16e9, "bucket_bytes": np.float32(1e6)},
        {"memory_bytes": np.int64(10**9), "in_flight": np.int32(2)},
        {"overlap": np.float32(0.5), "uneven": np.bool_(True)},
        {"memory_bytes": math.inf, "overlap": 0},
    ],
)
def test_numbers_of_any_kind_are_kept_as_plain_ones_and_read_back(given):
    options = Options(**given)
    assert options.memory_bytes in (None, given.get("memory_bytes", math.inf))
    found = shard(GRAPH, Mesh((2,), ("x",)), Cluster.preset("two-hosts"), compare=False, **given)
    assert found.options == options
    assert Sharding.from_json(found.to_json()) == found
