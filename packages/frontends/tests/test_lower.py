"""Conversions between layouts, as the collectives of one device."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import shardspec
from frontends.errors import InternalError
from frontends.jax.lower.lower import convert, jax_mesh, partition_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec

MESH = Mesh((2, 2), ("x", "y"))
SHAPE = (4, 8)
DIMS = ("R", "S0", "S1", "S01", "S10")


@st.composite
def specs(draw: st.DrawFn, *, partial: bool) -> Spec:
    """Any layout on the mesh, which uses each axis once."""
    first, second = draw(st.sampled_from(DIMS)), draw(st.sampled_from(DIMS))
    used = [int(c) for c in first + second if c.isdigit()]
    while len(used) != len(set(used)):
        second, used = "R", [int(c) for c in first if c.isdigit()]
    text = first + second
    for axis in {0, 1} - set(used) if partial else ():
        if draw(st.booleans()):
            text += f"+P{draw(st.sampled_from(('', 'max', 'min')))}{axis}"
    return Spec.parse(text)


@settings(max_examples=60)
@given(specs(partial=True), specs(partial=False))
def test_conversions_do_what_shardspec_says(src: Spec, dst: Spec) -> None:
    before, after = (Layout(SHAPE, MESH, spec) for spec in (src, dst))
    plan = shardspec.reshard_whole_axes(before, after)
    rng = np.random.default_rng(0)
    shards = {
        device: rng.integers(-9, 9, before.local_shape(device)).astype(np.float32)
        for device in MESH.device_ids
    }
    for group in MESH.groups(tuple(a for a in (0, 1) if a not in src.axes)):
        if not src.partial:  # replicas are equal
            shards.update((device, shards[group[0]]) for device in group)
    if len(src.partial) == 1 and len(src.axes) == 0:
        other = 1 - src.partial[0].axis
        for group in MESH.groups((other,)):
            shards.update((device, shards[group[0]]) for device in group)
    expected = shardspec.simulate(plan, shards)
    mesh = jax_mesh(MESH)
    axes = jax.sharding.PartitionSpec(("x", "y"))

    def local(x: Any) -> Any:
        return convert(x[0], SHAPE, MESH, src, dst)[None]

    stacked = np.stack([shards[device] for device in MESH.device_ids])
    run = jax.shard_map(local, mesh=mesh, in_specs=axes, out_specs=axes, check_vma=False)
    found = np.asarray(jax.jit(run)(stacked))
    for device, ours in zip(MESH.device_ids, found, strict=True):
        np.testing.assert_array_equal(ours, expected[device])
    assert partition_spec(dst, MESH) is not None


@pytest.mark.parametrize(
    "change", [{"kind": "collective_permute"}, {"reduction": "product"}, {"dim": None}]
)
def test_what_no_collective_does_is_refused(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    src, dst = Spec.parse("RR+P0"), Spec.parse("S0R")
    plan = shardspec.reshard_whole_axes(Layout(SHAPE, MESH, src), Layout(SHAPE, MESH, dst))
    (step,) = plan.steps
    assert step.kind == "reduce_scatter"
    wrong = replace(plan, steps=(replace(step, **change),))
    monkeypatch.setattr(shardspec, "reshard_whole_axes", lambda src, dst: wrong)
    with pytest.raises(InternalError, match="a conversion is made of reductions to a sum, max"):
        convert(np.zeros(SHAPE), SHAPE, MESH, src, dst)
