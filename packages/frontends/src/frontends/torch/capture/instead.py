"""Replacements for some functions of torch and Python while a step is captured.

The originals leave torch, where a capture cannot follow (a tensor as an array or a text), seed
generators, or change a tensor without an operator (`.data = ...`, `.grad = None`). Numbers that are
known before the step runs (`known`) may leave torch: they become guards.
"""

from __future__ import annotations

import builtins
import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FunctionType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn import functional

from frontends.errors import UnsupportedStepError
from frontends.torch.base import origins
from frontends.torch.base.compat.stand_ins import current_stand_ins
from frontends.torch.base.compat.values import SYMBOLS, answer, is_value, known_number
from frontends.torch.base.supposed import IsFinite, IsInfinite, IsNan
from frontends.torch.capture.bags import bags_of_equal_length
from frontends.torch.capture.flex import flex_attention_as_operators
from frontends.torch.capture.refusals import refusal_at

Tensor = torch.Tensor
_BASE: Any = torch._C.TensorBase

_LONGEST = 1024
"""The largest number of elements of a tensor that Python gets one by one [chosen]."""

_OUT_OF_TORCH = ("tolist", "numpy", "__array__", "__dlpack__", "__reduce_ex__")
_TEXT = ("__repr__", "__format__", "__str__")
_SEEDS = ((torch, "manual_seed"), (torch, "seed"), (torch.random, "manual_seed"))
_ASKED_OF_FLOATS = {"isfinite": IsFinite, "isnan": IsNan, "isinf": IsInfinite}


@contextmanager
def followed(
    is_known: Callable[[Tensor], bool],
    on_grad: Callable[[Tensor], None],
    are_alike: Callable[[], bool],
) -> Iterator[None]:
    """Inside, refuse what the capture cannot follow, with the line that does it.

    Args:
        is_known: Whether a tensor is a value of the program: its values differ at each call, or it
            has none.
        on_grad: Called with each tensor whose gradient the step sets to None.
        are_alike: Whether the optimizer makes the same update from sparse and dense gradients.
    """
    with ExitStack() as stack:
        for name, place in (("embedding", 4), ("embedding_bag", 5)):
            dense = _dense(getattr(torch, name), place, are_alike)
            stack.enter_context(mock.patch.object(torch, name, dense))
        of_rows = bags_of_equal_length(functional.embedding_bag)
        stack.enter_context(mock.patch.object(functional, "embedding_bag", of_rows))
        stack.enter_context(flex_attention_as_operators())
        stack.enter_context(masks_of_transformers())
        for name in ("as_tensor", "tensor"):
            stack.enter_context(mock.patch.object(torch, name, _tensor(getattr(torch, name))))
        for name, among in (("max", torch.sym_max), ("min", torch.sym_min)):
            chosen = _chosen(getattr(builtins, name), among)
            stack.enter_context(mock.patch.object(builtins, name, chosen))
        for name in (*_OUT_OF_TORCH, *_TEXT):
            stack.enter_context(_replaced(Tensor, name, _leaving(name, is_known)))
        for kind in SYMBOLS:
            for name in ("__format__", "__str__", "__repr__"):
                stack.enter_context(_replaced(kind, name, _as_text))
        for name, condition in _ASKED_OF_FLOATS.items():
            asked = _asked(getattr(math, name), condition)
            stack.enter_context(mock.patch.object(math, name, asked))
        for kind in (torch.SymInt, torch.SymFloat):
            stack.enter_context(_replaced(kind, "__hash__", _hash(kind.__hash__)))
            stack.enter_context(_replaced(kind, "__bool__", lambda self: bool(self != 0)))
        for name, is_equal in (("__eq__", True), ("__ne__", False)):
            instead = _compared(getattr(torch.SymFloat, name), is_equal)
            stack.enter_context(_replaced(torch.SymFloat, name, instead))
        stack.enter_context(_replaced(torch.SymFloat, "__pow__", _power))
        stack.enter_context(mock.patch.object(torch, "_assert_async", _assert))
        for owner, name in _SEEDS:
            stack.enter_context(mock.patch.object(owner, name, _seeding))
        stack.enter_context(_replaced(Tensor, "data", _data()))
        stack.enter_context(_replaced(Tensor, "grad", _grad(on_grad)))
        yield


