"""One rank of test_schedules_in_torch.py: `ranks.py RANK N_RANKS FOLDER`.

Runs every schedule of FOLDER/jobs.json in torch's runtime, over gloo, and writes the resulting
gradients to FOLDER/<job>.<rank>.pt.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH = 4


def model(n_stages: int) -> list[torch.nn.Module]:
    """The stages, which are equal on every rank."""
    torch.manual_seed(0)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()).double()
        for _ in range(n_stages)
    ]


def batch(n_microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The input and the target, with two rows for each microbatch."""
    torch.manual_seed(1)
    shape = 2 * n_microbatches, WIDTH
    return torch.randn(shape, dtype=torch.double), torch.randn(shape, dtype=torch.double)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The loss, which is a sum, so that it is equal for the whole batch and for microbatches."""
    return ((output - target) ** 2).sum()


def run(rank: int, folder: Path, name: str, job: dict[str, Any]) -> None:
    modules = model(job["n_stages"])
    mine = [stage for stage, home in enumerate(job["ranks"]) if home == rank]
    stages = [
        PipelineStage(modules[stage], stage, job["n_stages"], torch.device("cpu")) for stage in mine
    ]
    runtime = _PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
        stages, job["n_microbatches"], loss_fn=loss, scale_grads=False
    )
    runtime._load_csv(str(folder / f"{name}.csv"), format=job["format"])
    x, target = batch(job["n_microbatches"])
    labels: dict[str, Any] = {"target": target} if job["n_stages"] - 1 in mine else {}
    runtime.step(*([x] if 0 in mine else []), **labels)
    gradients = {
        f"{stage}.{key}": p.grad for stage in mine for key, p in modules[stage].named_parameters()
    }
    torch.save(gradients, folder / f"{name}.{rank}.pt")


def main() -> None:
    rank, n_ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=n_ranks,
        timeout=timedelta(seconds=60),
    )
    for name, job in json.loads((folder / "jobs.json").read_text()).items():
        run(rank, folder, name, job)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
