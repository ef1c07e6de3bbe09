"""The program of one process: `rank.py FOLDER MODEL/WAY...` trains and writes FOLDER/RANK.json.

`torchrun` and `mpiexec` start it in the same way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

if not __package__:  # run by the path of this file: make `import torch_zoo` find the folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist
from frontends.torch.run.processes import join

from torch_zoo.check import check


def main(folder: Path, cases: Sequence[str]) -> None:
    """Train one model after another, and write the results of this process."""
    torch.set_num_threads(1)
    rank = join()
    results = [asdict(check(*case.rsplit("/", 1))) for case in cases]
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
