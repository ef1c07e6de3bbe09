"""Trainers of a small model, and the processes of test_trainer.py: `trainers.py FOLDER`.

Each process trains, goes on, resumes and saves, and writes what it saw to FOLDER/rank.json.
"""

import gc
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from costmodel import Cluster
from frontends import BatchError, CheckpointError, DeviceError, InitializationError
from frontends.torch.trainers.transformers import Trainer

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
STAGES: dict[str, Any] = {"cluster": CLUSTER, "stages": 2, "microbatches": 2}
N_TOKENS = 128


def llama() -> Any:
    """A model with dropout, whose weights depend on torch's seed."""
    sizes = {"vocab_size": N_TOKENS, "hidden_size": 32, "intermediate_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_dropout": 0.1}
    config = transformers.LlamaConfig(num_hidden_layers=2, **sizes, **heads)
    return transformers.LlamaForCausalLM(config)


def texts(n: int, start: int = 0) -> list[dict[str, torch.Tensor]]:
    """Examples, of which some have fewer words to predict."""
    examples = []
    for seed in range(start, start + n):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, N_TOKENS, (16,), generator=generator)
        labels = tokens.clone()
        labels[: seed % 5] = -100
        examples.append({"input_ids": tokens, "labels": labels})
    return examples


def arguments(folder: Path, kind: Any = transformers.TrainingArguments, **named: Any) -> Any:
    """Arguments for three quiet steps."""
    usual = {"per_device_train_batch_size": 8, "max_steps": 3, "learning_rate": 1e-2}
    quiet = {"report_to": [], "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no"}
    on_cpus = {"use_cpu": True, "dataloader_pin_memory": False}
    return kind(str(folder), **{**usual, **quiet, **on_cpus, **named})


def losses(trainer: Any) -> list[float]:
    """What the trainer has logged, without what it has measured."""
    known = ("loss", "eval_loss")
    logs = trainer.state.log_history
    return [log[name] for log in logs for name in known if name in log]


def total(model: Any) -> float:
    """A sum over all weights."""
    with torch.no_grad():
        return float(sum(p.double().abs().sum() for p in model.parameters()))


class Decays(transformers.TrainerCallback):
    """Looks at weights, and writes to them."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        for parameter in named["model"].parameters():
            parameter.mul_(0.99)
        self.seen.append(total(named["model"]))


def story(folder: Path, make: Any, **named: Any) -> dict[str, Any]:
    """Train with evaluation and checkpoints, go on, and resume.

    Args:
        folder: Where checkpoints go.
        make: The class of trainers.
        named: More arguments for it.
    """
    often = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    # The best is that of the largest loss, which is the first.
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    options = {"max_steps": 4, **often, **best, "greater_is_better": True}
    torch.manual_seed(0)
    model, data = llama(), {"train_dataset": texts(40), "eval_dataset": texts(12, 40)}
    decays = Decays()
    args = arguments(folder / "first", **options)
    trainer = make(model, args, **data, **named, callbacks=[decays])
    found: dict[str, Any] = {"before": trainer.evaluate()["eval_loss"]}
    trainer.train()
    if named:
        assert len(trainer.parallel_step.plan.stages) == named["stages"]
    found["first"], found["best"] = losses(trainer), Path(trainer.state.best_model_checkpoint).name
    found["trained"] = total(model)
    found["after"] = trainer.evaluate()["eval_loss"]
    found["predicted"] = float(abs(trainer.predict(texts(5)).predictions).sum())
    trainer.train()
    found["again"], found["seen"] = losses(trainer), decays.seen
    trainer.save_model(str(folder / "saved"))
    saved = transformers.LlamaForCausalLM.from_pretrained(folder / "saved")
    found["saved"] = total(saved)
    torch.manual_seed(1)
    args = arguments(folder / "second", max_steps=4)
    resumed = make(llama(), args, **data, **named, callbacks=[Decays()])
    resumed.train(resume_from_checkpoint=str(folder / "first" / "checkpoint-2"))
    found["resumed"] = losses(resumed)
    return found


def refusals(folder: Path, rank: int) -> dict[str, str]:
    """The errors of processes that have different data, and of one that cannot write."""
    found = {}
    torch.manual_seed(0)
    trainer = Trainer(llama(), arguments(folder), train_dataset=texts(24, rank), **STAGES)
    try:
        trainer.train()
    except BatchError as error:
        found["data"] = str(error)
    try:  # process 0 saves, while the others train
        trainer.save_model(str(folder / "alone")) if rank == 0 else trainer.train()
    except DeviceError as error:
        found["alone"] = str(error)
    torch.manual_seed(rank)
    other = Trainer(llama(), arguments(folder), train_dataset=texts(24), **STAGES)
    try:
        other.train()
    except InitializationError as error:
        found["weights"] = str(error)
    (folder / "file").touch()
    try:
        trainer.save_model(str(folder / "file" / "within"))
    except CheckpointError as error:
        found["file"] = str(error)
    return found


if __name__ == "__main__":
    gc.freeze()  # each capture would look through what imports have made
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    STAGES["cluster"] = CLUSTER.resized(devices_per_host=int(os.environ["WORLD_SIZE"]) // 2)
    found = story(folder, Trainer, **STAGES)
    found["refused"] = refusals(folder, rank)
    (folder / f"{rank}.json").write_text(json.dumps(found))
