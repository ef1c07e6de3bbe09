"""What cannot be captured is refused with the line of the user's code, and a way out."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from frontends.errors import UnsupportedStepError
from frontends.torch.capture.capture import training_step
from frontends.torch.trace.trace import Capture
from torch import nn


def capture(loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    Capture(training_step(loss), model, optimizer, torch.randn(4, 4))


def chosen(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    return y[y > 0].mean()


def counted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).mean() * torch.unique(model(x)).numel()


def looped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(model(x).max())):
        x = model(x)
    return x.mean()


def routed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    expert_hit = model(x).argmax(-1).bincount(minlength=4).nonzero()
    return model(x).mean() * len(expert_hit)


@pytest.mark.parametrize(
    ("loss", "line", "way_out"),
    [
        (chosen, "return y[y > 0].mean()", "mask the elements to ignore"),
        (
            counted,
            "return model(x).mean() * torch.unique(model(x)).numel()",
            "do not depend on values",
        ),
        (looped, "for _ in range(int(model(x).max())):", "as torch.where does"),
        (routed, "expert_hit = model(x)", 'set_experts_implementation("grouped_mm")'),
    ],
)
def test_what_depends_on_numbers_is_refused_with_its_line(
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor], line: str, way_out: str
) -> None:
    with pytest.raises(UnsupportedStepError) as refused:
        capture(loss)
    message = str(refused.value)
    assert f"{__file__}:" in message
    assert line in message
    assert way_out in message


class OfSome(torch.autograd.Function):
    """Whose gradient is of those that are large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * len(x[x > 0])


def test_what_depends_on_numbers_in_a_gradient_is_refused_with_its_line() -> None:
    with pytest.raises(UnsupportedStepError, match=r"test_torch_refusals.py:\d+: `return gradient"):
        capture(lambda model, x: OfSome.apply(model(x)).mean())


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda: random.random(), "Python's random"),
        (lambda: np.random.rand(), "numpy.random"),
    ],
)
def test_random_numbers_that_a_capture_does_not_see_are_refused(
    draw: Callable[[], float], name: str
) -> None:
    line = r"test_torch_refusals.py:\d+: `\(lambda: (np\.)?random"
    with pytest.raises(UnsupportedStepError, match=f"draws by {name}.*{line}.*take torch.rand"):
        capture(lambda model, x: model(x).mean() * draw())


def returns_nothing(model: nn.Module, x: torch.Tensor) -> None:
    model(x)


def returns_many(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def returns_what_has_no_gradient(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).mean().detach()


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (returns_nothing, "NoneType"),
        (returns_many, r"a tensor of shape \[4, 4\]"),
        (returns_what_has_no_gradient, r"a tensor of shape \[\] that follows from no parameter"),
    ],
)
def test_what_is_no_loss_is_refused_with_the_function(
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor], what: str
) -> None:
    line = loss.__code__.co_firstlineno
    where = rf"{loss.__name__}, at \S*test_torch_refusals.py:{line}: `def .*`, returns {what}$"
    with pytest.raises(UnsupportedStepError, match=where):
        capture(loss)


def draws_late(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.poisson(model(x).exp()).mean()


def computes_late(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).mean() * (model(x).sum().item() // 3)


@pytest.mark.parametrize("loss", [draws_late, computes_late])
def test_what_is_refused_after_the_step_ran_names_the_line(
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> None:
    line = loss.__code__.co_firstlineno + 1
    with pytest.raises(
        UnsupportedStepError, match=rf"at \S*test_torch_refusals.py:{line}: `return"
    ):
        capture(loss)
