"""What passes between stages arrives as numbers of its type, though numpy does not know it."""

import random

import crossmesh
import ml_dtypes  # noqa: F401, numpy knows bfloat16 then
import numpy as np
import pytest
import torch
from costmodel import Cluster
from frontends.layers.layers import layer
from frontends.plan.plan_fields import Stored
from frontends.testing import random_plan
from frontends.torch.capture.capture import training_step
from frontends.torch.run.runtime import Runtime
from frontends.torch.trace.trace import Capture
from shardspec import Layout, Mesh, Spec
from torch import nn

MESHES = Mesh((2, 2), ("x", "y")), Mesh((2,), ("x",), (4, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_partial_sums_that_cross_stages_are_added_in_their_type(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(dtype)
    step = training_step(lambda model, batch: model(batch).square().mean())
    optimizer = torch.optim.SGD(model.parameters())
    capture = Capture(step, model, optimizer, torch.zeros(8, 8, dtype=dtype))
    trace = capture.at(2)
    layered = layer(trace.step, 2)
    plan = random_plan(layered, MESHES, random.Random(0), "1f1b")
    run = Runtime(trace, layered, plan, Cluster.preset("two-hosts"), capture.state.tensors)
    transfer = next(t for t in plan.transfers if t.phase == "forward")
    value = layered.step.graph.value(transfer.value)
    partial, whole = Spec.parse("RR+P0"), Spec.parse("RR")
    src, dst = (Layout(value.shape, m, s) for m, s in zip(MESHES, (partial, whole), strict=True))
    planned = crossmesh.plan(src, dst, value.dtype, dict.fromkeys(range(6), 0))
    first, second = torch.randn(2, *value.shape).to(dtype)
    see = run.engine.sharder(0, Stored(transfer.value, partial))
    make = run.engine.assembler(1, Stored(transfer.value, whole))
    carry = crossmesh.LocalTransport(planned, share=True)
    arrived = carry(see([first, first, second, second]))
    # a process that has nothing to give gets arrays of the plan's type
    as_planned = {d: a.view(np.dtype(value.dtype)) for d, a in arrived.items()}
    for made in (*make(arrived), *make(as_planned)):
        assert made.dtype == dtype
        assert torch.equal(made, first + second)
