"""Dropout of every kind, and other random numbers drawn inside of layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, mlp, sgd


def _trained(way: Any, model: nn.Module, shape: Any, loss: Any, n: int = 4) -> Iterator[Any]:
    data = Data()
    step = way.loss(model, sgd(model), loss)
    for _ in range(n):
        yield step(data.normal(*shape))


def _square(model: Any, x: Tensor) -> Tensor:
    return model(x).square().mean()


@program()
def plain(way: Any) -> Iterator[Any]:
    yield from _trained(way, mlp(dropout=0.3), (8, 6), _square)


@program(devices=4, microbatches=2)
def plain_in_microbatches(way: Any) -> Iterator[Any]:
    yield from _trained(way, mlp(dropout=0.3), (8, 6), _square)


@program()
def on_a_transposed_tensor(way: Any) -> Iterator[Any]:
    model = nn.Linear(6, 4)
    yield from _trained(
        way, model, (3, 5, 6), lambda m, x: F.dropout(m(x).transpose(0, 1), 0.4).square().mean()
    )


@program()
def on_a_permuted_tensor(way: Any) -> Iterator[Any]:
    def loss(model: Any, x: Tensor) -> Tensor:
        heads = model(x).view(2, 5, 2, 4).permute(0, 2, 1, 3)
        return (F.dropout(heads, 0.3) * torch.arange(4.0)).square().mean()

    yield from _trained(way, nn.Linear(6, 8), (2, 5, 6), loss)


@program()
def on_an_expanded_tensor(way: Any) -> Iterator[Any]:
    def loss(model: Any, x: Tensor) -> Tensor:
        wide = model(x)[:, None].expand(-1, 3, -1)
        return (F.dropout(wide, 0.3) * torch.arange(3.0)[:, None]).square().mean()

    yield from _trained(way, nn.Linear(6, 4), (4, 6), loss)


@program()
def on_a_slice(way: Any) -> Iterator[Any]:
    def loss(model: Any, x: Tensor) -> Tensor:
        return F.dropout(model(x)[:, ::2], 0.3).square().mean()

    yield from _trained(way, nn.Linear(6, 8), (4, 6), loss)


@program()
def on_channels_last(way: Any) -> Iterator[Any]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Dropout(0.3), nn.Conv2d(4, 2, 1))
    yield from _trained(
        way,
        model.to(memory_format=torch.channels_last),
        (2, 3, 5, 5),
        lambda m, x: m(x.to(memory_format=torch.channels_last)).square().mean(),
    )


@program()
def of_channels(way: Any) -> Iterator[Any]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.4), nn.Conv2d(4, 2, 3))
    yield from _trained(way, model, (3, 3, 6, 6), _square)


@program()
def alpha(way: Any) -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(6, 8), nn.SELU(), nn.AlphaDropout(0.3), nn.Linear(8, 2))
    yield from _trained(way, model, (4, 6), _square)


@program()
def feature_alpha(way: Any) -> Iterator[Any]:
    model = nn.Sequential(nn.Conv1d(3, 8, 2), nn.FeatureAlphaDropout(0.3), nn.Conv1d(8, 2, 2))
    yield from _trained(way, model, (4, 3, 7), _square)


@program()
def in_place(way: Any) -> Iterator[Any]:
    model = nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(0.3, inplace=True), nn.ReLU(inplace=True), nn.Linear(8, 2)
    )
    yield from _trained(way, model, (4, 6), _square)


@program()
def stochastic_depth(way: Any) -> Iterator[Any]:
    def loss(model: Any, x: Tensor) -> Tensor:
        for layer in model:
            keep = (torch.rand(len(x), 1) < 0.7).float()
            x = x + keep / 0.7 * torch.tanh(layer(x))
        return x.square().mean()

    yield from _trained(way, nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), (4, 6), loss)


@program("any")
def random_relu(way: Any) -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(6, 8), nn.RReLU(), nn.Linear(8, 2))
    yield from _trained(way, model, (4, 6), _square)


@program()
def gumbel(way: Any) -> Iterator[Any]:
    def loss(model: Any, x: Tensor) -> Tensor:
        return F.gumbel_softmax(model(x), tau=0.7, hard=True).matmul(torch.arange(4.0)).mean()

    yield from _trained(way, nn.Linear(6, 4), (4, 6), loss)


@program()
def variational(way: Any) -> Iterator[Any]:
    def loss(model: Any, x: Tensor) -> Tensor:
        mean, spread = model[0](x).chunk(2, dim=1)
        drawn = torch.distributions.Normal(mean, spread.exp()).rsample()
        kl = 0.5 * (mean.square() + (2 * spread).exp() - 1 - 2 * spread).sum(1)
        return (model[1](drawn) - x).square().mean() + 0.1 * kl.mean()

    yield from _trained(way, nn.Sequential(nn.Linear(6, 8), nn.Linear(4, 6)), (4, 6), loss)


@program()
def diffusion(way: Any) -> Iterator[Any]:
    def loss(model: Any, x: Tensor) -> Tensor:
        t = torch.randint(0, 10, (len(x),))
        share = torch.cos(0.15 * t)[:, None]
        noise = torch.randn_like(x)
        return F.mse_loss(model(share * x + (1 - share**2).sqrt() * noise), noise)

    yield from _trained(way, mlp(6, 16, 6), (8, 6), loss)


@program()
def drawn_from_the_models_output(way: Any) -> Iterator[Any]:
    """Policy gradient: actions are drawn by the probabilities of the weights."""

    def loss(model: Any, x: Tensor) -> Tensor:
        policy = torch.distributions.Categorical(logits=model(x))
        action = policy.sample()
        return -(policy.log_prob(action) * x[:, 0]).mean()

    yield from _trained(way, mlp(), (8, 6), loss)


@program()
def token_masking(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))

    def loss(model: Any, tokens: Tensor) -> Tensor:
        masked = torch.bernoulli(torch.full(tokens.shape, 0.3)).bool()
        labels = tokens.masked_fill(~masked, -100)
        out = model(tokens.masked_fill(masked, 11))
        return F.cross_entropy(out.flatten(0, 1), labels.flatten())

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.classes(11, 4, 6))


@program()
def encoder_layer(way: Any) -> Iterator[Any]:
    model = nn.TransformerEncoderLayer(8, 2, 16, 0.2)
    yield from _trained(way, model, (5, 2, 8), _square)


@program(devices=4, microbatches=2)
def encoder_layer_batch_first(way: Any) -> Iterator[Any]:
    model = nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True, norm_first=True)
    yield from _trained(way, model, (2, 5, 8), _square)


@program(devices=4, stages=2, microbatches=2)
def encoder_with_masks(way: Any) -> Iterator[Any]:
    data = Data()
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def loss(model: Any, batch: Any) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        out = model(batch["x"], mask=mask, src_key_padding_mask=batch["pad"], is_causal=True)
        return (out * ~batch["pad"][..., None]).square().mean()

    step = way.loss(model, sgd(model), loss)
    for i in range(4):
        pad = torch.arange(5) >= 5 - i
        yield step({"x": data.normal(4, 5, 8), "pad": pad.expand(4, 5)})


@program(devices=4, stages=2, microbatches=2)
def whole_transformer(way: Any) -> Iterator[Any]:
    model = nn.Transformer(8, 2, 1, 1, 16, 0.1, batch_first=True)
    yield from _trained(way, model, (2, 5, 8), lambda m, x: m(x, x.flip(1)).square().mean())


@program(devices=4, microbatches=2)
def attention_with_weights(way: Any) -> Iterator[Any]:
    model = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)

    def loss(model: Any, x: Tensor) -> Tensor:
        out, weights = model(x, x, x, need_weights=True)
        return out.square().mean() + weights.square().mean()

    yield from _trained(way, model, (2, 5, 8), loss)


@program()
def scaled_dot_product(way: Any) -> Iterator[Any]:
    def loss(model: Any, x: Tensor) -> Tensor:
        q, k, v = model(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return (
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True).square().mean()
        )

    yield from _trained(way, nn.Linear(8, 24), (2, 5, 8), loss)


@program()
def recurrent(way: Any) -> Iterator[Any]:
    model = nn.LSTM(6, 8, num_layers=2, dropout=0.3, batch_first=True)
    yield from _trained(way, model, (2, 5, 6), lambda m, x: m(x)[0].square().mean())


@program()
def functional_with_the_models_flag(way: Any) -> Iterator[Any]:
    """Dropout without a module, whose training flag is an attribute that is set later."""
    data, model = Data(), mlp()
    step = way.loss(
        model,
        sgd(model),
        lambda m, x: m(F.dropout(x, 0.4, training=m.training)).square().mean(),
    )
    for i in range(5):
        model.train(i < 3)
        yield step(data.normal(4, 6))


@program("any")
def random_crop(way: Any) -> Iterator[Any]:
    """A number drawn by torch that Python slices by."""
    data, model = Data(), nn.Conv1d(2, 2, 3)

    def loss(model: Any, x: Tensor) -> Tensor:
        begin = int(torch.randint(0, 4, ()))
        return model(x[:, :, begin : begin + 6]).square().mean()

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.normal(4, 2, 10))


@program()
def layer_drop_by_torch(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def loss(model: Any, x: Tensor) -> Tensor:
        for layer in model:
            if torch.rand(()) > 0.3:
                x = x + layer(x).tanh()
        return x.square().mean()

    step = way.loss(model, sgd(model), loss)
    for _ in range(5):
        yield step(data.normal(4, 6))
