import dataclasses
import json
import math

import pytest
from costmodel import (
    Cluster,
    ClusterFormatError,
    CostmodelError,
    Device,
    Host,
    Level,
    Link,
    QuantityError,
    collective_time,
)
from costmodel.testing import clusters, nested_clusters
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

DEVICE = Device(
    "toy",
    (("float32", 1e12), ("float16", 2e12)),
    2**30,
    1e11,
    1e-6,
    efficiency=(("float32", ((1e6, 0.1), (1e9, 0.5))),),
)
HOST = Host(DEVICE, 8, Link(1e-6, 64e9))
CLUSTER = Cluster("two", (HOST, HOST), (Level("network", 2, Link(1e-5, 1e9)),), "a test")


def changed(*path, to):
    """The text of `CLUSTER` with another value at a path; without it, for None at the end."""
    document = json.loads(CLUSTER.to_json())
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(document)


@given(st.one_of(clusters(), nested_clusters(half_duplex=True)))
def test_json_round_trip(cluster):
    assert Cluster.from_json(cluster.to_json()) == cluster


def test_json_round_trip_of_curves():
    assert Cluster.from_json(CLUSTER.to_json()) == CLUSTER


def test_equal_hosts_in_a_row_are_written_once():
    other = dataclasses.replace(HOST, n_devices=4)
    cluster = Cluster("c", (HOST, HOST, other, HOST), (Level("n", 4, Link(0, 1)),))
    document = json.loads(cluster.to_json())
    assert [(run["count"], run["n_devices"]) for run in document["hosts"]] == [
        (2, 8),
        (1, 4),
        (1, 8),
    ]


def test_a_text_may_leave_out_what_has_a_default_and_write_whole_numbers_with_an_exponent():
    text = json.dumps(
        {
            "version": 1,
            "name": "short",
            "hosts": [
                {
                    "count": 1e0,
                    "n_devices": 2,
                    "device": {
                        "name": "d",
                        "flops_per_s": {"float32": 10**12},
                        "memory_bytes": 16e9,
                        "memory_bandwidth_bytes_per_s": 10**11,
                        "launch_s": 0,
                    },
                    "link": {"latency_s": 0, "bandwidth_bytes_per_s": 1},
                }
            ],
            "levels": [],
        }
    )
    device = Device("d", (("float32", 1e12),), 16 * 10**9, 1e11, 0.0)
    assert Cluster.from_json(text) == Cluster("short", (Host(device, 2, Link(0.0, 1.0)),), ())
    assert isinstance(Cluster.from_json(text).device.memory_bytes, int)


def test_everything_that_is_missing_is_named_at_once():
    document = json.loads(CLUSTER.to_json())
    del document["name"], document["levels"][0]["link"], document["hosts"][0]["device"]["launch_s"]
    document["hosts"][0]["device"]["memory_bytes"] = None
    with pytest.raises(ClusterFormatError) as caught:
        Cluster.from_json(json.dumps(document))
    missing = (
        "name",
        "hosts[0].device.memory_bytes",
        "hosts[0].device.launch_s",
        "levels[0].link.latency_s",
        "levels[0].link.bandwidth_bytes_per_s",
    )
    assert caught.value.missing == missing
    assert str(caught.value) == (
        "a cluster is a JSON object with the fields that Cluster.to_json writes; here "
        + "; ".join(f"{path} is missing" for path in missing)
    )


