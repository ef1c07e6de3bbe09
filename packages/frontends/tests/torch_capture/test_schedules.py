"""A step may move schedules on; that makes no variants, unless it looks at what they set."""

from collections.abc import Callable
from typing import Any

import frontends.torch as mw
import pytest
import torch
from costmodel import Cluster
from torch import nn
from torch.optim import lr_scheduler as schedules

CLUSTER = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=2)
N_CALLS = 6
Make = Callable[[torch.optim.Optimizer], Any]

MADE: dict[str, Make] = {
    "lambda": lambda o: schedules.LambdaLR(o, lambda count: 1 / (1 + count)),
    "linear": lambda o: schedules.LinearLR(o, 1.0, 0.1, 4),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 4),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 2),
    "steps": lambda o: schedules.StepLR(o, 2, 0.5),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=10),
    "cycles": lambda o: schedules.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=False),
    "sequence": lambda o: schedules.SequentialLR(
        o, [schedules.ConstantLR(o, 0.1), schedules.ExponentialLR(o, 0.9)], [2]
    ),
    "chain": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, 0.1, 3), schedules.ExponentialLR(o, 0.9)]
    ),
}


class Lengthens(schedules.LRScheduler):
    """A schedule of a user, who has a `step` of their own."""

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * (1 + self.last_epoch % 3)

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]


Train = Callable[[Any, Any, Any, Any], Any]


def usual(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    schedule.step()
    return loss.detach()


def ran(
    train: Train, make: Make, is_parallel: bool, n_calls: int
) -> tuple[list[Any], list[dict[str, Any]], list[Any], int]:
    """What calls return, the groups afterwards, weights, and how many variants there are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    schedule = make(optimizer)

    def step(x: torch.Tensor) -> Any:
        return train(model, optimizer, schedule, x)

    call: Any = step
    if is_parallel:
        call = mw.parallelize_step(step, model, optimizer, cluster=CLUSTER, microbatches=1)
    generator = torch.Generator().manual_seed(1)
    returned = [call(torch.randn(8, 8, generator=generator)) for _ in range(n_calls)]
    kept = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    weights = [p.detach().clone() for p in model.parameters()]
    return returned, kept, weights, len(call.variants) if is_parallel else 1


def assert_as_eager(train: Train, make: Make, n_variants: int, n_calls: int = N_CALLS) -> None:
    expected, found = (ran(train, make, is_parallel, n_calls) for is_parallel in (False, True))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
    assert found[1] == expected[1]
    torch.testing.assert_close(found[2], expected[2], rtol=1e-4, atol=1e-5)
    assert found[3] == n_variants


@pytest.mark.parametrize("name", MADE)
def test_a_schedule_is_moved_on_by_every_call_of_one_program(name: str) -> None:
    assert_as_eager(usual, MADE[name], 1)


def test_one_of_a_users_class_is_moved_on_within_the_step() -> None:
    assert_as_eager(usual, Lengthens, N_CALLS)


@pytest.mark.parametrize("is_named", [False, True])
def test_one_that_looks_at_the_loss_gets_it(is_named: bool) -> None:
    def train(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if is_named:
            schedule.step(metrics=loss.detach())
        else:
            schedule.step(loss.detach())
        return loss.detach()

    assert_as_eager(train, lambda o: schedules.ReduceLROnPlateau(o, factor=0.5, patience=0), 1)


def test_two_schedules_are_moved_on_in_their_order() -> None:
    def train(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
        loss = usual(model, optimizer, schedule[0], x)
        schedule[1].step()
        return loss

    def make(optimizer: torch.optim.Optimizer) -> Any:
        return schedules.StepLR(optimizer, 2, 0.5), schedules.ExponentialLR(optimizer, 0.9)

    assert_as_eager(train, make, 1)


def returns_it(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
    return usual(model, optimizer, schedule, x), schedule.get_last_lr()[0]


def returns_of_group(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
    return usual(model, optimizer, schedule, x), {"lr": optimizer.param_groups[0]["lr"]}


def computes_with_it(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
    return usual(model, optimizer, schedule, x) * optimizer.param_groups[0]["lr"]


def counts_by_it(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
    loss = usual(model, optimizer, schedule, x)
    try:
        return loss if schedule.last_epoch % 2 else 2 * loss
    except Exception:
        return 3 * loss


def moves_first(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    schedule.step()
    optimizer.step()
    return loss.detach()


def keeps_it(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
    loss = usual(model, optimizer, schedule, x)
    model.seen = schedule.get_last_lr()
    return loss


def keeps_it_in_a_list(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
    loss = usual(model, optimizer, schedule, x)
    model.all_seen = [*getattr(model, "all_seen", []), optimizer.param_groups[0]["lr"]]
    return loss


def saves_it(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
    return usual(model, optimizer, schedule, x), schedule.state_dict()["last_epoch"]


LOOK = (
    *(returns_it, returns_of_group, computes_with_it, counts_by_it, moves_first, keeps_it),
    *(keeps_it_in_a_list, saves_it),
)


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("train", LOOK)
def test_a_step_that_looks_at_what_is_set_is_captured_at_every_call(train: Train) -> None:
    assert_as_eager(train, MADE["steps"], n_variants=3, n_calls=3)


def test_a_step_may_look_before() -> None:
    def train(model: Any, optimizer: Any, schedule: Any, x: torch.Tensor) -> Any:
        lr = optimizer.param_groups[0]["lr"]
        return usual(model, optimizer, schedule, x), lr

    assert_as_eager(train, MADE["steps"], 1)
