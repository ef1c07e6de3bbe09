"""Functions of the user that keep what they have returned, as `functools.lru_cache` lets them.

While a step is captured they would keep tensors without values, and give back tensors from before
whose place nobody knows. So they forget tensors before a capture and after it: what a function
returns for equal arguments is the same, and is computed again.
"""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from frontends.torch.capture.users_code import is_users

_DEEPEST = 3
_LOOKED_INTO: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()
"""What those without tensors kept when they were looked into: objects that are there still, so
that a cache which was cleared since holds others, however often it has been called again."""


@contextmanager
def forgotten(objects: Mapping[type, Sequence[Any]]) -> Iterator[None]:
    """Capture inside.

    Args:
        objects: All that Python's collector knows, by type.
    """
    memos = [memo for memo in objects.get(functools._lru_cache_wrapper, ()) if _is_users(memo)]
    _forget(memos)
    try:
        yield
    finally:
        _forget(memos)


def _forget(memos: Sequence[Any]) -> None:
    for memo in memos:
        known, kept = _LOOKED_INTO.get(memo, ()), tuple(_entries(memo))
        if len(known) == len(kept) and all(map(operator.is_, known, kept)):
            continue
        if _holds_tensors(memo, _DEEPEST):
            memo.cache_clear()
        else:
            _LOOKED_INTO[memo] = kept


def _entries(memo: Any) -> Iterator[Any]:
    """What a function has returned, or what is around that."""
    for held in gc.get_referents(memo):
        if type(held) is dict and held is not memo.__dict__:
            yield from held.values()


def _is_users(memo: Any) -> bool:
    code = getattr(memo.__wrapped__, "__code__", None)
    return code is not None and is_users(code.co_filename)


def _holds_tensors(node: Any, depth: int) -> bool:
    """Whether a tensor is among what something refers to; functions and classes are not entered."""
    for item in gc.get_referents(node):
        if issubclass(type(item), torch.Tensor):
            return True
        is_kept = type(item) in (dict, list, tuple) or type(item).__name__ == "_lru_list_elem"
        if depth and is_kept and _holds_tensors(item, depth - 1):
            return True
    return False
