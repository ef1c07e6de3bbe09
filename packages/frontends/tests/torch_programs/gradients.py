"""Gradients that are kept, clipped, written, hooked, or taken twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, adam, mlp, sgd


def _grads(model: nn.Module) -> list[Tensor | None]:
    return [p.grad for p in model.parameters()]


@program()
def never_zeroed(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model, 0.02)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(5):
        yield step(*data.labelled())


@program()
def zeroed_outside_every_second_call(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for i in range(6):
        if i % 2 == 0:
            optimizer.zero_grad()
        yield step(*data.labelled())


@program("any", devices=1)
def zeroed_by_a_flag_of_the_batch(way: Any) -> Iterator[Any]:
    """Found by the fuzzer: a call that zeroes, then one that adds to what that left."""
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor, is_first: bool) -> Tensor:
        if is_first:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for i in range(5):
        yield step(*data.labelled(), i % 2 == 0)


@program()
def zeroed_after_the_update(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(5):
        yield step(*data.labelled()), _grads(model)


@program()
def zeroed_to_zeros(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    model[0].bias.requires_grad_(False)
    optimizer = sgd(model, momentum=0.9, weight_decay=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def accumulated_every_third_call(way: Any) -> Iterator[Any]:
    """The update is made by every third call only, as a flag of the call says."""
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(x: Tensor, y: Tensor, update: bool) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        (loss / 3).backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for i in range(6):
        yield step(*data.labelled(), (i + 1) % 3 == 0)


@program()
def accumulated_by_a_counter(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    calls = 0

    def train(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        if calls % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(6):
        yield step(*data.labelled()), calls


@program()
def accumulated_here_updated_outside(way: Any) -> Iterator[Any]:
    """The step only computes gradients; the user updates."""
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for i in range(6):
        yield step(*data.labelled())
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


@program()
def accumulated_inside(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for x, y in batches:
            loss = F.cross_entropy(model(x), y) / len(batches)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    step = way.step(train, model, optimizer)
    for n in (2, 2, 3, 2):
        yield step([data.labelled(4) for _ in range(n)])


@program(devices=4)
def accumulated_over_chunks(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(x: Tensor, y: Tensor) -> list[Tensor]:
        optimizer.zero_grad()
        losses = []
        for a, b in zip(x.split(4), y.split(4), strict=True):
            loss = F.cross_entropy(model(a), b) * len(a) / len(x)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return losses

    step = way.step(train, model, optimizer)
    for n in (8, 8, 6, 8):
        yield step(*data.labelled(n))


@program(devices=4, microbatches=2)
def clipped_by_norm(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach(), norm

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def clipped_by_value(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program("any")
def read_after_the_call(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(4):
        loss = step(data.labelled())
        yield loss, _grads(model), [float(p.grad.norm()) for p in model.parameters()]


@program("any")
def divided_by_hand(way: Any) -> Iterator[Any]:
    """An update without an optimizer's step: gradients by `autograd.grad`."""
    data, model = Data(), mlp()

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= 0.1 * g
        return loss.detach()

    step = way.step(train, model, None)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def assigned_by_hand(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for p, g in zip(model.parameters(), gradients, strict=True):
            p.grad = g / (g.norm() + 1e-3)
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), _grads(model)


