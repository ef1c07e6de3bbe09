"""`transformers.Trainer` by a plan does what it does on one device."""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from frontends import BatchError, PlanError
from frontends.torch.trainers.transformers import Trainer
from launching import run
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.append(str(Path(__file__).parent))  # the program of the processes is there
from trainers import STAGES, arguments, llama, losses, story, texts, total

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
PROGRAM = str(Path(__file__).with_name("trainers.py"))
N = 4 if NIGHTLY else 2
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={N}"]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What one device does, and where its checkpoints are."""
    folder = tmp_path_factory.mktemp("eager")
    return folder, story(folder, transformers.Trainer)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-5))


def test_processes_train_evaluate_save_and_resume_as_one_device(
    expected: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    ended = run([*TORCHRUN, PROGRAM, str(tmp_path)], deadline_s=400)
    assert ended.status == 0, ended.output
    found = [json.loads(Path(tmp_path, f"{rank}.json").read_text()) for rank in range(N)]
    refused, *others = [each.pop("refused") for each in found]
    assert all(other == found[0] for other in found)
    assert re.search("process 0 is about to save a model, and process 1 to run a", refused["alone"])
    assert all(re.search("to run a batch, and process 0 to save", x["alone"]) for x in others)
    assert re.search("processes 0 and 1 have different ones", refused["data"])
    assert re.search("0 and 1 have different values of model.embed", refused["weights"])
    assert re.search("process 0: .*(exists|directory)", refused["file"])
    assert_same(found[0], expected[1])
    assert ended.output.count("train_runtime") == 3, "one process prints"


def test_checkpoints_are_those_of_the_trainer(
    expected: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    seen = []

    def go_on(make: Any, folder: Path, **named: Any) -> Path:
        """Resume, and return where the new checkpoints are."""
        torch.manual_seed(len(seen))
        args = arguments(tmp_path / str(len(seen)), max_steps=6, save_strategy="steps")
        trainer = make(llama(), args, train_dataset=texts(40), **named)
        trainer.train(resume_from_checkpoint=str(folder))
        seen.append([*losses(trainer)[-2:], total(trainer.model)])
        return Path(args.output_dir)

    start = expected[0] / "first" / "checkpoint-2"
    go_on(transformers.Trainer, start)
    ours = go_on(Trainer, start, **STAGES)
    go_on(transformers.Trainer, ours / "checkpoint-4")
    assert seen[1] == pytest.approx(seen[0], rel=1e-5)
    assert seen[2] == pytest.approx(seen[0], rel=1e-5)


def test_what_a_plan_decides_or_cannot_do_is_refused(tmp_path: Path) -> None:
    data = {"train_dataset": texts(8)}
    with pytest.raises(PlanError, match="leave out torch_compile"):
        Trainer(llama(), arguments(tmp_path, torch_compile=True), **data)
    asked = arguments(tmp_path)
    asked.fp16 = True
    with pytest.raises(PlanError, match="bf16=True"):
        Trainer(llama(), asked, **data)
    asked = arguments(tmp_path)
    asked.fsdp = "full_shard"
    with pytest.raises(PlanError, match="leave out fsdp='full_shard'"):
        Trainer(llama(), asked, **data)
    with torch.device("meta"):
        model = llama()
    with pytest.raises(PlanError, match=re.escape("step.init")):
        Trainer(model, arguments(tmp_path), **data)
    with pytest.raises(BatchError, match="microbatches"):
        Trainer(llama(), arguments(tmp_path), **data, microbatches="many")
    with pytest.raises(PlanError, match="cluster"):
        Trainer(llama(), arguments(tmp_path), **data, cluster="two-hosts")
    with pytest.raises(PlanError, match=re.escape("call train() first")):
        print(Trainer(llama(), arguments(tmp_path), **data).parallel_step)


Do = Callable[[Any], Any]
Case = Callable[[Callable[..., Any]], tuple[Any, Do]]
"""Makes a trainer of a class, and says what to do with it; that may return numbers."""

CASES: dict[str, tuple[type, Case]] = {}
BY_DAY = ("overridden_loss_and_a_batch_that_is_short", "a_callback_before_the_optimizer")


def case(kind: type = transformers.Trainer) -> Callable[[Case], Case]:
    def add(make: Case) -> Case:
        CASES[make.__name__] = kind, make
        return make

    return add


def here(**named: Any) -> Any:
    return arguments(Path(tempfile.mkdtemp()), **named)


def train(trainer: Any) -> None:
    trainer.train()


class WithPenalty(transformers.Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(input_ids=inputs["input_ids"])
        labels = inputs["labels"][:, 1:].flatten()
        loss = cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels)
        loss = loss + 1e-4 * sum(p.square().sum() for p in model.parameters())
        return (loss, outputs) if return_outputs else loss


@case(WithPenalty)
def overridden_loss_and_a_batch_that_is_short(make: Callable[..., Any]) -> tuple[Any, Do]:
    args = here(gradient_accumulation_steps=2, num_train_epochs=1, max_steps=-1)
    return make(llama(), args, train_dataset=texts(28)), train


@case()
def a_callback_before_the_optimizer(make: Callable[..., Any]) -> tuple[Any, Do]:
    class Halves(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            for parameter in named["model"].parameters():
                parameter.grad.mul_(0.5)
            named["optimizer"].param_groups[0]["lr"] *= 0.5

    return make(llama(), here(), train_dataset=texts(24), callbacks=[Halves()]), train


@case()
def classes_with_dropout(make: Callable[..., Any]) -> tuple[Any, Do]:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.BertConfig(vocab_size=128, num_attention_heads=4, num_labels=3, **sizes)
    model = transformers.BertForSequenceClassification(config)
    data = [{"input_ids": x["input_ids"], "labels": i % 3} for i, x in enumerate(texts(24))]
    return make(model, here(), train_dataset=data), train


@case()
def smooth_labels(make: Callable[..., Any]) -> tuple[Any, Do]:
    return make(llama(), here(label_smoothing_factor=0.1), train_dataset=texts(24)), train


@case()
def a_function_for_the_loss(make: Callable[..., Any]) -> tuple[Any, Do]:
    def loss_of(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        logits = outputs.logits.flatten(0, 1)
        return cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch

    args = here(gradient_accumulation_steps=2)
    return make(llama(), args, train_dataset=texts(48), compute_loss_func=loss_of), train


@case()
def no_clipping(make: Callable[..., Any]) -> tuple[Any, Do]:
    return make(llama(), here(max_grad_norm=0, weight_decay=0.1), train_dataset=texts(24)), train


@case()
def checkpointed_layers(make: Callable[..., Any]) -> tuple[Any, Do]:
    return make(llama(), here(activation_checkpointing=True), train_dataset=texts(24)), train


@case()
def adafactor(make: Callable[..., Any]) -> tuple[Any, Do]:
    return make(llama(), here(optim="adafactor"), train_dataset=texts(24)), train


@case()
def noise_in_embeddings(make: Callable[..., Any]) -> tuple[Any, Do]:
    return make(llama(), here(neftune_noise_alpha=5), train_dataset=texts(24)), train


@case()
def models_made_by_the_trainer(make: Callable[..., Any]) -> tuple[Any, Do]:
    return make(args=here(), model_init=lambda: llama(), train_dataset=texts(24)), train


@case()
def a_stream_of_examples(make: Callable[..., Any]) -> tuple[Any, Do]:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(texts(24))

    return make(llama(), here(), train_dataset=Stream()), train


@case()
def a_schedule_by_evaluation_and_an_early_stop(make: Callable[..., Any]) -> tuple[Any, Do]:
    often = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    stop = transformers.EarlyStoppingCallback(1)
    args = here(
        lr_scheduler_type="reduce_lr_on_plateau",
        metric_for_best_model="loss",
        load_best_model_at_end=True,
        greater_is_better=True,
        **often,
    )
    data = {"train_dataset": texts(24), "eval_dataset": texts(8, 24)}
    return make(llama(), args, **data, callbacks=[stop]), train


@case()
def an_optimizer_of_the_users(make: Callable[..., Any]) -> tuple[Any, Do]:
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    return make(model, here(), train_dataset=texts(24), optimizers=(optimizer, schedule)), train


@case()
def half_precision(make: Callable[..., Any]) -> tuple[Any, Do]:
    return make(llama(), here(bf16=True), train_dataset=texts(24)), train


@case(transformers.Seq2SeqTrainer)
def generated_predictions(make: Callable[..., Any]) -> tuple[Any, Do]:
    sizes = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8}
    config = transformers.T5Config(vocab_size=128, decoder_start_token_id=0, **sizes)
    data = [{"input_ids": x["input_ids"], "labels": x["input_ids"][:6]} for x in texts(24)]
    args = arguments(
        Path(tempfile.mkdtemp()),
        transformers.Seq2SeqTrainingArguments,
        predict_with_generate=True,
        generation_max_length=6,
        learning_rate=1e-3,
    )

    def do(trainer: Any) -> Any:
        trainer.train()
        return trainer.predict(data[:8]).predictions

    return make(transformers.T5ForConditionalGeneration(config), args, train_dataset=data), do


@pytest.mark.parametrize("name", CASES if NIGHTLY else BY_DAY)
def test_any_trainer_does_what_it_does_on_one_device(name: str) -> None:
    kind, make = CASES[name]
    ours = type("Ours", (Trainer,) if kind is transformers.Trainer else (Trainer, kind), {})
    one_stage = {**STAGES, "stages": 1}
    seen = []
    for made, more in ((kind, {}), (ours, one_stage)):
        torch.manual_seed(0)
        np.random.seed(0)
        trainer, do = make(lambda *args, **named: made(*args, **named, **more))  # noqa: B023
        numbers = do(trainer)
        state = nn.Module.state_dict(trainer.model)
        seen.append((losses(trainer), state, numbers))
    (a, state_a, numbers_a), (b, state_b, numbers_b) = seen
    close = 2e-3 if name == "half_precision" else 1e-5
    assert b == pytest.approx(a, rel=close)
    for key, value in state_a.items() if name != "half_precision" else ():
        torch.testing.assert_close(state_b[key], value, rtol=1e-4, atol=1e-4)
    if numbers_a is not None:
        np.testing.assert_array_equal(numbers_b, numbers_a)
