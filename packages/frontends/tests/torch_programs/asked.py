"""Python asks for numbers that follow from the batch, or from random ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import Generated, program
from torch_programs.pieces import Data, Tensor, sgd

N, SIZE = 8, 6
Batch = dict[str, Tensor]


def _of(loss: Callable[[Any, Batch], Tensor]) -> Callable[[Any], Generated]:
    """A linear layer, and batches of which more or less is masked."""

    def run(way: Any) -> Iterator[Any]:
        data, model = Data(), nn.Linear(SIZE, SIZE)
        step = way.loss(model, sgd(model), loss)
        for n in (N, N, 5, N, 5):
            mask = torch.arange(N) < n
            labels = data.classes(SIZE, N).masked_fill(~mask, -100)
            yield step({"x": data.normal(N, SIZE), "mask": mask, "labels": labels})

    return run


def _branch(model: Any, b: Batch) -> Tensor:
    y = model(b["x"]).square()
    return y.mean() if b["mask"].all() else (y * b["mask"][:, None]).sum()


def _checked(model: Any, b: Batch) -> Tensor:
    if b["labels"].max() >= SIZE:
        raise ValueError("labels are classes")
    return F.cross_entropy(model(b["x"]), b["labels"])


def _compared(model: Any, b: Batch) -> Tensor:
    factor = 2 if torch.equal(b["mask"], torch.ones(N, dtype=torch.bool)) else 1
    return model(b["x"]).square().mean() * factor


def _cut_by_a_constant(model: Any, b: Batch) -> Tensor:
    """A size is a tensor that the step makes of Python's numbers, as in Longformer."""
    y = model(b["x"]).view(torch.div(N, 2, rounding_mode="trunc") - 1 + 1, 2, SIZE)
    return y.square().mean() if b["mask"].all() else y.sum(1).square().mean()


def _masked(model: Any, b: Batch) -> Tensor:
    return model(b["x"])[b["mask"]].square().mean()


def _selected(model: Any, b: Batch) -> Tensor:
    return model(b["x"]).masked_select(b["mask"][:, None]).square().mean()


def _found(model: Any, b: Batch) -> Tensor:
    at = (b["labels"] >= 0).nonzero().squeeze(-1)
    return F.cross_entropy(model(b["x"]).index_select(0, at), b["labels"][at])


def _put(model: Any, b: Batch) -> Tensor:
    y, made = model(b["x"]), torch.zeros(N, SIZE)
    made[b["mask"]] = y[b["mask"]] * 2
    return made.square().mean()


def _cut(model: Any, b: Batch) -> Tensor:
    n = int(b["mask"].sum())
    return model(b["x"])[:n].square().mean() + torch.arange(n).float().mean()


def _different(model: Any, b: Batch) -> Tensor:
    values, places, counts = b["labels"].unique(return_inverse=True, return_counts=True)
    weights = counts[places] / (values.numel() + 1)
    return (model(b["x"]).square().mean(1) * weights).mean()


def _in_a_row(model: Any, b: Batch) -> Tensor:
    runs = torch.unique_consecutive(b["mask"].long())
    return model(b["x"]).square().mean() * (runs + 1).sum() / len(runs)


def _often(model: Any, b: Batch) -> Tensor:
    often = torch.bincount(b["labels"].clamp_min(0), minlength=3)
    return model(b["x"]).square().mean() * often[:3].max() / len(often)


def _listed(model: Any, b: Batch) -> Tensor:
    sizes = b["mask"].long().add(1).tolist()
    first, *rest = model(b["x"]).split([*sizes[:2], N - sum(sizes[:2]), 0])
    return first.square().mean() * 2 + sum(part.square().sum() for part in rest)


def _sized(model: Any, b: Batch) -> Tensor:
    n, step = b["mask"].sum().item(), b["labels"].clamp(0, 1)[0].item() + 1
    made = model(b["x"]).narrow(0, 0, n) * torch.arange(n)[:, None]
    cut = made.narrow(1, step, SIZE - step)[::step]
    return cut.square().mean() + torch.arange(0, N, step).float().mean()


