"""Operators beyond layers: linear algebra, indexing, sorting, resampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import Generated, program
from torch_programs.pieces import Data, Tensor, sgd


def _of(loss: Callable[[Any, Tensor], Tensor], shape: tuple[int, ...]) -> Callable[..., Generated]:
    """A linear layer without bias whose results go through an operator."""

    def run(way: Any) -> Iterator[Any]:
        data, model = Data(), nn.Linear(shape[-1], shape[-1])
        step = way.loss(model, sgd(model, 0.02), loss)
        for i in range(4):
            yield step(data.normal(shape[0] - (i == 2), *shape[1:]))

    return run


def _spd(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-2])


def _index_put(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros(8, x.shape[1])
    rows = torch.arange(len(x)) % 3
    return out.index_put((rows,), m(x), accumulate=True).square().mean()


def _scatter(m: Any, x: Tensor) -> Tensor:
    out = m(x)
    index = out.detach().argsort(1)
    return torch.zeros_like(out).scatter(1, index, out).cumsum(1).square().mean()


def _written_slices(m: Any, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:, ::2] = m(x)[:, ::2] * 2
    out[:, 1::2] = m(x)[:, 1::2].exp()
    return out.square().mean()


def _masked_write(m: Any, x: Tensor) -> Tensor:
    out = m(x).clone()
    out[x > 0.5] = 0.1
    return out.square().mean()


def _powers_in_place(m: Any, x: Tensor) -> Tensor:
    scale = x.detach().exp().square_().pow_(1.5).pow_(x.tanh()).ldexp_(torch.tensor(2))
    return (m(x) * scale.floor_divide_(torch.tensor(0.5)).float_power(0.1)).mean().float()


def _in_place_on_views(m: Any, x: Tensor) -> Tensor:
    out = m(x).clone()
    out[0].mul_(2)
    out.view(-1)[-1] = 0.5
    return out.square().mean()


def _topk(m: Any, x: Tensor) -> Tensor:
    values, index = m(x).topk(3, dim=1)
    return (values * (1 + index)).mean()


def _pieces(m: Any, x: Tensor) -> Tensor:
    parts = torch.tensor_split(m(x), 4, dim=1)
    return torch.cat([p.roll(i, 0) for i, p in enumerate(parts)], dim=1).diff(dim=1).pow(2).mean()


def _segments(m: Any, x: Tensor) -> Tensor:
    rows = torch.arange(len(x)) % 2
    return torch.zeros(2, x.shape[1]).index_add(0, rows, m(x)).logsumexp(1).mean()


def _images(m: Any, x: Tensor) -> Tensor:
    image = m(x).view(-1, 4, 2, 4)
    up = F.interpolate(F.pixel_shuffle(image, 2), scale_factor=2, mode="bilinear")
    return F.adaptive_avg_pool2d(F.pad(up, (1, 1, 1, 1), mode="reflect"), 3).square().mean()


def _rotated(model: Any, x: Tensor) -> Tensor:
    """Positions as the first Llama has them: pairs of numbers are complex ones."""
    angles = torch.outer(torch.arange(8.0), 1.0 / 10.0 ** torch.arange(0, 1, 0.25))
    turns = torch.polar(torch.ones_like(angles), angles)[: x.shape[1] // 2].mean(1)
    pairs = torch.view_as_complex(model(x).view(x.shape[0], -1, 2))
    turned = torch.view_as_real(pairs * turns).flatten(1)
    return (turned * x).mean() + (pairs.conj() * turns).imag.sum()


def _windows(m: Any, x: Tensor) -> Tensor:
    """Windows that overlap, of a tensor that does not lie in the order of its dims."""
    hidden = m(x)
    y = (hidden[:, :2, None] * x[:, None, :4]).permute(1, 2, 0).reshape(2, 4, -1).transpose(0, 2)
    windows = y.as_strided((3, len(x), 2, 2), (len(x), 1, len(x), 4 * len(x)))
    written = y.detach().as_strided_scatter(windows[0], windows[0].shape, (1, len(x), 4 * len(x)))
    return (windows.square() * torch.arange(2.0)).mean() + written.square().mean()


def _repeated(m: Any, x: Tensor) -> Tensor:
    """A repeated tensor can be viewed, whatever the strides of what is repeated."""
    repeated = m(x).t().repeat(2, 1, 3)
    return (repeated.view(2 * repeated.shape[1], -1) * torch.arange(2.0).repeat(3).sum()).mean()


def _sampled(m: Any, x: Tensor) -> Tensor:
    grid = torch.tanh(m(x)).view(len(x), 4, 2, 2)
    return F.grid_sample(x.view(len(x), 1, 4, 4), grid, align_corners=False).square().mean()


def _unfolded(m: Any, x: Tensor) -> Tensor:
    image = m(x).view(-1, 1, 4, 4)
    return F.fold(F.unfold(image, 2), (4, 4), 2).square().mean()


_LOSSES: dict[str, tuple[Callable[[Any, Tensor], Tensor], tuple[int, ...], str]] = {
    "solve": (lambda m, x: torch.linalg.solve(_spd(m(x)), x).square().mean(), (4, 3, 5), "equal"),
    "cholesky": (lambda m, x: torch.linalg.cholesky(_spd(m(x))).sum(), (4, 3, 5), "equal"),
    "inverse": (lambda m, x: torch.linalg.inv(_spd(m(x))).square().mean(), (4, 3, 5), "equal"),
    "log_determinant": (lambda m, x: torch.logdet(_spd(m(x))).mean(), (4, 3, 5), "equal"),
    "eigenvalues": (lambda m, x: torch.linalg.eigvalsh(_spd(m(x))).log().sum(), (4, 3, 5), "equal"),
    "singular_values": (lambda m, x: torch.linalg.svdvals(m(x)).sum(), (4, 3, 5), "equal"),
    "qr": (lambda m, x: torch.linalg.qr(m(x).mT)[1].square().mean(), (4, 3, 5), "equal"),
    "matrix_exponential": (
        lambda m, x: torch.matrix_exp(_spd(m(x)) / 9).mean(),
        (4, 3, 3),
        "equal",
    ),
    "einsum": (
        lambda m, x: torch.einsum("nij,nkj,nik->n", m(x), x, _spd(m(x))).square().mean(),
        (4, 3, 5),
        "equal",
    ),
    "index_put": (_index_put, (6, 5), "equal"),
    "scatter": (_scatter, (6, 5), "equal"),
    "slices_that_are_written": (_written_slices, (6, 5), "equal"),
    "masked_write": (_masked_write, (6, 5), "equal"),
    "powers_in_place": (_powers_in_place, (6, 5), "equal"),
    "writes_through_views": (_in_place_on_views, (6, 5), "equal"),
    "topk": (_topk, (6, 5), "equal"),
    "sort": (lambda m, x: (m(x).sort(0).values * torch.arange(5.0)).mean(), (6, 5), "equal"),
    "median_and_mode": (lambda m, x: m(x).median(1).values.square().mean(), (6, 5), "equal"),
    "kth_value": (lambda m, x: m(x).kthvalue(2, dim=0).values.square().mean(), (6, 5), "equal"),
    "quantile": (lambda m, x: m(x).quantile(0.3, dim=0).square().mean(), (6, 5), "equal"),
    "cumulative": (
        lambda m, x: m(x).cumsum(0).mean() + m(x).cumprod(1).mean() + m(x).logcumsumexp(1).mean(),
        (6, 5),
        "equal",
    ),
    "pieces": (_pieces, (6, 8), "equal"),
    "segments": (_segments, (6, 5), "equal"),
    "images": (_images, (4, 32), "equal"),
    "grid_sample": (_sampled, (4, 16), "equal"),
    "unfold_and_fold": (_unfolded, (4, 16), "equal"),
    "distances": (lambda m, x: torch.cdist(m(x), m(x.flip(0))).mean(), (6, 5), "equal"),
    "spectrum": (lambda m, x: torch.fft.rfft2(m(x)).abs().square().mean(), (4, 4, 6), "equal"),
    "stft": (
        lambda m, x: (
            torch.stft(m(x), 8, 4, window=torch.hann_window(8), return_complex=True).abs().mean()
        ),
        (4, 32),
        "equal",
    ),
    "complex_numbers": (
        lambda m, x: torch.polar(m(x).abs() + 0.1, x).real.square().mean(),
        (6, 5),
        "equal",
    ),
    "windows": (_windows, (16, 8), "equal"),
    "repeated": (_repeated, (6, 8), "equal"),
    "rotated_pairs": (_rotated, (6, 8), "equal"),
    "special_functions": (
        lambda m, x: (torch.lgamma(m(x).abs() + 1) + torch.erf(x) + torch.i0(m(x))).mean(),
        (6, 5),
        "equal",
    ),
    "numbers_of_integers": (
        lambda m, x: (m(x) * (x.abs() * 10).long().remainder(3).float()).square().mean(),
        (6, 5),
        "equal",
    ),
    "vmap": (
        lambda m, x: torch.func.vmap(lambda r: torch.dot(m(r), r) / (1 + r.norm()))(x).mean(),
        (6, 5),
        "equal",
    ),
    "jacobian": (
        lambda m, x: (
            torch.func.vmap(torch.func.jacrev(lambda r: torch.tanh(m(r))))(x).square().mean()
        ),
        (6, 5),
        "equal",
    ),
    "forward_mode": (
        lambda m, x: (
            torch.func.jvp(lambda r: torch.tanh(m(r)), (x,), (torch.ones_like(x),))[1]
            .square()
            .mean()
        ),
        (6, 5),
        "equal",
    ),
    "nonzero_mask": (lambda m, x: m(x)[x > 0].square().sum(), (6, 5), "equal"),
    "mask_of_results": (lambda m, x: m(x)[m(x) > 0].square().sum(), (6, 5), "typed"),
    "unique": (lambda m, x: m(x).mean() * len((x * 2).round().unique()), (6, 5), "equal"),
    "item_as_a_factor": (lambda m, x: m(x).square().mean() * x.abs().max().item(), (6, 5), "any"),
    "converted_to_numpy": (
        lambda m, x: m(x).square().mean() * float(x.detach().numpy().max()),
        (6, 5),
        "any",
    ),
    "converted_to_a_list": (lambda m, x: m(x).square().mean() * sum(x[0].tolist()), (6, 5), "any"),
    "shape_in_python": (
        lambda m, x: m(x).square().sum() / len(x) ** 0.5 / x.numel(),
        (6, 5),
        "equal",
    ),
    "other_dtypes": (
        lambda m, x: m(x).double().square().mean().float() + m(x).half().float().mean(),
        (6, 5),
        "equal",
    ),
    "nothing_left": (lambda m, x: m(x)[:, :0].sum() + m(x).square().mean(), (6, 5), "equal"),
    "division_by_zero": (lambda m, x: (m(x) / 0.0).clamp(-1, 1).mean(), (6, 5), "equal"),
}
for _name, (_loss, _shape, _verdict) in _LOSSES.items():
    _run = _of(_loss, _shape)
    _run.__name__, _run.__module__ = _name, __name__
    program(_verdict)(_run)


@program(strategy="megatron")
def grouped_products(way: Any) -> Iterator[Any]:
    """Experts as libraries run them: rows sorted by expert, and a product for each group."""
    data = Data()

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 4)
            self.up = nn.Parameter(torch.randn(4, 8, 16) * 0.3)
            self.down = nn.Parameter(torch.randn(4, 8, 16) * 0.3)

        def forward(self, x: Tensor) -> Tensor:
            weight, expert = self.router(x).softmax(-1).max(-1)
            expert, order = expert.sort(stable=True)
            ends = torch.histc(expert.float(), 4, 0, 3).cumsum(0, dtype=torch.int32)
            hidden = F.grouped_mm(x[order], self.up, offs=ends).relu()
            made = F.grouped_mm(hidden, self.down.transpose(1, 2), offs=ends)
            return torch.zeros_like(x).index_put((order,), made * weight[order, None])

    model = Experts()
    step = way.loss(model, sgd(model), lambda m, x: m(x).square().mean())
    for n in (12, 12, 8):
        yield step(data.normal(n, 8))
