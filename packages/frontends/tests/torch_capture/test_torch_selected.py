"""Elements that masks select of each example, and pieces that are put together again."""

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from frontends.torch.base.even_masks import EvenMask, without_copies
from frontends.torch.capture.capture import training_step
from frontends.torch.testing import Example, trained_error
from frontends.torch.trace.trace import Capture
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)
TOLERANCE = 1e-5
EXAMPLES, TOKENS, WIDTH, IMAGES = 4, 6, 8, 3
IMAGE = 0


@st.composite
def even_masks(draw):
    """A mask, how many examples it has, and how many elements of each are true."""
    n, more = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    others = draw(st.lists(st.integers(1, 3), max_size=2))
    size = more * torch.Size(others).numel()
    each = draw(st.integers(1, size))
    rows = [draw(st.permutations([True] * each + [False] * (size - each))) for _ in range(n)]
    return torch.tensor(rows).reshape(n * more, *others), n, each


@given(even_masks(), st.lists(st.integers(1, 3), max_size=2), st.booleans())
def test_selecting_by_examples_is_selecting_at_once(given_mask, rest, adds):
    mask, n, each = given_mask
    even = EvenMask.of(mask, n * each, n)
    x = torch.arange(mask.numel() * torch.Size(rest).numel()).reshape(*mask.shape, *rest)
    assert torch.equal(even.read(x, mask.dim()), x[mask])
    values = -1 - torch.arange(x[mask].numel()).reshape(x[mask].shape)
    found = even.write(x, mask.dim(), values, adds=adds)
    assert torch.equal(found, x.index_put([mask], values, adds))
    wide = mask.reshape(*mask.shape, *[1] * len(rest)).expand(x.shape)
    found = even.scatter(x, mask.dim(), values)
    assert torch.equal(found, x.masked_scatter(wide, values))
    assert without_copies(wide).numel() >= mask.numel()


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=4))
def test_a_mask_is_even_if_each_example_has_as_many(rows):
    mask, counts = torch.tensor(rows), {sum(row) for row in rows}
    n_true = int(mask.sum())
    is_even = len(counts) == 1 and n_true > 0
    assert (EvenMask.of(mask, n_true, len(rows)) is not None) == is_even
    assert EvenMask.of(mask, n_true, 1) is None


class Model(nn.Module):
    """A layer above what selects, and one below."""

    def __init__(self, select):
        super().__init__()
        self.words, self.picture = nn.Embedding(9, WIDTH), nn.Linear(5, WIDTH)
        self.inner, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.select = select

    def forward(self, batch):
        hidden = self.inner(self.words(batch["tokens"])).tanh()
        features = self.picture(batch["images"])
        hidden = hidden + features.mean(1, keepdim=True)
        mask = batch["tokens"] == IMAGE
        return self.out(self.select(hidden, features, mask).reshape(EXAMPLES, -1, WIDTH).tanh())


def last_end(hidden, features, mask):
    """The representation of a sequence is that of its last end, as in BART."""
    return hidden[mask, :].view(len(hidden), -1, WIDTH)[:, -1, :]


def merged(hidden, features, mask):
    """Features of images in place of their tokens, as in LLaVA."""
    return hidden.masked_scatter(mask.unsqueeze(-1).expand_as(hidden), features.reshape(-1, WIDTH))


def merged_in_place(hidden, features, mask):
    hidden = hidden.clone()
    hidden.masked_scatter_(mask.unsqueeze(-1), features.reshape(-1, WIDTH))
    return hidden


def written(hidden, features, mask):
    hidden = hidden.clone()
    hidden[mask] = features.flatten(0, 1)
    return hidden


def in_pieces(hidden, features, mask):
    """Features are cut into those of each image, which are concatenated."""
    every = features.flatten(0, 1).split([IMAGES] * len(hidden))
    return torch.cat([hidden, torch.stack(every)], 1)


def one_by_one(hidden, features, mask):
    return torch.cat([hidden, torch.cat(list(features)).view(len(hidden), -1, WIDTH)], 1)


def ranges(hidden, features, mask):
    half = TOKENS // 2
    return torch.cat([hidden[:, :half], hidden[:, half:]], 1)


def windows(hidden, features, mask):
    """Overlapping windows of each row, as in Longformer."""
    rows = functional.pad(hidden, (0, 0, 1, 1))
    a, b, c = rows.stride()
    return rows.as_strided((len(rows), 3, 4, WIDTH), (a, 2 * b, b, c))


def windows_of_tokens_first(hidden, features, mask):
    rows = hidden.transpose(0, 1).contiguous().transpose(0, 1)
    a, b, c = rows.stride()
    return rows.as_strided((len(rows), 2, 4, WIDTH), (a, 2 * b, b, c))


SELECTIONS = {
    "last end": last_end,
    "made flat": lambda h, f, mask: h.flatten(0, 1)[mask.flatten()],
    "masked select": lambda h, f, mask: h.masked_select(mask.unsqueeze(-1)),
    "merged": merged,
    "merged in place": merged_in_place,
    "written": written,
    "in pieces": in_pieces,
    "one by one": one_by_one,
    "ranges": ranges,
    "windows": windows,
    "windows of tokens first": windows_of_tokens_first,
}


def loss_of(model, batch):
    return model(batch).square().mean()


def batch_of(seed):
    chance = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 9, (EXAMPLES, TOKENS), generator=chance)
    for row in tokens:
        row[torch.randperm(TOKENS, generator=chance)[:IMAGES]] = IMAGE
    return {"tokens": tokens, "images": torch.randn(EXAMPLES, IMAGES, 5, generator=chance)}


@pytest.mark.parametrize("name", SELECTIONS)
def test_what_is_selected_of_each_example_runs_in_microbatches(name):
    torch.manual_seed(0)
    batches = [batch_of(seed) for seed in range(3)]
    step = training_step(loss_of)
    model = Model(SELECTIONS[name])
    example = Example(model, lambda p: torch.optim.SGD(p, 0.1, 0.9), step, batches)
    capture = Capture(step, model, example.optimizer, batches[0])
    trace = capture.at(2)
    assert trace.first_pass is None
    assert trained_error(capture, trace, example) < TOLERANCE


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_batch_that_has_other_numbers_of_selected_elements_is_the_same(microbatches):
    def step_of(model, optimizer, tokens):
        optimizer.zero_grad()
        loss = model(tokens).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    class Selected(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, tokens):
            return self.out(self.words(tokens)[tokens == IMAGE])

    torch.manual_seed(0)
    models = Selected(), Selected()
    models[1].load_state_dict(models[0].state_dict())
    mine, theirs = (torch.optim.SGD(model.parameters(), 0.1) for model in models)
    cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
    step = mw.parallelize_step(
        lambda tokens: step_of(models[0], mine, tokens),
        models[0],
        mine,
        cluster=cluster,
        stages=1,
        microbatches=microbatches,
    )
    # as many in all, but not of each example, and back; other numbers; none of an example
    for counts in ([2, 2, 2, 2], [1, 3, 2, 2], [2, 2, 2, 2], [3, 3, 3, 3], [0, 4, 6, 2]):
        tokens = torch.randint(1, 9, (EXAMPLES, TOKENS))
        for row, count in zip(tokens, counts, strict=True):
            row[torch.randperm(TOKENS)[:count]] = IMAGE
        torch.testing.assert_close(step(tokens), step_of(models[1], theirs, tokens))
