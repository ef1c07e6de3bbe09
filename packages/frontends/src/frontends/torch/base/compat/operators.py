"""Whether operators return views, and settings that decide which operators a function runs as.

Private interfaces of torch 2.13 in use: schemas of operators and their dispatch keys, the switch of
oneDNN (`_C._set_mkldnn_enabled`), and the settings of `_dynamo`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
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
    """Let functions that `torch.compile` returned run uncompiled."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled
        yield
        return
    allowed = sys.modules["torch._dynamo"].config.patch(error_on_nested_fx_trace=False)
    with allowed, torch.compiler.set_stance("force_eager"):
        yield
