"""The model of test_torch_compiled.py, and its processes, which torchrun starts with a FOLDER."""

import json
import sys
from pathlib import Path

import frontends.torch as mw
import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.drop(torch.tanh(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.body = nn.ModuleList(Block() for _ in range(n_layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.body:
            x = block(x)
        return x @ self.table.weight.T


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens)[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())


def made(n_layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model(n_layers)
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def batches(n: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 16, (8, 6), generator=generator) for _ in range(n)]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    found = {}
    for strategy in ("zero", "equal_layers"):
        model, optimizer = made(3)
        step = mw.parallelize(
            model,
            optimizer,
            loss_of,
            strategy=strategy,
            microbatches=1 if strategy == "zero" else 2,
            backend="inductor",
            deadline_s=20,
        )
        torch.manual_seed(2)
        losses = [float(step(tokens)) for tokens in batches(5)]
        runners = step.variants[0].runtime.engine.runners or []
        assert all(runner.is_compiled for runner in runners)
        found[strategy] = {"losses": losses, "compiled": len(runners)}
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
