"""The processes of test_torch_compiled.py, which torchrun starts: `torch_compiled.py FOLDER`."""

import json
import sys
from pathlib import Path

import frontends.torch as mw
import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parent))

from test_torch_compiled import batches, loss_of, made


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