@program()
def set_to_nothing_by_hand(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        for p in model.parameters():
            p.grad = None
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def penalty_on_the_gradient(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(6, 16, 1)
    optimizer = adam(model)

    def train(x: Tensor) -> Any:
        optimizer.zero_grad()
        x = x.detach().requires_grad_(True)
        out = model(x)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        penalty = (gradient.norm(dim=1) - 1).square().mean()
        loss = out.mean() + 10 * penalty
        loss.backward()
        optimizer.step()
        return loss.detach(), penalty.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(data.normal(8, 6))


@program()
def sharpness_aware(way: Any) -> Iterator[Any]:
    """Two passes: up the gradient, and down from there."""
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        first = F.cross_entropy(model(x), y)
        first.backward()
        moved = []
        with torch.no_grad():
            for p in model.parameters():
                e = 0.05 * p.grad / (p.grad.norm() + 1e-6)
                p.add_(e)
                moved.append(e)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), moved, strict=True):
                p.sub_(e)
        optimizer.step()
        return first.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def inner_loop_of_meta_learning(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        names, weights = zip(*model.named_parameters(), strict=True)
        inner = F.cross_entropy(
            torch.func.functional_call(model, dict(zip(names, weights, strict=False)), x), y
        )
        gradients = torch.autograd.grad(inner, weights, create_graph=True)
        fast = {n: w - 0.1 * g for n, w, g in zip(names, weights, gradients, strict=True)}
        loss = F.cross_entropy(torch.func.functional_call(model, fast, x.flip(0)), y.flip(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def per_example_gradients(way: Any) -> Iterator[Any]:
    """Differential privacy: clipped one by one, by vmap of grad."""
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def loss_of_one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = torch.func.functional_call(model, weights, x[None])
        return F.cross_entropy(out, y[None])

    def train(x: Tensor, y: Tensor) -> Tensor:
        weights = {n: p.detach() for n, p in model.named_parameters()}
        gradients = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0))(
            weights, x, y
        )
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        scale = (0.5 / norms).clamp(max=1.0)
        for name, p in model.named_parameters():
            p.grad = torch.einsum("n,n...->...", scale, gradients[name]) / len(x)
        optimizer.step()
        return norms.mean()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def hooks_on_parameters(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    model[0].weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(4):
        yield step(data.labelled())


@program()
def hooks_that_keep_norms(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    norms: dict[str, Any] = {}
    for name, p in model.named_parameters():
        p.register_hook(lambda g, name=name: norms.__setitem__(name, g.norm()))
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(4):
        yield step(data.labelled()), norms


@program("any")
def optimizer_in_the_backward(way: Any) -> Iterator[Any]:
    """Each parameter has an optimizer that steps as soon as its gradient is there."""
    data, model = Data(), mlp()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    step = way.step(train, model, None)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def hooks_on_modules(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    seen: list[Tensor] = []
    model[0].register_forward_hook(lambda m, i, o: seen.append(o.detach().mean()))
    model[1].register_forward_hook(lambda m, i, o: 0.5 * o)
    model[3].register_full_backward_hook(lambda m, i, o: seen.append(o[0].norm()))
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(4):
        yield step(data.labelled()), seen


@program()
def hook_that_comes_and_goes(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for i in range(5):
        if i == 1:
            handle = model[1].register_forward_hook(lambda m, i, o: 0.1 * o)
        if i == 3:
            handle.remove()
        yield step(data.labelled())


class _Straight(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1)


@program()
def own_autograd_function(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(
        model,
        sgd(model),
        lambda m, b: F.cross_entropy(m[3](_Straight.apply(3 * m[:2](b[0])) / 3), b[1]),
    )
    for _ in range(4):
        yield step(data.labelled())


@program()
def checkpointed(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.Sequential(mlp(6, 16, 6, 0.2), mlp(6, 16, 3, 0.2))

    def loss(model: Any, batch: Any) -> Tensor:
        hidden = torch.utils.checkpoint.checkpoint(model[0], batch[0], use_reentrant=False)
        return F.cross_entropy(model[1](hidden), batch[1])

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program()
def checkpointed_reentrant(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.Sequential(mlp(6, 16, 6, 0.2), mlp(6, 16, 3))

    def loss(model: Any, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_(True)
        hidden = torch.utils.checkpoint.checkpoint(model[0], x, use_reentrant=True)
        return F.cross_entropy(model[1](hidden), batch[1])

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program(rtol=2e-2)
def autocast_to_bfloat16(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(batch[0]), batch[1])

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program()
def gradient_scaler(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), scaler.get_scale()


@program()
def two_losses_two_backwards(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        hidden = model[:2](x)
        one = F.cross_entropy(model[3](hidden), y)
        one.backward(retain_graph=True)
        two = hidden.square().mean()
        two.backward()
        optimizer.step()
        return one.detach(), two.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def two_updates_in_a_step(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(x: Tensor, y: Tensor) -> Any:
        losses = []
        for half in (slice(0, 4), slice(4, 8)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[half]), y[half])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def surgery_on_conflicting_gradients(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Any:
        out = model(x)
        params = list(model.parameters())
        a = torch.autograd.grad(F.cross_entropy(out, y), params, retain_graph=True)
        b = torch.autograd.grad(out.square().mean(), params)
        one = torch.cat([g.flatten() for g in a])
        two = torch.cat([g.flatten() for g in b])
        dot = one @ two
        one = torch.where(dot < 0, one - dot / two.square().sum() * two, one)
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(params) - 0.1 * one, params)
        return dot

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program(devices=1)
def unfrozen_in_a_step_that_only_adds_up(way: Any) -> Iterator[Any]:
    """A callback unfreezes a layer where gradients are added up, and the next call updates."""
    data, model = Data(), mlp()
    optimizer = adam(model)
    model[0].requires_grad_(False)

    def train(x: Tensor, y: Tensor, number: int) -> Tensor:
        if number == 2:
            model[0].requires_grad_(True)
        loss = F.cross_entropy(model(x), y)
        (loss / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for number in range(4):
        yield step(*data.labelled(), number)
