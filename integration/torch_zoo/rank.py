"""One of several processes: `rank.py FOLDER MODEL/WAY...` trains, and writes what it found to
FOLDER/RANK.json. `torchrun` and `mpiexec` start it alike."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

if not __package__:  # run by its path: make `import torch_zoo` find the folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist
from frontends.torch.run.processes import join

from torch_zoo.check import check


def main(folder: Path, cases: Sequence[str]) -> None:
    """Train one model after another."""
    torch.set_num_threads(1)
    rank = join()
    found = [asdict(check(*case.rsplit("/", 1))) for case in cases]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