@contextmanager
def masks_of_transformers() -> Iterator[None]:
    """Let models of Hugging Face look at what they make masks of, as they do without a trace.

    Otherwise they make masks also where nothing but causality, or nothing, is to be masked. The
    function stays the same object, so that guards hold that have seen it.
    """
    masks = sys.modules.get("transformers.masking_utils")
    asked = getattr(masks, "is_tracing", None)
    if not isinstance(asked, FunctionType):
        yield
        return
    before = asked.__code__
    asked.__code__ = _is_no_trace.__code__
    try:
        yield
    finally:
        asked.__code__ = before


def _is_no_trace(tensor: Any = None) -> bool:
    return False


def _power(base: torch.SymFloat, exponent: Any) -> Any:
    """Compute a power without torch's check by sympy that the base is not negative.

    Adam takes a root for each parameter; the proofs took a tenth of the time to plan GPT-2.
    """
    if isinstance(exponent, int | float | torch.SymInt | torch.SymFloat):
        return base.__float_pow__(exponent)
    return NotImplemented


@contextmanager
def _replaced(owner: type, name: str, instead: Any) -> Iterator[None]:
    """Replace an attribute like `mock.patch.object`, which cannot replace inherited descriptors."""
    original = vars(owner).get(name)
    setattr(owner, name, instead)
    try:
        yield
    finally:
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def _leaving(name: str, is_known: Callable[[Tensor], bool]) -> Any:
    original = getattr(Tensor, name)

    def leave(self: Tensor, *args: Any, **named: Any) -> Any:
        is_message = name in _TEXT and origins.is_inside_torch()
        if not is_known(self) or is_message:
            return original(self, *args, **named)
        if name in _BY_NUMBERS and self.numel() <= _LONGEST:
            with suppress(GuardOnDataDependentSymNode):
                return _BY_NUMBERS[name](self, *args, **named)
        what = "as text" if name in _TEXT else f"by {name}()"
        raise refusal_at(
            "a step is captured on tensors without values, and runs without its Python code; this "
            f"one asks for the numbers of a tensor {what}",
            origins.calling_line(),
            "return the tensor from the step, and look at it there",
        )

    return leave


def _listed(tensor: Tensor) -> Any:
    """Return the numbers of a tensor in nested lists, like `tolist()`."""
    if not tensor.dim():
        return tensor.item()
    return [_listed(part) for part in tensor.detach().unbind(0)]


def _known(numbers: Any) -> Any:
    """Return numbers in nested lists as Python numbers, if they are known before the step runs."""
    if isinstance(numbers, list):
        return [_known(number) for number in numbers]
    return known_number(numbers)


def _array(tensor: Tensor, dtype: Any = None, *, force: bool = False) -> Any:
    """Return the tensor as a read-only array; eagerly, writing to it would change the tensor."""
    if tensor.requires_grad and not force:
        raise GuardOnDataDependentSymNode(None, "as an array of what gets a gradient")
    kind = np.dtype(str(tensor.dtype).removeprefix("torch."))
    array = np.array(_known(_listed(tensor)), kind).reshape(tensor.shape)
    array.flags.writeable = False
    return array if dtype is None else array.astype(dtype, copy=False)


def _formatted(tensor: Tensor, spec: str) -> str:
    if tensor.dim():
        raise GuardOnDataDependentSymNode(None, "as a text of many numbers")
    return format(_known(tensor.item()), spec)


_BY_NUMBERS: dict[str, Callable[..., Any]] = {
    "tolist": _listed,
    "numpy": _array,
    "__array__": _array,
    "__format__": _formatted,
}
"""Methods that are possible for tensors of few numbers, if these are known."""


def _as_text(self: Any, *args: Any) -> str:
    if origins.is_inside_torch():
        return str(self.node)
    with suppress(GuardOnDataDependentSymNode):
        return format(_known(self), *args)
    raise UnsupportedStepError(
        "a step is captured on tensors without values, and runs without its Python code; this one "
        f"makes a text of a number, at {origins.calling_line()}: return the number from the step, "
        "and print it there"
    )


def _hash(original: Any) -> Any:
    """Return `__hash__` of symbolic numbers; a dict's key has to be known, and becomes a guard."""

    def hashed(self: Any) -> int:
        is_of_torch = origins.is_inside_torch(or_here=False)
        return original(self) if is_of_torch else hash(known_number(self))

    return hashed


def _dense(original: Any, place: int, are_alike: Callable[[], bool]) -> Any:
    """Return an embedding lookup whose gradient is dense."""

    def look_up(weight: Tensor, *args: Any, **named: Any) -> Any:
        positional = [weight, *args]
        is_sparse = positional[place] if place < len(positional) else named.get("sparse", False)
        if not is_sparse:
            return original(weight, *args, **named)
        if weight.requires_grad and torch.is_grad_enabled() and not are_alike():
            raise UnsupportedStepError(
                "gradients of a step are dense; this one makes sparse ones, at "
                f"{origins.calling_line()}, and its optimizer makes another update from these: set "
                "sparse=False, and take another optimizer than SparseAdam"
            )
        if place < len(positional):
            positional[place] = False
        else:
            named["sparse"] = False
        return original(*positional, **named)

    return look_up


