"""Whether operators return views, and settings that decide which operators a function runs as.

Private interfaces of torch 2.13 in use: schemas of operators and their dispatch keys, the switch of
oneDNN (`_C._set_mkldnn_enabled`), and the settings of `_dynamo`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from unittest import mock

import torch

from frontends.errors import UnsupportedStepError
from frontends.torch.base.origins import calling_line


def makes_new(target: torch._ops.OpOverload) -> bool:
    """Return whether an operator's results are never its operands or views of these.

    The schema tells, with two exceptions: composite operators, and two operators whose schema does
    not declare that they return a view.
    """
    is_written_in_others = target.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )
    says_view = any(declared.alias_info is not None for declared in target._schema.returns)
    unsaid = (torch.ops.aten._unsafe_view.default, torch.ops.aten.lift.default)
    return not (is_written_in_others or says_view or target in unsaid)


def is_view(target: torch._ops.OpOverload) -> bool:
    """Return whether an operator's results are views of its operands, and nothing is computed."""
    if target is torch.ops.aten._unsafe_view.default:
        return True
    is_written_in_others = target.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )
    returned = [declared.alias_info for declared in target._schema.returns]
    return not is_written_in_others and all(i is not None and not i.is_write for i in returned)


def writes_to(target: torch._ops.OpOverload) -> bool:
    """Return whether an operator writes to an operand."""
    return bool(target._schema.is_mutable)


@contextlib.contextmanager
def in_plain_operators() -> Iterator[None]:
    """Run recurrent layers as matrix products and sums, without oneDNN's operators for them.

    Those operators have no sharding rules.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    shown = property(lambda _: before, lambda _, value: _refuse_setting("torch.backends.mkldnn"))
    try:
        with mock.patch.object(type(torch.backends.mkldnn), "enabled", shown):
            yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _refuse_setting(name: str) -> None:
    raise UnsupportedStepError(
        f"settings of torch stay what they are while a step runs; this one sets {name}, at "
        f"{calling_line()}: set it before the step is called"
    )


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Let functions that `torch.compile` returned, or returns meanwhile, run uncompiled."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "compile", _compiled_later(torch.compile)))
        token = _IS_UNCOMPILED.set(True)
        stack.callback(_IS_UNCOMPILED.reset, token)
        if "torch._dynamo" in sys.modules:  # something was compiled
            config = sys.modules["torch._dynamo"].config
            stack.enter_context(config.patch(error_on_nested_fx_trace=False))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


_IS_UNCOMPILED: ContextVar[bool] = ContextVar("_IS_UNCOMPILED", default=False)
"""Whether functions run uncompiled here."""


def _compiled_later(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.compile` whose functions are compiled when they are called outside."""

    def compile(model: Any = None, **named: Any) -> Any:
        if model is None:
            return functools.partial(compile, **named)
        if isinstance(model, torch.nn.Module) or not callable(model):
            return original(model, **named)
        made: list[Any] = []

        @functools.wraps(model)
        def call(*args: Any, **keywords: Any) -> Any:
            if _IS_UNCOMPILED.get():
                return model(*args, **keywords)
            if not made:
                made.append(original(model, **named))
            return made[0](*args, **keywords)

        return call

    return compile
