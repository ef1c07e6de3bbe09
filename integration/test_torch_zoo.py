"""Every model of the PyTorch zoo: captured, planned, run; equal to eager after five steps."""

import pytest
import torch
from torch_zoo.check import TOLERANCE, WAYS, check
from torch_zoo.models import MODELS

DAILY = {("GPT-2", "2 x 2"), ("Llama", "2 stages of 2"), ("ViT", "4")}
"""Three kinds of models and of plans; the whole product is for the night."""

CASES = [
    pytest.param(
        name, way, marks=[] if (name, way) in DAILY else [pytest.mark.nightly], id=f"{name}, {way}"
    )
    for name in MODELS
    for way in WAYS
]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_training_in_parallel_equals_eager(name: str, way: str) -> None:
    torch.set_num_threads(1)
    found = check(name, way)
    assert found.loss < TOLERANCE
    assert found.parameters < TOLERANCE
