"""What a random program may be made of: lines for each of its places."""

from __future__ import annotations

from dataclasses import dataclass

Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that programs do, as lines of source for the places where it is done."""

    setup: Lines = ()
    """After model and optimizer are made."""

    field: tuple[str, str] | None = None
    """An entry of the batch: its name, and what it is at call `i`."""

    begin: Lines = ()
    """First in the step; declarations of `nonlocal` names."""

    hidden: Lines = ()
    """After `hidden` is computed, of shape (n, 3)."""

    loss: Lines = ()
    """After `loss` is."""

    gradients: Lines = ()
    """Between the backward pass and the update."""

    end: Lines = ()
    """After the update."""

    before: Lines = ()
    """In the loop, before the call."""

    after: Lines = ()
    """In the loop, after the call."""

    shown: str | None = None
    """What the user looks at after each call."""


PIECES = (
    # numbers, flags and strings of the batch
    Piece(field=("beta", "0.1 * i"), loss=("loss = loss + beta * hidden.square().mean()",)),
    Piece(field=("epoch", "i"), loss=("loss = loss / (1 + epoch)",)),
    Piece(
        field=("use_penalty", "i > 1"),
        loss=("if use_penalty:", "    loss = loss + 0.3 * hidden.square().mean()"),
    ),
    Piece(
        field=("task", "['cosine', 'square'][i % 2]"),
        loss=(
            "if task == 'square':",
            "    loss = loss + 0.1 * hidden.square().mean()",
            "else:",
            "    loss = loss + 0.1 * hidden.cos().mean()",
        ),
    ),
    Piece(
        field=("weight", "data.uniform(3) if i % 2 else None"),
        hidden=("if weight is not None:", "    hidden = hidden * weight"),
    ),
    Piece(field=("factor", "torch.tensor(0.5 + i)"), loss=("loss = loss * factor",)),
    Piece(field=("names", "[f'{i}-{k}' for k in range(2)]")),
    # schedules
    Piece(
        setup=("scheduler = lr_scheduler.StepLR(optimizer, 2, 0.3)",), after=("scheduler.step()",)
    ),
    Piece(
        setup=("schedule = lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + k))",),
        end=("schedule.step()",),
    ),
    Piece(
        setup=(
            "cycle = lr_scheduler.OneCycleLR(",
            "    optimizer, 0.1, total_steps=6,",
            "    cycle_momentum='lr_decay' not in optimizer.defaults,",
            ")",
        ),
        after=("cycle.step()",),
        shown="[{k: v for k, v in g.items() if k != 'params'} for g in optimizer.param_groups]",
    ),
    Piece(before=("optimizer.param_groups[0]['weight_decay'] = 0.1 * i",)),
    Piece(before=("optimizer.param_groups[-1]['lr'] = 0.1 / (1 + i)",)),
    Piece(
        setup=("done = 0",),
        begin=(
            "nonlocal done",
            "done += 1",
            "for group in optimizer.param_groups:",
            "    group['lr'] = 0.05 * done",
        ),
        shown="done",
    ),
    # state of Python
    Piece(
        setup=("counter = 0",),
        begin=("nonlocal counter", "counter += 1"),
        loss=("if counter % 2 == 0:", "    loss = loss + 0.2 * hidden.abs().mean()"),
        shown="counter",
    ),
    Piece(
        setup=("config = {'smoothing': 0.0}",),
        loss=("loss = loss + config['smoothing'] * hidden.square().mean()",),
        before=("config['smoothing'] = 0.1 * (i // 2)",),
    ),
    Piece(
        setup=("settings = SimpleNamespace(kind='plain', power=2)",),
        loss=(
            "if settings.kind != 'plain':",
            "    loss = loss + 0.1 * hidden.abs().pow(settings.power).mean()",
        ),
        before=("settings.kind, settings.power = ('plain', 2) if i < 1 else ('power', i)",),
    ),
    Piece(
        setup=("model.beta = 0.0",),
        loss=("loss = loss + model.beta * hidden.square().mean()",),
        before=("model.beta = 0.1 * i",),
    ),
    Piece(before=("model.train(i % 2 == 0)",)),
    Piece(after=("if i == 1:", "    model.eval()")),
    Piece(before=("model[0].requires_grad_(i != 2)",)),
    Piece(before=("model[-1].bias.requires_grad_(i % 2 == 0)",)),
    Piece(
        before=(
            "for module in model.modules():",
            "    if isinstance(module, nn.Dropout):",
            "        module.p = 0.1 * i",
            "    if isinstance(module, Scaled):",
            "        module.scale = 1.0 - 0.1 * i",
        )
    ),
    Piece(after=("if i == 1:", "    model[1] = nn.Tanh()")),
    # tensors and containers outside
    Piece(
        setup=("shadow = {n: p.detach().clone() for n, p in model.named_parameters()}",),
        end=(
            "with torch.no_grad():",
            "    for n, p in model.named_parameters():",
            "        if n in shadow:",
            "            shadow[n].lerp_(p, 0.3)",
        ),
        shown="shadow",
    ),
    Piece(
        setup=("total = torch.zeros(())",),
        end=("total.add_(loss.detach())",),
        shown="total.clone()",
    ),
    Piece(setup=("log = []",), end=("log.append(loss.detach())",), shown="list(log)"),
    Piece(
        setup=("meter = {'sum': 0.0, 'n': 0}",),
        end=("meter['sum'] += loss.item()", "meter['n'] += 1"),
        shown="dict(meter)",
    ),
    Piece(
        setup=("teacher = copy.deepcopy(model[-1]).requires_grad_(False)",),
        hidden=("hidden = hidden + 0.1 * teacher(torch.ones(1, 8))",),
        end=(
            "with torch.no_grad():",
            "    for mine, theirs in zip(teacher.parameters(), model[-1].parameters()):",
            "        mine.lerp_(theirs, 0.2)",
        ),
        shown="teacher.state_dict()",
    ),
    Piece(
        setup=("scales = torch.ones(3)",),
        hidden=("hidden = hidden * scales",),
        after=("scales[i % 3] += 0.5",),
    ),
    Piece(setup=("kept = model[-1].weight.detach()[0]",), shown="kept.clone()"),
    # gradients
    Piece(gradients=("nn.utils.clip_grad_norm_(model.parameters(), 0.2)",)),
    Piece(gradients=("nn.utils.clip_grad_value_(model.parameters(), 0.02)",)),
    Piece(
        gradients=(
            "for p in model.parameters():",
            "    if p.grad is not None:",
            "        p.grad.add_(torch.randn_like(p), alpha=0.01)",
        )
    ),
    Piece(
        setup=("model[-1].weight.register_hook(lambda g: 0.5 * g)",),
    ),
    Piece(
        shown="[None if p.grad is None else p.grad.clone() for p in model.parameters()]",
    ),
    # writes, views, aliases, draws
    Piece(hidden=("hidden = hidden.clone()", "hidden[:, 0] *= 0.5")),
    Piece(hidden=("hidden = hidden.clone()", "hidden.view(-1)[::2].mul_(0.9)")),
    Piece(hidden=("hidden = F.dropout(hidden.T, 0.2, model.training).T",)),
    Piece(hidden=("hidden = hidden + 0.1 * torch.randn_like(hidden)",)),
    Piece(
        setup=("model.register_parameter('again', model[-1].weight)",),
        loss=("loss = loss + 0.01 * model.again.square().sum()",),
    ),
    Piece(
        setup=("model.register_buffer('seen', torch.zeros(3))",),
        hidden=("model.seen += hidden.detach().mean(0)",),
    ),
    # the user reads and writes between calls
    Piece(
        after=(
            "if i == 0:",
            "    saved = copy.deepcopy(model.state_dict())",
            "if i == 2:",
            "    model.load_state_dict(saved)",
        )
    ),
    Piece(after=("for p in model.parameters():", "    p.data.mul_(0.9)")),
    Piece(after=("with torch.no_grad():", "    model[-1].weight.copy_(model[-1].weight.flip(0))")),
    Piece(after=("optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))",)),
    Piece(
        after=(
            "training = model.training",
            "with torch.no_grad():",
            "    out = model.eval()(x)",
            "model.train(training)",
        ),
        shown="out",
    ),
    Piece(shown="[float(p.detach().norm()) for p in model.parameters()]"),
)
