"""Losses that compare examples run in microbatches: a first pass computes the features of all."""

import copy

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends.errors import AccumulationError
from torch import nn
from torch.nn import functional

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
N = 16


class Tower(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.up, self.inner, self.out = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 8)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        hidden = self.up(x).tanh()
        hidden = hidden + self.dropout(self.inner(hidden).tanh())
        return functional.normalize(self.out(hidden), dim=-1)


class Towers(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.x, self.y = Tower(dropout), Tower(dropout)
        self.scale, self.bias = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(-1.0))


def similarities(model, batch):
    return model.x(batch["x"]) @ model.y(batch["y"]).t() * model.scale.exp()


def clip(model, batch):
    logits, own = similarities(model, batch), torch.arange(N)
    entropy = functional.cross_entropy
    return (entropy(logits, own) + entropy(logits.t(), own)) / 2


def siglip(model, batch):
    signs = 2 * torch.eye(N) - 1
    logits = similarities(model, batch) + model.bias
    return -functional.logsigmoid(signs * logits).sum(-1).mean()


def simclr(model, batch):
    z = model.x(torch.cat([batch["x"], batch["y"]]))
    similar = z @ z.t() / 0.2 - 1e9 * torch.eye(2 * N)
    return functional.cross_entropy(similar, torch.arange(2 * N).roll(N))


def hardest_triplets(model, batch):
    z, label = model.x(batch["x"]), batch["label"]
    apart = (z[:, None] - z[None]).square().sum(-1)
    is_same = label[:, None] == label[None]
    far, near = apart.masked_fill(~is_same, -1).amax(1), apart.masked_fill(is_same, 9).amin(1)
    return functional.relu(far - near + 0.2).mean()


def advantages(model, batch):
    value = model.y(batch["y"]).sum(1)
    apart = (batch["x"][:, 0] - value).detach()
    apart = (apart - apart.mean()) / (apart.std() + 1e-8)
    chosen = model.x(batch["x"]).log_softmax(-1)[:, 0]
    return (value - 2).square().mean() - (apart * chosen).mean()


CASES = {
    "CLIP": (clip, 0.0, 2),
    "CLIP in one stage": (clip, 0.0, 1),
    "CLIP with dropout": (clip, 0.3, 2),
    "SigLIP": (siglip, 0.0, 2),
    "SimCLR": (simclr, 0.0, 1),
    "hardest triplets": (hardest_triplets, 0.0, 1),
    "advantages": (advantages, 0.0, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_that_compare_examples_run_in_microbatches(name):
    loss, dropout, stages = CASES[name]
    torch.manual_seed(0)
    model = Towers(dropout)
    alone = copy.deepcopy(model)
    batch = {"x": torch.randn(N, 6), "y": torch.randn(N, 6), "label": torch.randint(0, 3, (N,))}
    optimizer, other = (torch.optim.Adam(m.parameters(), 1e-2) for m in (model, alone))
    step = mw.parallelize(model, optimizer, loss, cluster=CLUSTER, stages=stages, microbatches=2)
    for seed in range(2):
        torch.manual_seed(seed)
        ours = step(batch)
        torch.manual_seed(seed)
        other.zero_grad()
        expected = loss(alone, batch)
        expected.backward()
        other.step()
        torch.testing.assert_close(ours.detach(), expected.detach())
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert 0 < step.plan.first_pass_s < step.plan.step_s
    assert step.verify(batch).n_steps == 2


def test_layers_above_what_mixes_examples_are_refused():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = mw.parallelize(
        model, optimizer, lambda m, x: m(x).square().mean(), cluster=CLUSTER, microbatches=2
    )
    with pytest.raises(AccumulationError, match="microbatch_statistics=True"):
        step(torch.randn(8, 6))
