"""Padded microbatches compute what those without padding do, in PyTorch."""

import copy
from collections.abc import Callable
from typing import Any

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends.torch.capture.capture import training_step
from frontends.torch.testing import Example, error, trained_error
from frontends.torch.trace.trace import Capture
from torch import Tensor, nn
from torch.nn import functional

torch.set_num_threads(1)
TOLERANCE = 1e-5


class Language(nn.Module):
    """Tokens, attention, a norm and tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm, self.drop = nn.LayerNorm(8), nn.Dropout(0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        heads = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).split(8, -1))
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = self.norm(x + self.drop(self.out(mixed.transpose(1, 2).flatten(2))))
        return x @ self.table.weight.T


class Images(nn.Module):
    """Convolutions and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.conv(x))), 2)
        return self.head(x.mean((2, 3)))


def language(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten())


def ignoring(model: nn.Module, batch: Any) -> Tensor:
    labels = batch["y"].masked_fill(batch["y"] < 4, -100)
    return functional.cross_entropy(model(batch["x"]).flatten(0, 1), labels.flatten())


def labelled(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def contrastive(model: nn.Module, batch: Any) -> Tensor:
    y = functional.normalize(model(batch["x"]), dim=1)
    return functional.cross_entropy(y @ y.T / 0.1, torch.arange(len(y)))


def hardest(model: nn.Module, batch: Any) -> Tensor:
    y = model(batch["x"])
    return y.square().sum(1).max() + y.sort(0).values[:3].sum() + y.std(0).sum()


def numbered(model: nn.Module, batch: Any) -> Tensor:
    y = model(batch["x"])
    return (y * torch.linspace(0, 1, len(y))[:, None]).sum() + (y[1:] - y[:-1]).abs().mean()


def tokens(n: int) -> Any:
    return {name: torch.randint(0, 12, (n, 6)) for name in ("x", "y")}


def images(n: int) -> Any:
    return {"x": torch.randn(n, 2, 4, 4), "y": torch.randint(0, 12, (n,))}


CASES: list[tuple[Callable[[], nn.Module], Callable[..., Tensor], Callable[[int], Any], int]] = [
    (Language, language, tokens, 1),
    (Language, language, tokens, 2),
    (Language, ignoring, tokens, 2),
    (Images, labelled, images, 1),
    (Images, contrastive, images, 1),
    (Images, hardest, images, 1),
    (Images, numbered, images, 1),
]


def example(
    make: Callable[[], nn.Module], loss: Callable[..., Tensor], batch: Callable[[int], Any]
) -> Example:
    torch.manual_seed(0)
    batches = [batch(10) for _ in range(2)]
    return Example(make(), lambda p: torch.optim.SGD(p, 0.1, 0.9), training_step(loss), batches)


@pytest.mark.parametrize(("make", "loss", "batch", "microbatches"), CASES)
def test_a_padded_step_is_the_eager_one(
    make: Callable[[], nn.Module],
    loss: Callable[..., Tensor],
    batch: Callable[[int], Any],
    microbatches: int,
) -> None:
    given = example(make, loss, batch)
    capture = Capture(given.step, given.model, given.optimizer, given.batches[0])
    trace = capture.at(microbatches, 12 // microbatches)
    assert len(trace.rows["batch['x']"]) == 12
    assert trained_error(capture, trace, given) < TOLERANCE


def test_one_gradient_of_zero_serves_all_layers() -> None:
    def masks(n_layers: int) -> int:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(n_layers)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step = training_step(lambda model, x: model(x).square().mean())
        graph = Capture(step, model, optimizer, torch.randn(10, 8)).at(1, 12).step.graph
        return sum(op.kind == "masked_fill" for op in graph.operators)

    assert masks(2) == masks(8) <= 2


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "zero", "microbatches": 1},
        {"dp": 3, "stages": 1, "microbatches": 2},
        {"dp": 3, "stages": 2, "microbatches": 2},
    ],
)
def test_devices_that_do_not_divide_the_batch_share_it(options: Any) -> None:
    given = example(Language, language, tokens)
    ours, theirs = copy.deepcopy(given), copy.deepcopy(given)
    n = 3 * options.get("stages", 1)
    cluster = Cluster.preset("virtual-cpu").resized(devices_per_host=n)
    step = mw.parallelize_step(ours.step, ours.model, ours.optimizer, cluster=cluster, **options)
    for seed, batch in enumerate((*given.batches, tokens(7), *given.batches)):
        torch.manual_seed(seed)
        expected = theirs.step(theirs.model, theirs.optimizer, batch)
        torch.manual_seed(seed)
        assert error(step(ours.model, ours.optimizer, batch), expected) < TOLERANCE
    assert step.plan.padded_to * step.plan.microbatches == 12
    for name, parameter in theirs.model.named_parameters():
        assert error(ours.model.get_parameter(name).detach(), parameter.detach()) < TOLERANCE