def _looked_up(model: Any, b: Batch) -> Tensor:
    factors = {0: 0.5, 1: 2.0}
    return sum(
        factors[k] * y.square().mean()
        for k, y in zip(b["mask"].long().tolist(), model(b["x"]), strict=True)
    )


def _as_a_tensor(model: Any, b: Batch) -> Tensor:
    y, sums = model(b["x"]), b["mask"].long().cumsum(0)
    factors = torch.tensor([[b["mask"].sum().item(), 2], [sums[1], 1.5]])
    return y.square().mean() * factors.sum() + torch.tensor([y.mean(), sums.max()])[1]


def _routed(model: Any, b: Batch) -> Tensor:
    """Of some kinds there are no examples."""
    y, made = model(b["x"]), torch.zeros(N, SIZE)
    for kind in (-100, 7, 1):
        made[b["labels"] == kind] = y[b["labels"] == kind] * 2
    return y.square().mean() + made.square().mean()


def _as_an_array(model: Any, b: Batch) -> Tensor:
    return model(b["x"]).square().mean() * float(b["mask"].numpy().mean())


def _told(model: Any, b: Batch) -> Tensor:
    """Libraries make the text of an error that is not raised."""
    n = b["mask"].sum()
    text = f"there are {n} of {b['mask'].sum().item():3d} examples"
    if n > N:
        raise ValueError(text)
    return model(b["x"]).square().mean() * len(text)


def _aligned(model: Any, b: Batch) -> Tensor:
    steps = model(b["x"]).view(2, N // 2, SIZE).transpose(0, 1).log_softmax(-1)
    is_there = b["labels"].view(2, -1)[:, :2] > 0
    targets = b["labels"].view(2, -1)[:, :2].masked_select(is_there)
    lengths = torch.full((2,), N // 2)
    return F.ctc_loss(steps, targets, lengths, is_there.sum(-1), zero_infinity=True)


def _shifted(model: Any, b: Batch) -> Tensor:
    """What is looked at was written in part."""
    labels = b["labels"].new_zeros(N)
    labels[1:] = b["labels"][:-1].clone()
    assert torch.all(labels.masked_fill(labels == -100, 0) >= 0).item()
    return F.cross_entropy(model(b["x"]), labels)


def _dropped_at_random(model: Any, b: Batch) -> Tensor:
    """Layers are left out as transformers does it."""
    y = model(b["x"])
    for _ in range(3):
        if torch.rand([]) < 0.5:
            continue
        y = F.dropout(model(y), 0.2)
    return y.square().mean()


def _drawn_for_nothing(model: Any, b: Batch) -> Tensor:
    """What is drawn and not used moves the generator on."""
    torch.rand(3)
    return F.dropout(model(b["x"]), 0.3).square().mean()


for _loss in (
    *(
        _branch,
        _checked,
        _compared,
        _cut_by_a_constant,
        _masked,
        _selected,
        _found,
        _put,
        _cut,
        _different,
        _in_a_row,
        _often,
        _listed,
        _sized,
        _looked_up,
        _as_a_tensor,
        _routed,
        _as_an_array,
        _told,
        _aligned,
        _shifted,
    ),
    *(_dropped_at_random, _drawn_for_nothing),
):
    _run = _of(_loss)
    _run.__name__ = _loss.__name__.removeprefix("_")
    program()(_run)


@program()
def parts_of_what_was_written_are_returned(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.Linear(SIZE, SIZE)
    optimizer = sgd(model)

    def train(x: Tensor) -> Any:
        optimizer.zero_grad()
        hidden, chosen = model(x), torch.zeros(4, SIZE)
        chosen[1:3] = hidden.detach()[1:3]
        loss = (hidden * chosen).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), chosen[1:], chosen.view(-1)[6:12]

    step = way.step(train, model, optimizer)
    for _ in range(3):
        yield step(data.normal(4, SIZE))
