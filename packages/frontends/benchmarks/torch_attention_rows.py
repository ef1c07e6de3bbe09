"""The processes of test_torch_attention_rows.py: `torchrun --nproc-per-node 2
torch_attention_rows.py FILE LENGTH WIDTH ROUNDS`. They write what they measured to FILE."""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import frontends.torch as mw
import torch
import torch.distributed as dist
from costmodel import Cluster
from frontends.torch.run.processes import join
from torch import nn

KERNEL = "_scaled_dot_product_flash_attention_for_cpu"
WAYS: dict[str, tuple[int, str]] = {
    "heads": (8, "RS0RR,RS0RR"),
    "rows": (8, "RRS0R,RRRR"),
    "ring": (8, "RRS0R,RRS0R"),
    "rows, not balanced": (7, "RRS0R,RRRR"),
}
"""How many heads there are, and how queries and keys are split. Seven have no halves."""


class Model(nn.Module):
    """Two layers of attention, which is most of the work."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.shape, size = (3, heads, width), heads * width
        self.table, self.head = nn.Embedding(64, size), nn.Linear(size, 64)
        self.qkv = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer in self.qkv:
            q, k, v = layer(x).unflatten(-1, self.shape).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + mixed.transpose(1, 2).flatten(2)
        return self.head(x)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def planned(way: str, width: int) -> mw.ParallelStep:
    """The step of a model, split in one way."""
    heads, spec = WAYS[way]
    torch.manual_seed(0)
    model = Model(heads, width)
    options: dict[str, Any] = {"stages": 1, "mesh": (1, 2), "microbatches": 1}
    return mw.parallelize(
        model,
        torch.optim.SGD(model.parameters(), 0.01),
        loss_of,
        cluster=Cluster.preset("virtual-cpu").resized(devices_per_host=2),
        pin={KERNEL: spec, f"{KERNEL}_backward": f"{spec.split(',')[0]},{spec}"},
        **options,
    )


def main(file: Path, length: int, width: int, rounds: int) -> None:
    torch.set_num_threads(1)
    rank = join()
    tokens = torch.randint(0, 64, (1, length), generator=torch.Generator().manual_seed(1))
    steps = {way: planned(way, width) for way in WAYS}
    losses = {way: [float(step(tokens)) for _ in range(2)] for way, step in steps.items()}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, step in steps.items():
            start_s = time.perf_counter()
            float(step(tokens))
            seconds[way].append(time.perf_counter() - start_s)
    if rank == 0:
        found = {
            "losses": losses,
            "seconds": {way: statistics.median(taken_s) for way, taken_s in seconds.items()},
            "predicted": {way: step.plan.step_s for way, step in steps.items()},
        }
        file.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
