"""Ranks that plan by themselves make the same plan, in any process, thread and order."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

from crossmesh import Order, TaskStrategy, plan
from crossmesh.testing import batches
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec

ORDERS = st.sampled_from(get_args(Order))


def reversed_mapping(mapping):
    return dict(reversed(mapping.items()))


@given(batches(), ORDERS)
def test_the_order_of_mappings_does_not_matter(batch, order):
    arguments = [batch.src, batch.dst, batch.dtype, batch.hosts]
    one = plan(*arguments, batch.links, order=order, steps=1000)
    other = plan(*map(reversed_mapping, arguments), batch.links, order=order, steps=1000)
    assert one == other
    assert one.digest == other.digest


def all_digests():
    """Plans with every order and strategy, for a state dict on overlapping meshes."""
    specs = [("S0S1", "S1R"), ("R", "S01"), ("S[2]0R+P1", "RS0"), ("RS01", "S0S1")]
    src, dst = {}, {}
    for i, (old, new) in enumerate(specs):
        shape = (12,) * len([letter for letter in old.split("+")[0] if letter in "SR"])
        src[f"w{i}"] = Layout(shape, Mesh((2, 3), ("x", "y"), tuple(range(6))), Spec.parse(old))
        dst[f"w{i}"] = Layout(shape, Mesh((2, 2), ("x", "y"), (4, 5, 6, 7)), Spec.parse(new))
    hosts = {device: device // 2 for device in range(8)}
    return [
        plan(src, dst, "float32", hosts, order=order, strategy=strategy, steps=1000).digest
        for order in get_args(Order)
        for strategy in get_args(TaskStrategy)
    ]


def test_processes_with_different_hash_seeds_make_the_same_plans():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", "from test_same_plan import *; print(all_digests())"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=os.path.dirname(__file__),
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.strip()
        for seed in ("0", "12345")
    ]
    assert outputs == [str(all_digests())] * 2


def test_threads_make_the_same_plans():
    """The core releases the interpreter's lock while it searches."""
    expected = all_digests()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(all_digests) for _ in range(8)]
        assert [future.result() for future in futures] == [expected] * 8
