"""Lightning, and Accelerate, by a plan do what they do on one device."""

import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import accelerate
import lightning.pytorch as pl
import pytest
import torch
from frontends import BatchError, PlanError, UnsupportedStepError
from frontends.torch import parallelize_step
from frontends.torch.trainers.accelerate import Accelerator
from frontends.torch.trainers.lightning import PlanStrategy
from launching import run
from torch import nn

sys.path.append(str(Path(__file__).parent))  # the program of the processes is there
from lightnings import CLUSTER, Net, story

PROGRAM = str(Path(__file__).with_name("lightnings.py"))
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
N = 4 if NIGHTLY else 2
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={N}"]

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders and loggers


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.nightly  # by day, the next test does this in processes
def test_one_process_trains_evaluates_and_resumes_as_one_device(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    expected = story(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    found = story(tmp_path / "ours", cluster=CLUSTER, stages=2, microbatches=2)
    assert_same(found, expected)


def test_processes_accumulate_evaluate_and_resume_as_one_device(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    expected = story(tmp_path / "theirs", accumulated=2)
    ended = run([*TORCHRUN, PROGRAM, str(tmp_path)], deadline_s=400)
    assert ended.status == 0, ended.output
    found = [json.loads(Path(tmp_path, f"{rank}.json").read_text()) for rank in range(N)]
    assert all(other == found[0] for other in found)
    assert_same(found[0], expected)


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Skips(Net):
    def optimizer_step(self, epoch: Any, batch_idx: int, optimizer: Any, closure: Any) -> None:
        closure()


class Searches(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class Looks(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        right = self.right(self.net(batch[0]), batch[1])
        return {"loss": self.net(batch[0]).sum() * right.item(), "size": 8}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Manual, "Manual calls its optimizers itself"),
        (Skips, "optimizer_step of Skips calls it"),
        (Searches, "use another optimizer"),
        (Looks, "computed after the step.*item of its result"),
    ],
)
def test_what_is_no_whole_step_is_refused(kind: type[Net], why: str) -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(8, 16), torch.zeros(8, dtype=torch.long))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, strategy=PlanStrategy(cluster=CLUSTER), **quiet
    )
    with pytest.raises((PlanError, UnsupportedStepError), match=why):
        trainer.fit(kind(), torch.utils.data.DataLoader(data, 8))


def test_options_of_a_strategy_are_checked_when_it_is_made() -> None:
    with pytest.raises(BatchError, match="microbatches"):
        PlanStrategy(microbatches="many")
    with pytest.raises(TypeError, match="stage"):
        PlanStrategy(stage=2)
    with pytest.raises(PlanError, match="cluster"):
        PlanStrategy(cluster="two-hosts")
    with pytest.raises(PlanError, match=re.escape("call trainer.fit before")):
        print(PlanStrategy().parallel_step)


def test_a_loop_with_an_accelerator_is_captured() -> None:
    seen = []
    for make, options in ((accelerate.Accelerator, None), (Accelerator, {"stages": 2})):
        torch.manual_seed(0)
        accelerate.state.GradientState._reset_state()  # other loops of the process share it
        accelerator, model = make(cpu=True), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4)
        loader = torch.utils.data.DataLoader(torch.randn(32, 8), 8)
        prepared = accelerator.prepare(model, optimizer, loader, schedule)

        def train(x: Any, prepared: Any = prepared, accelerator: Any = accelerator) -> Any:
            model, optimizer, *_ = prepared
            loss = model(x).square().mean()
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach(), norm

        step: Any = train
        if options:
            step = parallelize_step(
                train, model, prepared[1], cluster=CLUSTER, microbatches=2, **options
            )
        for x in prepared[2]:
            seen.append([float(value) for value in step(x)])
            prepared[3].step()
        if options:
            assert len(step.variants) == 1
    n = len(seen) // 2
    assert seen[n:] == [pytest.approx(values, rel=1e-5) for values in seen[:n]]
