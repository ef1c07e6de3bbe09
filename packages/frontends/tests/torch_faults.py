"""The processes of test_torch_watch.py: `torch_faults.py STORY FOLDER` under torchrun or mpiexec.
One of them is at fault in the third step; each writes its errors to FOLDER/rank.err."""

import os
import sys
from pathlib import Path

import frontends.torch as mw
import torch
from costmodel import Cluster
from faults import FAULTS
from torch import nn

DEADLINE_S = 6.0
AT_FAULT = 1
LOOKS_TOO_FAR = "looks too far"
"""The story of a batch that no process can compute."""


def loss_of(model: nn.Embedding, rows: torch.Tensor) -> torch.Tensor:
    return model(rows).square().mean()


def main(story: str, folder: Path) -> None:
    rank = next(int(os.environ[name]) for name in ("RANK", "PMI_RANK") if name in os.environ)
    # A launcher loses what processes print when one of them has ended.
    os.dup2(os.open(folder / f"{rank}.err", os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
    torch.set_num_threads(1)
    torch.manual_seed(0)  # other weights in each process would be refused
    model = nn.Embedding(4, 4)
    step = mw.parallelize(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        loss_of,
        cluster=Cluster.preset("two-hosts").resized(n_hosts=3, devices_per_host=1),
        deadline_s=DEADLINE_S,
        strategy="data_parallel",
        microbatches=1,
    )
    for n in range(3):
        rows = torch.ones(6, dtype=torch.int64)
        if (n, rank) == (2, AT_FAULT) and story != LOOKS_TOO_FAR:
            Path(folder, "at-fault").write_text(str(os.getpid()))
            FAULTS[story]()
        if (n, story) == (2, LOOKS_TOO_FAR):
            rows[2 * AT_FAULT] = 9
        step(rows)
    Path(folder, f"{rank}.done").touch()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
