"""The pieces of random programs: lines of source for each part of a program."""

from __future__ import annotations

from dataclasses import dataclass

Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snippet:
    """Something that a program does, as lines of source for the parts where it does it."""

    setup: Lines = ()
    """Lines after model and optimizer are created."""

    field: tuple[str, str] | None = None
    """An entry of the batch: its name, and its expression at call `i`."""

    begin: Lines = ()
    """Lines at the begin of the step, such as declarations of `nonlocal` names."""

    hidden: Lines = ()
    """Lines after `hidden` is computed, of shape (n, 3)."""

    loss: Lines = ()
    """Lines after `loss` is computed."""

    gradients: Lines = ()
    """Lines between backward and the update."""

    end: Lines = ()
    """Lines after the update."""

    before: Lines = ()
    """Lines in the loop before the call."""

    after: Lines = ()
    """Lines in the loop after the call."""

    shown: str | None = None
    """An expression that the user looks at after each call."""


SNIPPETS = (
    # numbers, flags and strings of the batch
    Snippet(field=("beta", "0.1 * i"), loss=("loss = loss + beta * hidden.square().mean()",)),
    Snippet(field=("epoch", "i"), loss=("loss = loss / (1 + epoch)",)),
    Snippet(
        field=("use_penalty", "i > 1"),
        loss=("if use_penalty:", "    loss = loss + 0.3 * hidden.square().mean()"),
    ),
    Snippet(
        field=("task", "['cosine', 'square'][i % 2]"),
        loss=(
            "if task == 'square':",
            "    loss = loss + 0.1 * hidden.square().mean()",
            "else:",
            "    loss = loss + 0.1 * hidden.cos().mean()",
        ),
    ),
    Snippet(
        field=("weight", "data.uniform(3) if i % 2 else None"),
        hidden=("if weight is not None:", "    hidden = hidden * weight"),
    ),
    Snippet(field=("factor", "torch.tensor(0.5 + i)"), loss=("loss = loss * factor",)),
    Snippet(field=("names", "[f'{i}-{k}' for k in range(2)]")),
    # schedules
    Snippet(
        setup=("scheduler = lr_scheduler.StepLR(optimizer, 2, 0.3)",), after=("scheduler.step()",)
    ),
    Snippet(
        setup=("schedule = lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + k))",),
        end=("schedule.step()",),
    ),
    Snippet(
        setup=(
            "cycle = lr_scheduler.OneCycleLR(",
            "    optimizer, 0.1, total_steps=6,",
            "    cycle_momentum='lr_decay' not in optimizer.defaults,",
            ")",
        ),
        after=("cycle.step()",),
        shown="[{k: v for k, v in g.items() if k != 'params'} for g in optimizer.param_groups]",
    ),
    Snippet(before=("optimizer.param_groups[0]['weight_decay'] = 0.1 * i",)),
    Snippet(before=("optimizer.param_groups[-1]['lr'] = 0.1 / (1 + i)",)),
    Snippet(
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
    Snippet(
        setup=("counter = 0",),
        begin=("nonlocal counter", "counter += 1"),
        loss=("if counter % 2 == 0:", "    loss = loss + 0.2 * hidden.abs().mean()"),
        shown="counter",
    ),
    Snippet(
        setup=("config = {'smoothing': 0.0}",),
        loss=("loss = loss + config['smoothing'] * hidden.square().mean()",),
        before=("config['smoothing'] = 0.1 * (i // 2)",),
    ),
    Snippet(
        setup=("settings = SimpleNamespace(kind='plain', power=2)",),
        loss=(
            "if settings.kind != 'plain':",
            "    loss = loss + 0.1 * hidden.abs().pow(settings.power).mean()",
        ),
        before=("settings.kind, settings.power = ('plain', 2) if i < 1 else ('power', i)",),
    ),
    Snippet(
        setup=("model.beta = 0.0",),
        loss=("loss = loss + model.beta * hidden.square().mean()",),
        before=("model.beta = 0.1 * i",),
    ),
    Snippet(before=("model.train(i % 2 == 0)",)),
    Snippet(after=("if i == 1:", "    model.eval()")),
    Snippet(before=("model[0].requires_grad_(i != 2)",)),
    Snippet(before=("model[-1].bias.requires_grad_(i % 2 == 0)",)),
    Snippet(
        before=(
            "for module in model.modules():",
            "    if isinstance(module, nn.Dropout):",
            "        module.p = 0.1 * i",
            "    if isinstance(module, Scaled):",
            "        module.scale = 1.0 - 0.1 * i",
        )
    ),
    Snippet(after=("if i == 1:", "    model[1] = nn.Tanh()")),
    # tensors and containers outside
    Snippet(
        setup=("shadow = {n: p.detach().clone() for n, p in model.named_parameters()}",),
        end=(
            "with torch.no_grad():",
            "    for n, p in model.named_parameters():",
            "        if n in shadow:",
            "            shadow[n].lerp_(p, 0.3)",
        ),
        shown="shadow",
    ),
    Snippet(
        setup=("total = torch.zeros(())",),
        end=("total.add_(loss.detach())",),
        shown="total.clone()",
    ),
    Snippet(setup=("log = []",), end=("log.append(loss.detach())",), shown="list(log)"),
    Snippet(
        setup=("meter = {'sum': 0.0, 'n': 0}",),
        end=("meter['sum'] += loss.item()", "meter['n'] += 1"),
        shown="dict(meter)",
    ),
    Snippet(
        setup=("teacher = copy.deepcopy(model[-1]).requires_grad_(False)",),
        hidden=("hidden = hidden + 0.1 * teacher(torch.ones(1, 8))",),
        end=(
            "with torch.no_grad():",
            "    for mine, theirs in zip(teacher.parameters(), model[-1].parameters()):",
            "        mine.lerp_(theirs, 0.2)",
        ),
        shown="teacher.state_dict()",
    ),
    Snippet(
        setup=("scales = torch.ones(3)",),
        hidden=("hidden = hidden * scales",),
        after=("scales[i % 3] += 0.5",),
    ),
    Snippet(setup=("kept = model[-1].weight.detach()[0]",), shown="kept.clone()"),
    # gradients
    Snippet(gradients=("nn.utils.clip_grad_norm_(model.parameters(), 0.2)",)),
    Snippet(gradients=("nn.utils.clip_grad_value_(model.parameters(), 0.02)",)),
    Snippet(
        gradients=(
            "for p in model.parameters():",
            "    if p.grad is not None:",
            "        p.grad.add_(torch.randn_like(p), alpha=0.01)",
        )
    ),
    Snippet(
        setup=("model[-1].weight.register_hook(lambda g: 0.5 * g)",),
    ),
    Snippet(
        shown="[None if p.grad is None else p.grad.clone() for p in model.parameters()]",
    ),
    # writes, views, aliases, draws
    Snippet(hidden=("hidden = hidden.clone()", "hidden[:, 0] *= 0.5")),
    Snippet(hidden=("hidden = hidden.clone()", "hidden.view(-1)[::2].mul_(0.9)")),
    Snippet(hidden=("hidden = F.dropout(hidden.T, 0.2, model.training).T",)),
    Snippet(hidden=("hidden = hidden + 0.1 * torch.randn_like(hidden)",)),
    Snippet(
        setup=("model.register_parameter('again', model[-1].weight)",),
        loss=("loss = loss + 0.01 * model.again.square().sum()",),
    ),
    Snippet(
        setup=("model.register_buffer('seen', torch.zeros(3))",),
        hidden=("model.seen += hidden.detach().mean(0)",),
    ),
    # the user reads and writes between calls
    Snippet(
        after=(
            "if i == 0:",
            "    saved = copy.deepcopy(model.state_dict())",
            "if i == 2:",
            "    model.load_state_dict(saved)",
        )
    ),
    Snippet(after=("for p in model.parameters():", "    p.data.mul_(0.9)")),
    Snippet(
        after=("with torch.no_grad():", "    model[-1].weight.copy_(model[-1].weight.flip(0))")
    ),
    Snippet(after=("optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))",)),
    Snippet(
        after=(
            "training = model.training",
            "with torch.no_grad():",
            "    out = model.eval()(x)",
            "model.train(training)",
        ),
        shown="out",
    ),
    Snippet(shown="[float(p.detach().norm()) for p in model.parameters()]"),
)
