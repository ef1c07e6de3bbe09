"""Compiles functions of tensors by Inductor, the compiler behind `torch.compile`.

Private interfaces of torch 2.13 in use: `_inductor.standalone_compile`, which compiles a traced
graph without Dynamo and its guards, and two of its settings: random numbers are drawn as eager code
draws them, and what eager code rounds to half precision between two operators is rounded here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

Tensor = torch.Tensor

Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]
"""Shape, strides, type and device of a tensor."""


def compiled(
    function: Callable[[Sequence[Tensor]], list[Tensor]], forms: Sequence[Form]
) -> Callable[..., Sequence[Tensor]]:
    """Return a compiled function of tensors, one argument for each form.

    Each of its results is in memory of its own, so that it may be overwritten later.

    Args:
        function: Calls of operators, on a list of tensors; it may write to them.
        forms: The form of each tensor.

    Raises:
        Exception: Inductor refuses it, with an error of any type.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch about itself
        import torch._inductor
        from torch._inductor import config

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(tensors))

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    with (
        warnings.catch_warnings(),
        torch.no_grad(),
        config.patch(fallback_random=True, emulate_precision_casts=True),
        torch._C._DisableAutocast(),  # what it changes is in the calls already
    ):
        warnings.simplefilter("ignore")  # those of torch about itself
        with mode:
            examples: list[Any] = [
                torch.empty_strided(shape, strides, dtype=dtype, device=device)
                for shape, strides, dtype, device in forms
            ]
        graph = make_fx(flat, tracing_mode="fake")(*examples)
        found = torch._inductor.standalone_compile(
            graph, examples, dynamic_shapes="from_graph", donate_graph_module=True
        )
    return _Apart(found)


class _Apart:
    """Calls a compiled function, and copies results that share memory.

    Inductor may return one tensor for two equal results, or an operand for a result that is equal
    to it. Which ones does not change from call to call.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        self._function = function
        self._shared: list[int] | None = None

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        results = self._function(*tensors)
        if self._shared is None:
            self._shared = _sharing(results, tensors)
        if self._shared:
            results = [r.clone() if i in self._shared else r for i, r in enumerate(results)]
        return results


def _sharing(results: Sequence[Tensor], operands: Sequence[Tensor]) -> list[int]:
    """Return the indices of results in the memory of an operand or of an earlier result."""
    known = {operand.untyped_storage().data_ptr() for operand in operands if operand.numel()}
    shared = []
    for index, result in enumerate(results):
        where = result.untyped_storage().data_ptr()
        if where in known and result.numel():
            shared.append(index)
        known.add(where)
    return shared
