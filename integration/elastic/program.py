"""A run that goes on on what is left: `program.py FOLDER STEPS EVERY`, started by torchrun."""

import json
import os
import sys
import time
from pathlib import Path

import frontends.torch as mw
import torch
from torch import nn

ROWS, WIDTH = 24, 16


def batch_of(number: int) -> list[torch.Tensor]:
    """The batch of a step."""
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2)]


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model, with dropout, and its optimizer before the first step."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Tanh()) for _ in range(4))
    model = nn.Sequential(*blocks)
    return model, torch.optim.AdamW(model.parameters(), 1e-2, eps=1e-2)


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """The mean squared error."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def main(folder: Path, steps: int, every: int) -> None:
    """Run the steps that are left; the first process appends each loss to a file."""
    model, optimizer = make()
    step = mw.parallelize(model, optimizer, loss_of, microbatches=2, deadline_s=5)
    step.prepare(batch_of(0))
    for number in mw.elastic(step, folder / "checkpoints", steps, every=every):
        loss = float(step(batch_of(number)))
        if int(os.environ.get("RANK", "0")) == 0:
            world = int(os.environ.get("WORLD_SIZE", "1"))
            with (folder / "losses.jsonl").open("a") as file:
                file.write(json.dumps([number, loss, world]) + "\n")
        time.sleep(float(os.environ.get("SLOWLY", "0")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
