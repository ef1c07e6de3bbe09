"""Modules of PyTorch that interleave examples run in microbatches, and are the same as in one."""

import warnings

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends.errors import BatchError
from frontends.testing import rearranged, rearrangements
from frontends.torch.capture.capture import training_step
from frontends.torch.testing import (
    Example,
    arguments_of,
    error,
    run_in_microbatches,
    trained_error,
)
from frontends.torch.trace.trace import Capture
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
TOLERANCE = 1e-5
WIDTH, TOKENS, WORDS = 8, 6, 12


class Weights(nn.Module):
    def __init__(self, moves):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4) / 2)
        self.moves = moves

    def forward(self, x):
        keep = lambda shape: torch.bernoulli(torch.full(shape, 0.7)).bool()  # noqa: E731
        return rearranged(self.moves, x @ self.w, self.w, torch, keep).square().mean()


@settings(max_examples=settings().max_examples // 8)
@given(rearrangements(), st.sampled_from([1, 2, 4]))
def test_random_steps_that_move_their_examples_run_in_microbatches(moves, microbatches):
    torch.manual_seed(0)
    model = Weights(moves)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 3, 4)
    step = training_step(lambda model, x: model(x))
    capture = Capture(step, model, optimizer, x)
    trace = capture.at(microbatches)
    torch.manual_seed(1)
    found, updates = run_in_microbatches(trace, arguments_of(capture.state, x))
    torch.manual_seed(1)
    assert error(found, step(model, optimizer, x)) < TOLERANCE
    assert error(updates, {name: model.state_dict()["w"] for name in updates}) < TOLERANCE


class Fused(nn.Module):
    """Attention as timm and torchvision write it: one product makes queries, keys and values."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(n, t, WIDTH))


class Attention(nn.Module):
    """Attention over tokens that come first, as PyTorch's tutorials have them."""

    def __init__(self, **options):
        super().__init__()
        self.inner, self.weights = nn.MultiheadAttention(WIDTH, 2, **options), bool(options)

    def forward(self, x):
        x = x.transpose(0, 1)
        mixed, weights = self.inner(x, x, x, need_weights=self.weights)
        return mixed.transpose(0, 1) + (weights.mean((1, 2))[:, None, None] if self.weights else 0)


class Pooled(nn.Module):
    """The pooling of CLIP: the mean of all tokens asks, and is one of them."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2)

    def forward(self, x):
        x = x.permute(1, 0, 2)
        x = torch.cat([x.mean(0, keepdim=True), x])
        return (x[1:] + self.inner(x[:1], x, x, need_weights=False)[0]).permute(1, 0, 2)


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.inner = kind(WIDTH, WIDTH, **options)

    def forward(self, x):
        if self.inner.batch_first:
            return self.inner(x)[0]
        return self.inner(x.transpose(0, 1))[0].transpose(0, 1)


class Transformer(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.inner = nn.Transformer(WIDTH, 2, 1, 1, 16, 0.1, **options)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        if self.inner.batch_first:
            return self.inner(x, x, tgt_mask=mask)
        x = x.transpose(0, 1)
        return self.inner(x, x, tgt_mask=mask).transpose(0, 1)


class Last(nn.Module):
    """Reads the last token that counts of each example, as models that score a text do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        hidden = self.inner(x).tanh()
        last = (x[..., 0] > 0).int().cumsum(1).argmax(1)
        return hidden + hidden[torch.arange(len(x)), last][:, None]


