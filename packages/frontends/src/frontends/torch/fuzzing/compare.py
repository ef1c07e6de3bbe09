"""Copies of whatever a program shows, and the differences between two copies."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

Tensor = torch.Tensor
ATOL = 1e-6


def copied(value: Any) -> Any:
    """Return a copy of a value for `differences`; later changes of the value do not affect it."""
    if isinstance(value, Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        return dense if dense.is_meta else dense.clone(memory_format=torch.contiguous_format)
    if isinstance(value, np.ndarray):
        return value.copy()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return value
    if isinstance(value, Mapping):
        return _Seen(_kind(value), {key: copied(item) for key, item in value.items()})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return _Seen(_kind(value), {key: copied(item) for key, item in fields.items()})
    if isinstance(value, list | tuple | deque):
        return _Seen(_kind(value), dict(enumerate(map(copied, value))))
    if isinstance(value, set | frozenset):
        return _Seen(_kind(value), dict(enumerate(sorted(map(repr, value)))))
    return _Seen(_kind(value), {})


@dataclasses.dataclass(frozen=True)
class _Seen:
    """A container, or an object of which only the type is compared."""

    kind: str
    items: dict[Any, Any]


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def differences(expected: Any, found: Any, rtol: float, path: str = "") -> Iterator[str]:
    """Yield where two copies differ by more than rounding, each with both values."""
    if type(expected) is not type(found):
        if _are_numbers(expected, found) and float(expected) == float(found):
            yield f"{path}: is a {type(expected).__name__} eagerly, a {type(found).__name__} here"
            return
        yield f"{path}: {_short(expected)} eagerly, {_short(found)} here"
    elif isinstance(expected, _Seen):
        if expected.kind != found.kind or expected.items.keys() != found.items.keys():
            yield f"{path}: {_short(expected)} eagerly, {_short(found)} here"
            return
        for key, item in expected.items.items():
            yield from differences(item, found.items[key], rtol, f"{path}[{key!r}]")
    elif isinstance(expected, Tensor):
        yield from _of_tensors(expected, found, rtol, path)
    elif isinstance(expected, np.ndarray):
        if expected.dtype != found.dtype or expected.shape != found.shape:
            yield f"{path}: {expected.dtype}{expected.shape}, {found.dtype}{found.shape} here"
        elif not np.allclose(expected, found, rtol, ATOL, equal_nan=True):
            yield f"{path}: {expected!r:.60} eagerly, {found!r:.60} here"
    elif isinstance(expected, float):
        same = math.isclose(expected, found, rel_tol=rtol, abs_tol=ATOL)
        if not same and not (math.isnan(expected) and math.isnan(found)):
            yield f"{path}: {expected:.6g} eagerly, {found:.6g} here"
    elif expected != found:
        yield f"{path}: {_short(expected)} eagerly, {_short(found)} here"


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(v, bool | int | float) for v in values)


def _of_tensors(expected: Tensor, found: Tensor, rtol: float, path: str) -> Iterator[str]:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        yield f"{path}: {_short(expected)} eagerly, {_short(found)} here"
        return
    if expected.is_meta or found.is_meta:
        if expected.is_meta != found.is_meta:
            yield f"{path}: on {expected.device} eagerly, on {found.device} here"
        return
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = expected.to(wide), found.to(wide)
    if not torch.equal(a.isfinite(), b.isfinite()):
        yield f"{path}: not finite at other places"
        return
    a, b = a[a.isfinite()], b[b.isfinite()]
    off, whole = float((a - b).abs().square().sum().sqrt()), float(a.abs().square().sum().sqrt())
    if off > rtol * whole + ATOL * math.sqrt(max(a.numel(), 1)) * 0.5:
        shown = f"{a.item():.6g} eagerly, {b.item():.6g} here, " if a.numel() == 1 else ""
        yield f"{path}: {shown}off by {off / (whole or 1.0):.1e}"


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{type(value).__name__} {value.dtype}{list(value.shape)}".replace("torch.", "")
    if isinstance(value, _Seen):
        keys = ", ".join(map(repr, list(value.items)[:6]))
        return f"{value.kind.rpartition('.')[2]} of {len(value.items)} ({keys})"
    return f"{value!r:.60}"
