"""Steps that cut their batch themselves: parts that are added up become examples like others."""

from dataclasses import dataclass

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends.errors import AccumulationError
from frontends.torch.testing import Example, trained_error
from frontends.torch.trace.trace import Capture
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)
TOLERANCE = 1e-5
ROWS, PARTS, WIDTH = 8, 4, 6


def model_of(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 12), *more, nn.GELU(), nn.Linear(12, WIDTH))


def loss_of(model, x):
    return model(x).square().mean()


def chunks(model, optimizer, batch):
    optimizer.zero_grad()
    total = 0
    for x in batch["x"].chunk(PARTS):
        loss = loss_of(model, x) / PARTS
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total


def ranges(model, optimizer, batch):
    optimizer.zero_grad()
    total, n = torch.zeros(()), ROWS // PARTS
    for begin in range(0, ROWS, n):
        x, y = batch["x"][begin : begin + n], batch["y"][begin : begin + n]
        loss = functional.cross_entropy(model(x), y)
        (loss / PARTS).backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return total / PARTS


def sum_of_losses(model, optimizer, batch):
    """One backward for all parts."""
    losses = [loss_of(model, x) for x in torch.split(batch["x"], ROWS // PARTS)]
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def with_outputs(model, optimizer, batch):
    """The outputs of all parts are returned as one tensor."""
    optimizer.zero_grad()
    outputs = []
    for x in batch["x"].chunk(PARTS):
        outputs.append(model(x))
        outputs[-1].square().sum().backward()
    optimizer.step()
    return torch.cat(outputs).detach()


def derived(model, optimizer, batch):
    """What is cut is computed from the batch; one part is looked at more closely."""
    optimizer.zero_grad()
    shifted = (batch["x"] + 1).roll(1, 1)
    for x, y in zip(shifted.chunk(PARTS), batch["x"].chunk(PARTS), strict=True):
        (model(x) - y).abs().mean().backward()
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad.div_(PARTS)
    optimizer.step()
    return shifted.mean()


def centered(model, optimizer, batch):
    """All parts read what is computed of the whole batch."""
    optimizer.zero_grad()
    mean = batch["x"].mean(0)
    for x in (batch["x"] * 2).chunk(PARTS):
        (loss_of(model, x - mean) / len(batch["x"])).backward()
    optimizer.step()
    return mean


def with_losses(model, optimizer, batch):
    """The loss of each part is returned."""
    optimizer.zero_grad()
    losses = []
    for x in batch["x"].chunk(PARTS):
        losses.append(loss_of(model, x))
        losses[-1].backward()
    optimizer.step()
    return torch.stack(losses).detach()


def with_means(model, optimizer, batch):
    """Each part is divided by its own number of elements that count."""
    optimizer.zero_grad()
    for x in batch["x"].chunk(PARTS):
        mask = (x > 0).float()
        ((model(x) * mask).square().sum() / mask.sum()).backward()
    optimizer.step()
    return batch["x"].mean()


TOGETHER = {
    "chunks": (chunks, ()),
    "ranges": (ranges, ()),
    "sum of losses": (sum_of_losses, ()),
    "outputs": (with_outputs, ()),
    "derived": (derived, ()),
    "centered": (centered, ()),
    "losses": (with_losses, ()),
    "means": (with_means, ()),
    "dropout": (chunks, (nn.Dropout(0.3),)),
    "layer norm": (ranges, (nn.LayerNorm(12), nn.Dropout(0.3))),
}


def example(step, more):
    chance = torch.Generator().manual_seed(0)
    batches = [
        {
            "x": torch.randn(ROWS, WIDTH, generator=chance),
            "y": torch.randint(0, WIDTH, (ROWS,), generator=chance),
        }
        for _ in range(3)
    ]
    return Example(model_of(*more), lambda p: torch.optim.SGD(p, 0.1, 0.9), step, batches)


def n_products(trace):
    return sum(op.kind == "mm" for op in trace.step.graph.operators)


@pytest.mark.parametrize("microbatches", [1, 2, 4])
@pytest.mark.parametrize("name", TOGETHER)
def test_parts_are_examples_like_others(name, microbatches):
    of = example(*TOGETHER[name])
    capture = Capture(of.step, of.model, of.optimizer, of.batches[0])
    trace = capture.at(microbatches)
    assert n_products(trace) <= 5  # not as many for each part
    assert trained_error(capture, trace, of) < TOLERANCE


def test_the_plan_runs_parts_as_microbatches_in_stages():
    of, alone = example(*TOGETHER["dropout"]), example(*TOGETHER["dropout"])
    cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
    step = mw.parallelize_step(
        lambda batch: chunks(of.model, of.optimizer, batch),
        of.model,
        of.optimizer,
        cluster=cluster,
        stages=2,
        microbatches=PARTS,
    )
    for batch in of.batches:
        torch.manual_seed(1)
        expected = chunks(alone.model, alone.optimizer, batch)
        torch.manual_seed(1)
        torch.testing.assert_close(step(batch), expected)
    assert step.plan.microbatches == PARTS


def with_penalties(model, optimizer, batch):
    optimizer.zero_grad()
    for x in batch["x"].chunk(PARTS):
        penalty = sum(p.square().sum() for p in model.parameters())
        (loss_of(model, x) + 0.1 * penalty).backward()
    optimizer.step()
    return batch["x"].mean()


def with_weights(model, optimizer, batch):
    optimizer.zero_grad()
    for number, x in enumerate(batch["x"].chunk(PARTS)):
        (loss_of(model, x) * number).backward()
    optimizer.step()
    return batch["x"].mean()


def with_an_average(model, optimizer, batch):
    optimizer.zero_grad()
    average = torch.zeros(())
    for x in batch["x"].chunk(PARTS):
        loss = loss_of(model, x)
        loss.backward()
        average = 0.9 * average + 0.1 * loss.detach()
    optimizer.step()
    return average


def with_updates(model, optimizer, batch):
    for x in batch["x"].chunk(PARTS):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
    return loss.detach()


def with_all_but_one(model, optimizer, batch):
    optimizer.zero_grad()
    for x in batch["x"].chunk(PARTS)[1:]:
        loss_of(model, x).backward()
    optimizer.step()
    return batch["x"].mean()


def backwards(model, optimizer, batch):
    """The outputs of parts in another order."""
    outputs = [model(x) for x in batch["x"].chunk(PARTS)]
    outputs = torch.cat(outputs[::-1])
    optimizer.zero_grad()
    (outputs * batch["x"]).sum().backward()
    optimizer.step()
    return outputs.detach()


def one_by_one(model, optimizer, batch):
    """A part is one row, which cannot be told from a dim that is broadcast."""
    optimizer.zero_grad()
    for x in batch["x"].chunk(ROWS):
        loss_of(model, x).backward()
    optimizer.step()
    return batch["x"].mean()


def unequal(model, optimizer, batch):
    """The last part has fewer rows."""
    optimizer.zero_grad()
    for x in batch["x"].split(3):
        loss_of(model, x).backward()
    for x in batch["x"].split(5):
        loss_of(model, x).backward()
    optimizer.step()
    return batch["x"].mean()


APART = {
    "one by one": (one_by_one, ()),
    "unequal": (unequal, ()),
    "penalties": (with_penalties, ()),
    "weights": (with_weights, ()),
    "an average": (with_an_average, ()),
    "updates": (with_updates, ()),
    "all but one": (with_all_but_one, ()),
    "backwards": (backwards, ()),
    "batch norm": (chunks, (nn.BatchNorm1d(12),)),
}


@pytest.mark.parametrize("name", APART)
def test_parts_that_are_no_sums_of_examples_stay_apart(name):
    of = example(*APART[name])
    capture = Capture(of.step, of.model, of.optimizer, of.batches[0])
    trace = capture.at(1)
    assert n_products(trace) >= 5 * (PARTS - 1)
    assert trained_error(capture, trace, of) < TOLERANCE


class Tokens(nn.Module):
    """A layer of attention over words."""

    def __init__(self, chance):
        super().__init__()
        self.words, self.norm = nn.Embedding(WIDTH, 8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, chance, batch_first=True)
        self.out = nn.Linear(8, WIDTH)

    def forward(self, x):
        hidden = self.norm(self.words(x))
        return self.out(hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0])


@dataclass(frozen=True)
class Loop:
    """A step that accumulates gradients, of random parts."""

    n_parts: int
    cut: str
    loss: str
    back: str
    more: tuple[str, ...]

    def parts(self, x):
        n = len(x) // self.n_parts
        if self.cut == "chunk":
            return x.chunk(self.n_parts)
        if self.cut == "split":
            return x.split(n)
        if self.cut == "ranges":
            return [x[k * n : (k + 1) * n] for k in range(self.n_parts)]
        return [x[torch.arange(k * n, (k + 1) * n)] for k in range(self.n_parts)]  # picked

    def loss_of(self, model, x, y):
        scores = model(x).flatten(0, 1)
        labels = y.flatten()
        if self.loss == "ignored":
            return functional.cross_entropy(scores, labels, ignore_index=0)
        if self.loss == "smooth":
            return functional.cross_entropy(scores, labels, label_smoothing=0.1)
        if self.loss == "masked":
            mask = (labels > 1).float()
            return (scores.square().mean(1) * mask).sum() / mask.sum().clamp(min=1)
        if self.loss == "root":
            return scores.square().mean().sqrt()
        if self.loss == "sum":
            return functional.cross_entropy(scores, labels, reduction="sum") / 10
        return scores.square().mean()

    def step(self, model, optimizer, batch):
        optimizer.zero_grad()
        total, right, losses = torch.zeros(()), 0, []
        pairs = zip(self.parts(batch["x"]), self.parts(batch["y"]), strict=True)
        for x, y in pairs:
            loss = self.loss_of(model, x, y) / self.n_parts
            if "penalty" in self.more:
                loss = loss + 0.01 * model.out.weight.square().sum()
            if self.back == "each":
                loss.backward()
                loss = loss.detach()
            if "right" in self.more:
                with torch.no_grad():
                    right = right + (model(x).argmax(-1) == y).sum()
            if "average" in self.more:
                total = 0.9 * total
            total = total + loss
            losses.append(loss)
        if self.back == "together":
            total.backward()
        if "clip" in self.more:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        results = {"total": total.detach()}
        if "right" in self.more:
            results["right"] = right
        if "losses" in self.more:
            results["losses"] = torch.stack(losses).detach()
        return results


@settings(max_examples=settings().max_examples // 12)
@given(
    st.builds(
        Loop,
        st.sampled_from([2, 4]),
        st.sampled_from(["chunk", "split", "ranges", "picked"]),
        st.sampled_from(["ignored", "smooth", "masked", "root", "sum", "squares"]),
        st.sampled_from(["each", "together"]),
        st.lists(
            st.sampled_from(["penalty", "right", "average", "clip", "losses"]),
            max_size=2,
            unique=True,
        ).map(tuple),
    ),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([1, 2, 4]),
)
def test_random_loops_over_parts_are_the_same_or_refused(loop, chance, microbatches):
    torch.manual_seed(0)
    batches = [
        {"x": torch.randint(0, WIDTH, (8, 3)), "y": torch.randint(0, WIDTH, (8, 3))}
        for _ in range(2)
    ]
    model = Tokens(chance)
    of = Example(model, lambda p: torch.optim.SGD(p, 0.05, 0.9), loop.step, batches)
    capture = Capture(loop.step, model, of.optimizer, batches[0])
    try:
        trace = capture.at(microbatches)
    except AccumulationError:
        event("refused")
        assert microbatches > 1
        return
    event("together" if n_products(trace) < 20 else "apart")
    assert trained_error(capture, trace, of) < TOLERANCE
