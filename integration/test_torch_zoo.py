"""Every model of the PyTorch zoo is captured, planned and run, and equals eager after five steps.

Some also run in four processes, where the calls of process groups are those of the plan.
"""

import re

import pytest
import torch
import torch.distributed as dist
from frontends.torch.capture.capture import training_step
from frontends.torch.trace.trace import Capture
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch_zoo.check import TOLERANCE, WAYS, Found, check, loss_of
from torch_zoo.groups import Recorder
from torch_zoo.launch import LAUNCHED, LAUNCHED_WAYS, LAUNCHERS, launch
from torch_zoo.models import MODELS

DAILY = {("GPT-2", "2 x 2"), ("Llama", "2 stages of 2"), ("ViT", "4")}
"""Three kinds of models and of plans; all other pairs run at night."""

CASES = [
    pytest.param(
        name, way, marks=[] if (name, way) in DAILY else [pytest.mark.nightly], id=f"{name}, {way}"
    )
    for name in MODELS
    for way in WAYS
]


def assert_equals_eager(result: Found) -> None:
    assert result.loss < TOLERANCE
    assert result.parameters < TOLERANCE


@pytest.mark.parametrize(("name", "way"), CASES)
def test_training_in_parallel_equals_eager(name: str, way: str) -> None:
    torch.set_num_threads(1)
    result = check(name, way)
    assert_equals_eager(result)
    if way == "4":
        assert result.stages == ((4,),)


@pytest.mark.nightly  # by day, test_torch_processes.py
def test_four_processes_train_and_communicate_as_planned() -> None:
    results = launch("torchrun", [("VGG", "2 x 2"), ("U-Net", "2 stages of 2")])
    assert [len(result.stages) for result in results] == [1, 2]
    for result in results:
        assert_equals_eager(result)
        assert result.n_collectives > 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_of_every_launcher_train_and_communicate_as_planned(
    launcher: str, name: str
) -> None:
    for result in launch(launcher, [(name, way) for way in LAUNCHED_WAYS]):
        assert_equals_eager(result)


def test_each_layer_that_may_be_dropped_at_random_is_recorded_as_a_decision() -> None:
    model = MODELS["OPT"].make().train()
    model.model.decoder.layerdrop = 0.5
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    capture = Capture(training_step(loss_of), model, optimizer, MODELS["OPT"].batch())
    lines = [question.line for question in capture.captured.decisions.questions]
    assert len(lines) == model.config.num_hidden_layers
    for line in lines:
        assert re.search(r"modeling_opt\.py:\d+: .*layerdrop", line)


def test_a_recorder_counts_the_collectives_of_process_groups() -> None:
    whole, part = torch.ones(4, 3), torch.ones(3)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        pair = dist.new_group([1, 3])
        with Recorder() as recorder:
            dist.all_reduce(whole, group=pair)
            dist.all_gather([part.clone() for _ in range(4)], part)
            dist.reduce_scatter(part, list(whole))
            dist.all_to_all_single(whole, whole.clone())
            dist.broadcast(part, 0)
        dist.all_reduce(whole)  # after the `with` block: not recorded
    finally:
        dist.destroy_process_group()
    everyone = (0, 1, 2, 3)
    assert recorder.seen == {
        ("all_reduce", (1, 3), 48): 1,
        ("all_gather", everyone, 48): 1,
        ("reduce_scatter", everyone, 12): 1,
        ("all_to_all", everyone, 48): 1,
        ("broadcast", everyone, 12): 1,
    }
