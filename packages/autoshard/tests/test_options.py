"""Arguments of `shard` that mean nothing are typed errors that say the rule and what was given."""

import math

import pytest
from autoshard import AutoshardError, OptionError, PinError, ProblemError, shard
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
        ({"pin": 3}, PinError, "pin maps names to what they are held at; got pin=3"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(arguments, kind, message):
    assert issubclass(kind, AutoshardError)
    with pytest.raises(kind, match=message):
        shard(
            GRAPH, Mesh((2, 2), ("x", "y")), Cluster.preset("two-hosts"), compare=False, **arguments
        )
