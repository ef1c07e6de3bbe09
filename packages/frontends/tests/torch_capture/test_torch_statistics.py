"""Statistics of microbatches in PyTorch: gradients are the mean of those of each of them alone."""

import copy
from collections.abc import Callable
from typing import Any

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends import AccumulationError, VerificationError
from frontends.torch.capture.arguments import State
from frontends.torch.capture.capture import training_step
from frontends.torch.testing import arguments_of, run_in_microbatches
from frontends.torch.trace.trace import Capture
from torch import nn
from torch.nn import functional

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
RATE = 0.1


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        x = torch.relu(self.norm(self.convolution(x.view(-1, 2, 2, 2))))
        return self.body(x.mean((2, 3))), 0.0


class Experts(nn.Module):
    """A loss that balances experts, as Mixtral has it in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gates = self.router(x).softmax(-1)
        chosen = gates.topk(2, -1).indices
        load = torch.histc(chosen.reshape(-1).float(), bins=4, min=0, max=4) / len(x)
        balance = (load * gates.mean(0)).sum()
        return self.expert(x) * gates.max(-1, keepdim=True).values, balance


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    out, more = model(batch["x"])
    return (out - batch["y"]).square().mean() + 0.1 * more


def example(make: Callable[[], nn.Module]) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = make()
    batch = {"x": torch.randn(12, 8), "y": torch.randn(12, 4)}
    return model, torch.optim.SGD(model.parameters(), RATE), batch


def expected_parameters(model: nn.Module, batch: Any, microbatches: int) -> dict[str, Any]:
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    n = 12 // microbatches
    for i in range(microbatches):
        alone = copy.deepcopy(model)
        loss_of(alone, {key: rows[i * n : (i + 1) * n] for key, rows in batch.items()}).backward()
        for name, parameter in alone.named_parameters():
            assert parameter.grad is not None
            sums[name] += parameter.grad
    new = {n: p - RATE * sums[n] / microbatches for n, p in model.named_parameters()}
    return {name: tensor.detach() for name, tensor in new.items()}


@pytest.mark.parametrize("microbatches", [2, 3])
@pytest.mark.parametrize("make", [Normed, Experts])
def test_a_step_is_the_mean_of_its_microbatches(
    make: Callable[[], nn.Module], microbatches: int
) -> None:
    model, optimizer, batch = example(make)
    expected = expected_parameters(model, batch, microbatches)
    step = training_step(loss_of)
    if make is Normed:
        with pytest.raises(AccumulationError, match="microbatch_statistics=True for sums of each"):
            Capture(step, model, optimizer, batch).at(microbatches)
    else:
        assert Capture(step, model, optimizer, batch).at(microbatches).first_pass is not None
    trace = Capture(step, model, optimizer, batch, statistics=True).at(microbatches)
    _, new = run_in_microbatches(trace, arguments_of(State(model, optimizer), batch))
    for name, tensor in expected.items():
        torch.testing.assert_close(new[f"params[{name!r}]"], tensor, rtol=1e-4, atol=1e-6)
    if make is Normed:
        whole = copy.deepcopy(model)
        whole(batch["x"])
        mean = whole.get_buffer("norm.running_mean")
        torch.testing.assert_close(new["buffers['norm.running_mean']"], mean)
        assert int(new["buffers['norm.num_batches_tracked']"]) == 1


@pytest.mark.parametrize("make", [Normed, Experts])
def test_stages_run_with_statistics_of_microbatches(make: Callable[[], nn.Module]) -> None:
    model, optimizer, batch = example(make)
    expected = expected_parameters(model, batch, 2)
    ways: dict[str, Any] = {"stages": 2, "microbatches": 2, "microbatch_statistics": True}
    step = mw.parallelize(model, optimizer, loss_of, cluster=CLUSTER, **ways)
    step(batch)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-4, atol=1e-6)
    with pytest.raises(VerificationError, match="verify with microbatches=1"):
        step.verify(batch)
    model.eval()
    found = step.evaluate(
        lambda model, batch: functional.mse_loss(model(batch["x"])[0], batch["y"]), batch
    )
    theirs = functional.mse_loss(model(batch["x"])[0], batch["y"])
    torch.testing.assert_close(found, theirs.detach(), rtol=1e-5, atol=1e-6)
