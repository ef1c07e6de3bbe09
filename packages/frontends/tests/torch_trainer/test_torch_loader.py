"""A loader that can be saved goes on where a run was interrupted."""

from pathlib import Path
from typing import Any

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

CLUSTER = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=2)


def begin(seed: int) -> tuple[mw.ParallelStep, StatefulDataLoader[Any]]:
    torch.manual_seed(seed)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    examples = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    step = mw.parallelize(
        model, optimizer, lambda model, x: model(x).square().mean(), examples[:8], cluster=CLUSTER
    )
    return step, StatefulDataLoader(examples, 8, shuffle=True)


@pytest.mark.filterwarnings("ignore")  # torchdata uses names that torch has deprecated
def test_a_stateful_loader_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    step, loader = begin(0)
    losses = []
    for number, batch in enumerate(loader):
        losses.append(float(step(batch)))
        if number == 1:
            step.save(tmp_path, number, extra={"loader": loader})
    again, other = begin(1)
    assert again.restore(tmp_path, extra={"loader": other}) == 1
    assert [float(again(batch)) for batch in other] == pytest.approx(losses[2:], rel=1e-6)
