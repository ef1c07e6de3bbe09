"""A run of Lightning, and the processes of test_torch_lightning.py: `lightnings.py FOLDER`."""

import gc
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from costmodel import Cluster
from frontends.torch.trainers.lightning import PlanStrategy
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)


class Net(pl.LightningModule):
    """Dropout, logs, and a schedule."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.GELU()
        self.net = nn.Sequential(*inner, nn.Linear(32, 4))
        self.right = MulticlassAccuracy(4, average="micro")
        self.right_later = MulticlassAccuracy(4, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        z = self.net(x)
        loss = cross_entropy(z, y)
        self.log("train_loss", loss, True)
        self.log("train_right", self.right(z, y))
        return {"loss": loss, "size": len(x)}

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad.mul_(0.5)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        z = self.net(x)
        self.log_dict(
            {"val_loss": cross_entropy(z, y), "right": (z.argmax(-1) == y).float().mean()}
        )

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0]).argmax(-1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)]


class Seen(pl.Callback):
    """What a callback sees."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        for parameter in module.parameters():
            parameter.grad.add_(0.01)

    def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, i: int) -> None:
        self.losses.append(float(out["loss"]) + out["size"])
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(0.99)
            self.losses.append(float(module.net[0].weight.sum()))


def story(folder: Path, *, accumulated: int = 1, **named: Any) -> dict[str, Any]:
    """Train two epochs; resume after the first one.

    Args:
        folder: Where checkpoints go.
        accumulated: Over how many batches gradients are accumulated.
        named: More arguments for Lightning's trainer.
    """
    generator = torch.Generator().manual_seed(1)
    n = 44 if accumulated == 1 else 36  # the last batch of an epoch is short, or alone
    x = torch.randn(n, 16, generator=generator)
    examples = TensorDataset(x, torch.randint(0, 4, (n,), generator=generator))
    validation = DataLoader(examples, 16)
    found: dict[str, Any] = {}
    first = folder / "first.ckpt"
    for name, path in (("whole", None), ("resumed", str(first))):
        torch.manual_seed(0 if path is None else 7)
        seen, module = Seen(), Net()
        saved = pl.callbacks.ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=2,
            callbacks=[seen, saved],
            gradient_clip_val=0.5,
            accumulate_grad_batches=accumulated,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            **({} if not named else {"strategy": PlanStrategy(**named)}),
        )
        # The order of examples is not part of Lightning's checkpoints.
        train = DataLoader(examples, 8)
        trainer.fit(module, train, validation, ckpt_path=path)
        if named:
            assert len(trainer.strategy.parallel_step.plan.stages) == named["stages"]
        found[f"{name} losses"] = seen.losses
        found[f"{name} metrics"] = {k: float(v) for k, v in trainer.callback_metrics.items()}
        with torch.no_grad():
            found[f"{name} sum"] = float(sum(p.double().abs().sum() for p in module.parameters()))
        measured = trainer.validate(module, validation, verbose=False)
        found[f"{name} measured"] = measured[0]["val_loss"]
        found[f"{name} predicted"] = torch.cat(trainer.predict(module, validation)).tolist()
        if path is None:
            trainer.strategy.barrier()
            (folder / "epoch=0.ckpt").replace(first) if trainer.is_global_zero else None
            trainer.strategy.barrier()
    return found


if __name__ == "__main__":
    gc.freeze()  # each capture would look through what imports have made
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    folder, n = Path(sys.argv[1]), int(os.environ["WORLD_SIZE"])
    cluster = CLUSTER.resized(devices_per_host=n // 2)
    found = story(folder, accumulated=2, cluster=cluster, stages=2, microbatches=2)
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