def _tensor(original: Any) -> Any:
    """Return a `torch.tensor` that accepts numbers without values, too."""

    def make(data: Any, *args: Any, **named: Any) -> Tensor:
        if args or isinstance(data, Tensor) or not _has_values_later(data):
            return original(data, *args, **named)  # type: ignore[no-any-return]
        requires = named.pop("requires_grad", False)
        dtype = named.pop("dtype", None) or functools.reduce(torch.promote_types, _dtypes(data))
        return _stacked(data, dtype, named).requires_grad_(requires)

    return make


def _has_values_later(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(map(_has_values_later, data))
    return is_value(data)


def _dtypes(data: Any) -> Iterator[torch.dtype]:
    """Yield the type that `torch.tensor` would give to each number."""
    if isinstance(data, list | tuple):
        for item in data:
            yield from _dtypes(item)
    elif isinstance(data, Tensor):
        yield data.dtype
    elif isinstance(data, bool | torch.SymBool):
        yield torch.bool
    else:
        yield torch.int64 if isinstance(data, int | torch.SymInt) else torch.get_default_dtype()


def _stacked(data: Any, dtype: torch.dtype, named: dict[str, Any]) -> Tensor:
    if isinstance(data, list | tuple):
        return torch.stack([_stacked(item, dtype, named) for item in data])
    if isinstance(data, Tensor):
        return data.detach().to(dtype)
    return torch.scalar_tensor(data, dtype=dtype, **named)


def _chosen(original: Any, among: Callable[[Any, Any], Any]) -> Any:
    """Return a `max` or `min` that accepts numbers without values, too."""

    def choose(*args: Any, **named: Any) -> Any:
        if len(args) < 2 or named or not any(isinstance(a, SYMBOLS) for a in args):
            return original(*args, **named)
        chosen = args[0]
        for each in args[1:]:
            chosen = among(chosen, each)
        return chosen

    return choose


def _asked(original: Any, condition: Any) -> Any:
    """Return a predicate of `math` that accepts numbers without values, too."""

    def ask(number: Any) -> bool:
        return answer(number, condition) if _is_float(number) else original(number)

    return ask


def _compared(original: Any, is_equal: bool) -> Any:
    """Return a comparison in which `x == x` asks whether `x` is nan, as users write it."""

    def compare(self: Any, other: Any) -> Any:
        if _is_float(other) and other.node.expr == self.node.expr:
            return answer(self, IsNan) is not is_equal
        return original(self, other)

    return compare


def _is_float(value: Any) -> bool:
    """Return whether it is a float without a value, and not one of torch's nested integers."""
    return isinstance(value, torch.SymFloat) and hasattr(value.node, "shape_env")


def _assert(value: Tensor, message: str = "Expected Tensor with single nonzero value") -> None:
    """Check at once what torch checks asynchronously: before the step changes anything."""
    if not value:
        raise RuntimeError(message)


def _seeding(*args: Any, **named: Any) -> Any:
    raise UnsupportedStepError(
        "random numbers of a step go on from those of the step before; this one seeds the "
        f"generator, at {origins.calling_line()}: seed it before the step is called"
    )


def _data() -> property:
    get = _BASE.data.__get__

    def data(self: Tensor) -> Any:
        now = current_stand_ins().rebound(self)
        return get(self) if now is None else now.detach()

    def assign(self: Tensor, value: Tensor) -> None:
        """Let the tensor have other values in other memory."""
        if value.shape != self.shape or value.dtype != self.dtype:
            raise UnsupportedStepError(
                "a step keeps shape and type of what it updates; this one sets the data of a "
                f"tensor of {self.dtype}{list(self.shape)} to one of {value.dtype}"
                f"{list(value.shape)}, at {origins.calling_line()}"
            )
        current_stand_ins().rebind(self, value)

    return property(data, assign)


def _grad(on_grad: Callable[[Tensor], None]) -> property:
    get, put = _BASE.grad.__get__, _BASE.grad.__set__
    remove = _BASE.grad.__delete__

    def assign(self: Tensor, value: Tensor | None) -> None:
        if value is None:
            on_grad(self)
        put(self, value)

    return property(lambda self: get(self), assign, lambda self: remove(self))