@given(nested_clusters(), st.data())
def test_any_required_figure_that_is_missing_is_named(cluster, data):
    document = json.loads(cluster.to_json())
    path, inner = "", document
    optional = {"source", "duplex", "rails", "efficiency", "memory_part", "tile", "products"}
    while True:
        keys = range(len(inner)) if isinstance(inner, list) else sorted({*inner} - optional)
        key = data.draw(st.sampled_from(list(keys)))
        path += f"[{key}]" if isinstance(key, int) else f".{key}"
        if not isinstance(inner[key], list | dict) or key == "flops_per_s":
            break
        inner = inner[key]
    inner[key] = None
    with pytest.raises(ClusterFormatError) as caught:
        Cluster.from_json(json.dumps(document))
    assert caught.value.missing == (path.removeprefix("."),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "this is no JSON: Expecting"),
        ("[" * 100_000, "this is no JSON: maximum recursion depth"),
        (changed("version", to=9) + "}", "this is no JSON: Extra data"),
        (
            changed("hosts", 0, "link", "latency_s", to=10**400),
            r"hosts\[0\].link.latency_s is a number, not a whole number of 1329 bits",
        ),
        (changed("levels", 0, "rails", to=math.inf), "levels.0..rails is a whole number, not inf"),
        (changed("name", to=["x" * 10**6]), "name is a text, not .'x{198}[.]{3}$"),
        ("[]", r"the text is an object, not \[\]"),
        (changed("hosts", 0, "colour", to="red"), r"hosts\[0\].colour is unknown"),
        (changed("levels", 0, "rails", to=1.5), r"levels\[0\].rails is a whole number, not 1.5"),
        (changed("levels", 0, "rails", to=True), r"rails is a whole number, not True"),
        (changed("levels", to={}), r"levels is a list, not {}"),
        (changed("hosts", 0, "link", to=[1e-6, 1e9]), r"hosts\[0\].link is an object, not \["),
        (
            changed("hosts", 0, "link", "latency_s", to="slow"),
            r"hosts\[0\].link.latency_s is a number, not 'slow'",
        ),
        (
            changed("hosts", 0, "link", "duplex", to=True),
            r"hosts\[0\].link.duplex is a number, not True",
        ),
        (changed("name", to=1), "name is a text, not 1"),
        (
            changed("hosts", 0, "device", "flops_per_s", to={"float32": [1]}),
            r"hosts\[0\].device.flops_per_s.float32 is a number, not \[1\]",
        ),
        (
            changed("hosts", 0, "device", "flops_per_s", to=[["float32", 1]]),
            r"hosts\[0\].device.flops_per_s is an object, not \[\['float32', 1\]\]",
        ),
        (
            changed("hosts", 0, "device", "efficiency", to={"float32": [[1]]}),
            r"hosts\[0\].device.efficiency.float32\[0\] is a list, not \[1\]",
        ),
        (
            changed("version", to=2),
            "this cluster was written by a newer costmodel, in version 2 of the format; this one "
            "reads version 1: update costmodel, or write the cluster again",
        ),
        (changed("version", to="1"), "costmodel reads version 1 of a cluster; got version '1': w"),
    ],
    ids=lambda value: "" if value.startswith(("{", "[")) else value.replace("\\", ""),
)
def test_rejects_a_text_that_describes_no_cluster(text, reason):
    with pytest.raises(ClusterFormatError, match=reason) as caught:
        Cluster.from_json(text)
    assert caught.value.missing == ()


def leaves(value, path=()):
    """Paths of all values in a JSON document, lists and objects, too."""
    entries = {list: enumerate, dict: lambda value: value.items()}.get(type(value), lambda _: ())
    return [path, *(leaf for key, of in entries(value) for leaf in leaves(of, (*path, key)))]


HOSTILE = (None, True, "", "1", [], {}, 0, -1, 0.5, math.nan, math.inf, 1e300, 10**400, [[1]])


@given(path=st.sampled_from(leaves(json.loads(CLUSTER.to_json()))[1:]), to=st.sampled_from(HOSTILE))
def test_whatever_stands_in_a_text_is_refused_by_name_or_prices(path, to):
    try:
        cluster = Cluster.from_json(changed(*path, to=to))
    except CostmodelError as error:
        message = str(error)
    else:
        message = ""
        assert Cluster.from_json(cluster.to_json()) == cluster
        mesh = Mesh((cluster.n_devices,), ("x",))
        seconds = collective_time("all_reduce", 1e6, cluster.links(mesh).group((0,)))
        assert 0 <= seconds <= math.inf
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (("hosts", 0, "count"), 0, "n_hosts of a cluster is a whole number >= 1 and .*; got 0"),
        (
            ("hosts", 0, "count"),
            10**400,
            "n_hosts of a cluster .*; got a whole number of 1329 bits",
        ),
        (("hosts", 0, "n_devices"), 0, "n_devices of a host is a whole number >= 1 .*; got 0"),
        (("levels", 0, "n_hosts"), 3, "each level of a cluster joins more hosts"),
        (("levels", 0, "link", "latency_s"), -1, "latency_s of a link is a finite number >= 0"),
        (("levels", 0, "link", "latency_s"), math.nan, "latency_s of a link .*; got nan"),
        (
            ("hosts", 0, "device", "memory_bytes"),
            10**400,
            "memory_bytes of device 'toy' .* 1329 bits",
        ),
    ],
    ids=["count", "large count", "n_devices", "n_hosts", "latency_s", "NaN", "memory_bytes"],
)
def test_a_figure_out_of_range_in_json_is_named_as_such(path, to, message):
    with pytest.raises(QuantityError, match=message):
        Cluster.from_json(changed(*path, to=to))


@pytest.mark.parametrize("text", [None, 3, ["{}"]], ids=repr)
def test_rejects_what_is_no_text(text):
    with pytest.raises(ClusterFormatError, match="this is no JSON: the JSON object must be str"):
        Cluster.from_json(text)


def test_a_cluster_is_written_as_it_always_was(check_golden):
    check_golden("cluster.json", CLUSTER.to_json())
