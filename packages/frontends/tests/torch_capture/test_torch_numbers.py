"""Python's arithmetic on numbers of a step is done by calls on tensors of shape ()."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontends.errors import UnsupportedStepError
from frontends.torch.base.numbers import calls_on_numbers

OPERATIONS = (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow)


@pytest.mark.parametrize("is_read", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("function", OPERATIONS)
def test_calls_compute_what_python_does(
    function: Callable[..., Any], is_read: tuple[bool, bool]
) -> None:
    given = (0.9, 3.0)
    read = [torch.tensor(n, dtype=torch.float64) for n, r in zip(given, is_read, strict=True) if r]
    for call in calls_on_numbers(function, given, is_read):
        read = call(read)
    assert read[0].item() == pytest.approx(function(*given), rel=1e-15)


def test_refuses_what_no_operator_does() -> None:
    with pytest.raises(UnsupportedStepError, match="the step also computes lt of one"):
        calls_on_numbers(operator.lt, (1.0, 2.0), (True, False))
