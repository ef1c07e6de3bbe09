"""Experts without capacity sort the rows of a batch; each example can sort its own instead."""

import copy
import sys

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends.errors import AccumulationError
from frontends.testing import routed, routings
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
TOLERANCE = 1e-5
EXPERTS, WAYS, WIDTH = 4, 2, 8


class Library:
    """What `routed` needs of PyTorch."""

    @staticmethod
    def argsort(keys):
        return torch.argsort(keys, stable=True)

    arange = staticmethod(torch.arange)

    @staticmethod
    def widened(places, width):
        return places[:, None].expand(-1, width)

    @staticmethod
    def add(rows, places):
        return torch.zeros_like(rows).index_add(0, places, rows)

    @staticmethod
    def put(rows, places):
        return torch.zeros_like(rows).index_put((places,), rows)

    @staticmethod
    def product(rows, experts, keys):
        ends = functional.one_hot(keys, EXPERTS).sum(0).cumsum(0, dtype=torch.int32)
        return functional.grouped_mm(rows, experts, offs=ends)


class Router(nn.Module):
    def __init__(self, moves):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 3)
        self.moves = moves

    def forward(self, x):
        rows = x.flatten(0, 1) @ self.experts[1]
        keys = self.router(rows).topk(WAYS, -1).indices[:, 0]
        made = routed(self.moves, rows, self.experts, keys, Library)
        return sum((value * value / (1 + value * value)).sum() for value in made) / len(x)


