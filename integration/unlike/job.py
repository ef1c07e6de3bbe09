"""One process of a step on emulated hosts: `job.py FOLDER`, started by torchrun.

It gets its share of a core from a control group, joins the others, runs the step on all devices and
on the fast ones alone, and the first process writes the losses and times of both.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # run by the name of the file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
from costmodel import Cluster
from frontends import torch as mw
from torch import nn

from unlike.shares import at_share_of_a_core

WIDTH, N_LAYERS = 384, 8


def model_of() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer, the same in every process."""
    torch.manual_seed(0)
    blocks = (
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        for _ in range(N_LAYERS)
    )
    model = nn.Sequential(*blocks)
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """The mean squared error."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def batches(n: int, examples: int) -> list[list[torch.Tensor]]:
    """Random batches, the same in every process."""
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(examples, WIDTH, generator=generator) for _ in range(2)] for _ in range(n)]


def run(cluster: Cluster, data: list[list[torch.Tensor]], share: float) -> dict[str, Any]:
    """Losses and seconds of steps on a cluster, and what its plan says.

    Only the steps run in this process's share of a core, not planning.
    """
    model, optimizer = model_of()
    step = mw.parallelize(model, optimizer, loss_of, cluster=cluster)
    step.prepare(data[0])
    losses, seconds = [], []
    with at_share_of_a_core(share):
        for batch in data:
            start = time.perf_counter()
            losses.append(float(step(batch)))
            seconds.append(time.perf_counter() - start)
    plan = step.plan
    return {
        "losses": losses,
        "seconds": seconds[1:],  # the first one allocates
        "predicted_s": plan.step_s,
        "stages": [
            [stage.last_layer - stage.first_layer + 1, [*stage.mesh.device_ids]]
            for stage in plan.stages
        ],
    }


def main() -> None:
    """Run the step in this process's share of a core."""
    folder = Path(sys.argv[1])
    asked = json.loads((folder / "job.json").read_text())
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    data = batches(asked["steps"], asked["examples"])
    for name in ("all", "alone"):
        found[name] = run(Cluster.from_json(asked[name]), data, asked["shares"][rank])
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