class Largest(nn.Module):
    """Reads and writes some tokens of each example, as Informer does with its queries."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        hidden = self.inner(x).tanh()
        largest = hidden.square().sum(-1).topk(2).indices
        rows = torch.arange(len(x)).unsqueeze(-1)
        other = hidden.clone()
        other[rows, largest, :] = 2 * hidden[rows, largest - TOKENS]
        return other


class Filled(nn.Module):
    """Hidden states are filled where a mask says so, as wav2vec 2.0 does with padding."""

    def __init__(self, mask_of):
        super().__init__()
        self.inner, self.mask_of = nn.Linear(WIDTH, WIDTH), mask_of

    def forward(self, x):
        hidden = self.inner(x)
        hidden[self.mask_of(x)] = 0.5
        return hidden


class Pair(nn.Module):
    """Two batches that go through a model as one, as in a loss of preferences."""

    def __init__(self, join, part):
        super().__init__()
        self.inner, self.join, self.part = nn.Linear(WIDTH, WIDTH), join, part

    def forward(self, x):
        one, other = self.part(self.inner(self.join(x)).tanh(), len(x))
        return one - 0.5 * other


def written(x, n):
    """Ranges, one of which is written to."""
    x = x.clone()
    x[:n] = 2 * x[:n]
    return x[:n], x[n:]


MODULES = {
    "fused": Fused,
    "attention": Attention,
    "attention with weights and dropout": lambda: Attention(dropout=0.2),
    "pooled": Pooled,
    "encoder": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.2, batch_first=True),
    "transformer": lambda: Transformer(batch_first=True),
    "transformer with tokens first": Transformer,
    "gru": lambda: Recurrent(nn.GRU, batch_first=True),
    "lstm with tokens first": lambda: Recurrent(nn.LSTM),
    "last": Last,
    "largest": Largest,
    "filled": lambda: Filled(lambda x: x[..., 0] > 0),
    "filled by element": lambda: Filled(lambda x: x > 0),
    "chunks": lambda: Pair(lambda x: torch.cat([x, x + 1]), lambda x, n: x.chunk(2)),
    "ranges": lambda: Pair(lambda x: torch.cat([x] * 2), lambda x, n: (x[:n], x[n:])),
    "split": lambda: Pair(lambda x: x.repeat(2, 1, 1), lambda x, n: x.split(n)),
    "stacked": lambda: Pair(
        lambda x: torch.stack([x, x + 1]).flatten(0, 1), lambda x, n: x.unflatten(0, (2, n))
    ),
    "written": lambda: Pair(lambda x: torch.cat([x, x + 1]), written),
}


def loss_of(model, batch):
    return functional.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten())


def example(make, n=4):
    torch.manual_seed(0)
    batches = [
        {"x": torch.randn(n, TOKENS, WIDTH), "y": torch.randint(0, WIDTH, (n, TOKENS))}
        for _ in range(2)
    ]
    step = training_step(loss_of)
    return Example(make(), lambda p: torch.optim.SGD(p, 0.1, 0.9), step, batches)


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_other_people_run_in_microbatches(name):
    given = example(MODULES[name])
    capture = Capture(given.step, given.model, given.optimizer, given.batches[0])
    assert trained_error(capture, capture.at(2), given) < TOLERANCE


def picked(x, n):
    """Elements by their numbers among all rows, and none."""
    return x[:n] + x[::3].sum() + x[2:2].sum(), x[n:]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pair(lambda x: torch.cat([x, x + 1]), picked),
        lambda: Pair(lambda x: torch.cat([x[:0], x, x + 1]), picked),
        lambda: Pair(lambda x: torch.stack([x, x + 1], 1).transpose(0, 1).flatten(0, 1), picked),
    ],
    ids=["joined", "joined with nothing", "made flat"],
)
def test_what_needs_the_old_order_gets_it(make):
    given = example(make)
    capture = Capture(given.step, given.model, given.optimizer, given.batches[0])
    assert trained_error(capture, capture.at(1), given) < TOLERANCE
    two = capture.at(2)
    assert two.first_pass is not None
    assert trained_error(capture, two, given) < TOLERANCE


def test_batches_are_not_made_of_examples_along_another_dim():
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(4, 4, WIDTH)
    step = mw.parallelize(
        model, optimizer, lambda model, x: model(x).square().mean(), x, batch_axes=1, microbatches=2
    )
    with pytest.raises(BatchError, match="batch has them in dim 1: make the batches"):
        step.feed([x[0]] * 9)


def test_a_mask_of_bytes_is_no_index():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            rows = torch.arange(len(x), dtype=torch.uint8)  # all rows but the first one
            return self.inner(x) + self.inner(x)[rows, torch.ones(3, dtype=torch.long)].sum()

    given = example(Masked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # indexing with dtype torch.uint8 is deprecated
        capture = Capture(given.step, given.model, given.optimizer, given.batches[0])
        assert trained_error(capture, capture.at(1), given) < TOLERANCE


@pytest.mark.parametrize("name", ["attention", "chunks"])
def test_devices_that_share_the_batch_exchange_gradients_only(name):
    given = example(MODULES[name], 4096)
    cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
    planned = mw.plan_for(
        given.step,
        given.model,
        given.optimizer,
        given.batches[0],
        cluster,
        microbatches=1,
        strategy="data_parallel",
    )
    (stage,) = planned.plan.stages
    largest = max(p.nbytes for p in given.model.parameters())
    assert stage.collectives
    assert max(collective.n_bytes for collective in stage.collectives) <= largest