@settings(max_examples=settings().max_examples // 12)
@given(routings(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_random_routings_are_the_same_or_refused(moves, microbatches, tokens):
    torch.manual_seed(0)
    model = Router(moves)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, tokens, WIDTH)
    step = training_step(lambda model, x: model(x))
    try:
        capture = Capture(step, model, optimizer, x)
        trace = capture.at(microbatches)
    except AccumulationError:
        assert microbatches > 1
        return
    found, updates = run_in_microbatches(trace, arguments_of(capture.state, x))
    assert error(found, step(model, optimizer, x)) < TOLERANCE
    trained = dict(model.named_parameters())
    for name, value in updates.items():
        assert error(value, trained[name[8:-2]].detach()) < TOLERANCE, name


def _histogram(keys):
    return torch.histc(keys.float(), EXPERTS, 0, EXPERTS - 1)


def _one_hot(keys):
    return functional.one_hot(keys, EXPERTS).sum(0)


def _equal(keys):
    return (keys[:, None] == torch.arange(EXPERTS)).sum(0)


def _scattered(keys):
    return torch.zeros(EXPERTS, dtype=torch.int64).scatter_add(0, keys, torch.ones_like(keys))


def _added(keys):
    return torch.zeros(EXPERTS, dtype=torch.int64).index_add(0, keys, torch.ones_like(keys))


def _inverted(x, weights, order, run):
    """As Hugging Face does it."""
    made = run(x[order // WAYS]) * weights.flatten()[order][:, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return made[back].view(-1, WAYS, WIDTH).sum(1)


def _scatter_added(x, weights, order, run):
    """As torchtitan does it."""
    places = (order // WAYS).reshape(-1, 1).expand(-1, WIDTH)
    made = run(x.gather(0, places)) * weights.flatten()[order].reshape(-1, 1)
    return (x / 2).scatter_add(0, places, made)


def _index_added(x, weights, order, run):
    token = torch.arange(len(x))[:, None].expand(-1, WAYS).flatten()[order]
    made = run(x.index_select(0, token)) * weights.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, token, made)


def _repeated(x, weights, order, run):
    rows = run(x.repeat_interleave(WAYS, 0)[order])
    made = torch.zeros_like(rows)
    made[order] = rows
    return (made.view(-1, WAYS, WIDTH) * weights[..., None]).sum(1)


class Experts(nn.Module):
    def __init__(self, count=_histogram, move=_inverted, drop=0.0):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 16) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, 16) / 3)
        self.bias = nn.Parameter(torch.randn(EXPERTS, 16) / 3)
        self.count, self.move, self.drop = count, move, drop

    def forward(self, x):
        rows = x.flatten(0, -2)
        weights, expert = self.router(rows).softmax(-1).topk(WAYS, -1)
        order = expert.flatten().argsort()
        keys = expert.flatten()[order]
        ends = self.count(keys).cumsum(0, dtype=torch.int32)

        def run(chosen):
            hidden = functional.grouped_mm(chosen, self.up, offs=ends) + self.bias[keys]
            hidden = functional.dropout(hidden.relu(), self.drop)
            return functional.grouped_mm(hidden, self.down.transpose(1, 2), offs=ends)

        return self.move(rows, weights, order, run).view(x.shape)


def example(model, *shape):
    batches = [torch.randn(*shape) for _ in range(2)]
    step = training_step(lambda model, x: model(x).square().mean())
    return Example(model, lambda p: torch.optim.SGD(p, 0.3), step, batches)


@pytest.mark.parametrize("count", [_histogram, _one_hot, _equal, _scattered, _added])
@pytest.mark.parametrize("move", [_inverted, _scatter_added, _index_added, _repeated])
def test_experts_as_libraries_write_them_run_in_microbatches(count, move):
    torch.manual_seed(0)
    given = example(Experts(count, move), 4, 3, WIDTH)
    capture = Capture(given.step, given.model, given.optimizer, given.batches[0])
    assert trained_error(capture, capture.at(4), given) < TOLERANCE


class Positions(Experts):
    """Experts beside sums of numbers of rows, which other rows would have in each example."""

    def forward(self, x):
        n = x.shape[0] * x.shape[1]
        rows, order = torch.arange(n).float(), self.router(x.flatten(0, -2))[:, 0].argsort()
        return super().forward(x) * rows.mean() / n + (rows[order] * rows).sum() / n**3


def test_numbers_of_rows_are_those_of_the_whole_batch():
    torch.manual_seed(0)
    given = example(Positions(), 4, 3, WIDTH)
    capture = Capture(given.step, given.model, given.optimizer, given.batches[0])
    assert trained_error(capture, capture.at(1), given) < TOLERANCE


def _rounded(keys):
    """Numbers of rows above 256 are not exact in bfloat16."""
    return functional.one_hot(keys, EXPERTS).bfloat16().sum(0)


def test_numbers_of_rows_that_are_rounded_are_left_as_they_are():
    torch.manual_seed(0)
    given = example(Experts(_rounded), 4, 3, WIDTH)
    capture = Capture(given.step, given.model, given.optimizer, given.batches[0])
    assert trained_error(capture, capture.at(1), given) < TOLERANCE  # of so few they are exact
    with pytest.raises(AccumulationError, match="needs all examples at once"):
        capture.at(2)


def test_one_expert_has_all_rows(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "EXPERTS", 1)
    monkeypatch.setattr(sys.modules[__name__], "WAYS", 1)
    torch.manual_seed(0)
    given = example(Experts(_one_hot), 4, 3, WIDTH)
    capture = Capture(given.step, given.model, given.optimizer, given.batches[0])
    assert trained_error(capture, capture.at(4), given) < TOLERANCE


def test_a_batch_of_tokens_sorts_each_token_alone():
    torch.manual_seed(0)
    given = example(Experts(), 12, WIDTH)
    capture = Capture(given.step, given.model, given.optimizer, given.batches[0])
    assert trained_error(capture, capture.at(3), given) < TOLERANCE


def test_what_depends_on_the_order_of_all_rows_is_refused():
    torch.manual_seed(0)
    given = example(Experts(drop=0.5), 4, 3, WIDTH)  # eager draws for rows in this order
    capture = Capture(given.step, given.model, given.optimizer, given.batches[0])
    assert trained_error(capture, capture.at(1), given) < TOLERANCE
    with pytest.raises(AccumulationError, match=r"sort\.\d+ .* needs all examples at once"):
        capture.at(2)


PINS = [{"params['up']": "S0RR"}, {"params['up']": "S01RR"}]
CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)


@pytest.mark.parametrize(
    "options",
    [{"stages": 2, "microbatches": 2}, *({"stages": 1, "microbatches": 1, "pin": p} for p in PINS)],
    ids=["stages", "pairs of experts", "single experts"],
)
def test_experts_are_split_by_the_batch_and_by_expert(options):
    torch.manual_seed(0)
    model = Experts()
    eager = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), 0.3) for m in (model, eager)]
    step = mw.parallelize(
        model, optimizers[0], lambda m, x: m(m(x)).square().mean(), cluster=CLUSTER, **options
    )
    one = training_step(lambda m, x: m(m(x)).square().mean())
    for _ in range(2):
        batch = torch.randn(8, 4, WIDTH)
        assert error(step(batch), one(eager, optimizers[1], batch)) < TOLERANCE


def test_devices_that_share_a_batch_sort_their_own_rows():
    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    plan = mw.plan_for(
        training_step(lambda model, x: model(x).square().mean()),
        model,
        optimizer,
        torch.randn(2048, 16, WIDTH),
        CLUSTER,
        microbatches=1,
        strategy="data_parallel",
    ).plan
    (stage,) = plan.stages
    largest = max(p.numel() for p in model.parameters()) * 4  # the gradient of one parameter
    assert stage.collectives
    assert max(collective.n_bytes for collective in stage.collectives) <= largest
