"""What runs in place of some functions of torch while a step is captured.

These leave torch where a capture cannot follow (a tensor as a list, an array or a text), seed
generators, or change a tensor in ways that no operator says (`.data = ...`, `.grad = None`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from frontends.errors import UnsupportedStepError
from frontends.torch import _compat, origins

Tensor = torch.Tensor
_BASE: Any = torch._C.TensorBase

_OUT_OF_TORCH = ("tolist", "numpy", "__array__", "__dlpack__", "__reduce_ex__")
_TEXT = ("__repr__", "__format__", "__str__")
_SEEDS = ((torch, "manual_seed"), (torch, "seed"), (torch.random, "manual_seed"))
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@contextmanager
def followed(
    is_known: Callable[[Tensor], bool], on_grad: Callable[[Tensor], None]
) -> Iterator[None]:
    """Let what cannot be followed be refused, at the line that does it.

    Args:
        is_known: Whether a tensor has other values, or none, at each call.
        on_grad: Told of tensors whose gradient the step sets to None.
    """
    with ExitStack() as stack:
        for name in (*_OUT_OF_TORCH, *_TEXT):
            stack.enter_context(_replaced(Tensor, name, _leaving(name, is_known)))
        for kind in _SYMBOLS:
            for name in ("__format__", "__str__", "__repr__"):
                stack.enter_context(_replaced(kind, name, _as_text))
        for owner, name in _SEEDS:
            stack.enter_context(mock.patch.object(owner, name, _seeding))
        stack.enter_context(_replaced(Tensor, "data", _data()))
        stack.enter_context(_replaced(Tensor, "grad", _grad(on_grad)))
        yield


@contextmanager
def _replaced(owner: type, name: str, instead: Any) -> Iterator[None]:
    """Like `mock.patch.object`, which does not take descriptors of base classes."""
    own = vars(owner).get(name)
    setattr(owner, name, instead)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _leaving(name: str, is_known: Callable[[Tensor], bool]) -> Any:
    original = getattr(Tensor, name)

    def leave(self: Tensor, *args: Any, **named: Any) -> Any:
        is_message = name in _TEXT and _compat.is_inside_torch()
        if not is_known(self) or is_message:
            return original(self, *args, **named)
        what = "as text" if name in _TEXT else f"by {name}()"
        raise UnsupportedStepError(
            "a step is captured on tensors without values, and runs without its Python code; this "
            f"one asks for the numbers of a tensor {what}, at {origins.calling_line()}: return "
            "the tensor from the step, and look at it there"
        )

    return leave


def _as_text(self: Any, *args: Any) -> str:
    if _compat.is_inside_torch():
        return str(self.node)
    raise UnsupportedStepError(
        "a step is captured on tensors without values, and runs without its Python code; this one "
        f"makes a text of a number, at {origins.calling_line()}: return the number from the step, "
        "and print it there"
    )


def _seeding(*args: Any, **named: Any) -> Any:
    raise UnsupportedStepError(
        "random numbers of a step go on from those of the step before; this one seeds the "
        f"generator, at {origins.calling_line()}: seed it before the step is called"
    )


def _data() -> property:
    get, put = _BASE.data.__get__, _BASE.data.__set__

    def assign(self: Tensor, value: Tensor) -> None:
        """The same tensor with other values; a capture has them written in place."""
        if _compat.is_stand_in(self):
            put(self, value)
            return
        if value.shape != self.shape or value.dtype != self.dtype:
            raise UnsupportedStepError(
                "a step keeps shape and type of what it updates; this one sets the data of a "
                f"tensor of {self.dtype}{list(self.shape)} to one of {value.dtype}"
                f"{list(value.shape)}, at {origins.calling_line()}"
            )
        with torch.no_grad():
            self.detach().copy_(value)

    return property(lambda self: get(self), assign)


def _grad(on_grad: Callable[[Tensor], None]) -> property:
    get, put = _BASE.grad.__get__, _BASE.grad.__set__
    remove = _BASE.grad.__delete__

    def assign(self: Tensor, value: Tensor | None) -> None:
        if value is None:
            on_grad(self)
        put(self, value)

    return property(lambda self: get(self), assign, lambda self: remove(self))
