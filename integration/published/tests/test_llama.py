"""Llama is planned for contexts that no device can hold alone."""

from dataclasses import replace

import frontends.jax as mw
import pytest
from costmodel import Cluster
from published.llama import LLAMA_3_8B, llama_step


@pytest.mark.parametrize(
    ("batch", "layout", "step_s", "gib"),
    [
        (1, "RS1S0R", 0.66, 38.6),
        pytest.param(8, "S0RS1R", 3.68, 74.5, marks=pytest.mark.nightly),
    ],  # as in docs/attention.md
)
def test_a_context_of_131072_tokens_is_split_over_64_devices(
    batch: int, layout: str, step_s: float, gib: float
) -> None:
    function, arguments = llama_step(replace(LLAMA_3_8B, sequence=131072), batch)
    cluster = Cluster.preset("h100-sxm:8")
    ways = {"microbatches": 1, "stages": 1}
    plan = mw.plan_for(function, arguments, cluster, batch_argnums=2, **ways).plan
    assert not plan.unsharded
    assert plan.memory_bytes < cluster.device.memory_bytes
    queries = {
        str(placed.operands[0])
        for placed in plan.stages[0].placements
        if placed.operator.startswith("meshwright_attention")
    }
    assert queries == {layout}  # one example, 8 heads of keys: rows must be split, too
    assert plan.step_s == pytest.approx(step_s, abs=0.005)
    assert plan.memory_bytes / 2**30 == pytest.approx(gib, abs=0.05)
    # 8.03e9 parameters and half of the pairs of tokens; 989 TFLOP/s are the peak of a device.
    flops = batch * (6 * 8.03e9 * 131072 + 3.5 * 32 * 4 * 4096 * 131072**2 / 2)
    assert flops / (64 * 989e12) < plan.step_s < 4 * flops / (64 * 989e12)
