"""A profiler of torch sees what a step does, stage by stage."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from torch import nn
from torch.profiler import ProfilerActivity, profile

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)


@pytest.fixture
def step() -> mw.ParallelStep:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def loss_of(model: nn.Module, x: Any) -> torch.Tensor:
        return model(x).square().mean()

    how: dict[str, Any] = {"stages": 2, "microbatches": 2, "zero": 3}
    return mw.parallelize(model, optimizer, loss_of, torch.ones(8, 16), cluster=CLUSTER, **how)


def test_ranges_are_the_plans_chunks_transfers_and_collectives(
    step: mw.ParallelStep, tmp_path: Path
) -> None:
    step(torch.ones(8, 16))
    with profile(activities=[ProfilerActivity.CPU]) as seen, step.runtime.recording() as executed:
        step(torch.ones(8, 16))
    names = Counter({event.key: event.count for event in seen.key_averages()})
    for stage in range(2):
        chunks = [name for name in names if re.search(rf"^\S.*of stage {stage}(,|$)", name)]
        for phase in ("forward", "backward"):
            runs = {name[-1] for name in chunks if phase in name and ", microbatch " in name}
            assert runs == {"0", "1"}, f"{phase} of stage {stage} in each microbatch"
        assert f"apply of stage {stage}" in chunks
    transfers = step.plan.transfers
    assert sum(n for name, n in names.items() if name.startswith("send ")) == 2 * len(transfers)
    assert sum(n for name, n in names.items() if name.startswith("receive ")) == 2 * len(transfers)
    begun = Counter[str]()
    for name, n in names.items():
        if found := re.match(r"begin (\w+) of (\d+) value", name):
            begun[found[1]] += n * int(found[2])
    counted = Counter[str]()
    for collectives in executed.values():
        for (kind, _, _), n in collectives.items():
            counted[kind] += n
    assert begun == counted
    assert counted
    path = tmp_path / "trace.json"
    seen.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    assert any(event.get("name") == "apply of stage 1" for event in events)
