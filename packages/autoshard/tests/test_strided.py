"""Conversions between strided and plain specs."""

import itertools
import math

import numpy as np
import pytest
from autoshard.conversion import Converter, spec_set, steps_of
from autoshard.graph import Value
from autoshard.moves import SpecGraph
from autoshard.testing import meshes
from costmodel import Cluster, Device, Link, reshard_time, step_time
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Layout, Partial, ReshardError, Spec, Split, assemble, reshard, simulate
from shardspec import shard as cut

CLUSTER = Cluster.uniform(
    "toy",
    n_hosts=4,
    devices_per_host=2,
    device=Device("toy", (("float32", 1e12),), 2**30, 1e11, 1e-6),
    intra_host=Link(1e-6, 100e9),
    inter_host=Link(2e-5, 5e9),
)
SHAPES = [(48,), (8, 48), (16, 24, 2), (3, 16)]


@st.composite
def strided_specs(draw, shape, mesh):
    """A spec of whole axes with splits before some of them; some of the others are partial."""
    dims = [[] for _ in shape]
    left = list(shape)
    partial = []
    axes = [axis for axis, n in enumerate(mesh.shape) if n > 1]
    for axis in draw(st.permutations(axes)):
        n = mesh.shape[axis]
        where = draw(st.sampled_from(["free", "partial", *range(len(shape))]))
        if where == "partial":
            partial.append(Partial(axis))
        elif where != "free":
            splits = [k for k in (1, 2, 3, 4) if left[where] % (k * n) == 0]
            if splits:
                split = draw(st.sampled_from(splits))
                dims[where] += [Split(split), axis]
                left[where] //= split * n
    return Spec(tuple(map(tuple, dims)), tuple(partial))


@st.composite
def conversions(draw):
    """A value on a mesh of 8 devices or fewer, and two of its specs, strided or not."""
    mesh = draw(meshes())
    value = Value("v", draw(st.sampled_from(SHAPES)), "float32")
    plain = SpecGraph(value.shape, mesh.shape).specs
    strided = strided_specs(value.shape, mesh)
    return mesh, value, draw(strided), draw(strided | st.sampled_from(plain)), draw(st.booleans())


def price(of, value, src, dst):
    return of.seconds(value, spec_set((src,)), spec_set((dst,)))[0, 0]


@given(conversions())
def test_the_steps_of_a_conversion_take_as_long_as_it_is_priced_and_do_it(conversion):
    mesh, value, src, dst, turned = conversion
    if turned:
        src, dst = dst, src
    links = CLUSTER.links(mesh)
    found = Converter(mesh, links)
    seconds = price(found, value, src, dst)
    if seconds == math.inf:
        assert not set(dst.partial) <= set(src.partial)
        with pytest.raises(ReshardError, match="does not get from"):
            found.path(value, src, dst)
        return
    path = (src, *found.path(value, src, dst))
    assert path[-1] == dst
    total = 0.0
    shards = None
    for before, after in itertools.pairwise(path):
        (step,) = steps_of(value.shape, mesh, before, after)
        took = step_time(step, value.itemsize, links)
        assert price(found, value, before, after) == pytest.approx(took)
        assert found.path(value, before, after) == (after,)
        total += took
        plan = reshard(*(Layout(value.shape, mesh, spec) for spec in (before, after)))
        if len(plan.steps) == 1 and not src.is_partial:
            array = np.arange(math.prod(value.shape)).reshape(value.shape)
            shards = cut(plan.src, array) if shards is None else shards
            shards = simulate(plan, shards)
            np.testing.assert_array_equal(assemble(plan.dst, shards), array)
    assert total == pytest.approx(seconds)


@given(conversions())
def test_no_single_step_of_shardspec_is_faster(conversion):
    mesh, value, src, dst, turned = conversion
    if turned:
        src, dst = dst, src
    if src.is_plain and dst.is_plain:
        return  # for these only the steps of `jax.lax` count
    try:
        plan = reshard(*(Layout(value.shape, mesh, spec) for spec in (src, dst)))
    except ReshardError:
        return
    if len(plan.steps) == 1 and set(dst.partial) <= set(src.partial):
        links = CLUSTER.links(mesh)
        theirs = reshard_time(plan, value.itemsize, links)
        assert price(Converter(mesh, links), value, src, dst) <= theirs * (1 + 1e-9)


@settings(max_examples=settings().max_examples // 4)
@given(conversions())
def test_what_was_asked_before_changes_no_price(conversion):
    mesh, value, src, dst, _ = conversion
    links = CLUSTER.links(mesh)
    used, fresh = Converter(mesh, links), Converter(mesh, links)
    price(used, value, dst, src)
    price(used, value, Spec(src.dims, ()), dst)
    assert price(used, value, src, dst) == pytest.approx(price(fresh, value, src, dst))
