"""Functions of the user that keep what they have returned, as `functools.lru_cache` lets them.

While a step is captured they would keep tensors without values, and give back tensors from before
whose place nobody knows. So they forget tensors before a capture and after it: what a function
returns for equal arguments is the same, and is computed again.

What else they have kept, the captured program was made with. As long as it is kept, Python gives it
again, whatever the function reads; once the user has it cleared, the program is another one.
"""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from frontends.torch.capture.users_code import is_users

_DEEPEST = 3
_LOOKED_INTO: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()
"""What those without tensors kept when they were looked into: objects that are there still, so
that a cache which was cleared since holds others, however often it has been called again."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a function that the step called has returned before, or then."""

    function: Any
    returned: Mapping[Any, Any]
    """By arguments."""

    def difference(self) -> str | None:
        """What is no longer kept; None if all is."""
        now = _returned(self.function)
        if all(now.get(key) is value for key, value in self.returned.items()):
            return None
        return f"what {self.function.__qualname__}() had kept, which it has forgotten"


class Memos:
    """Those of the user's functions that keep what they return.

    Args:
        objects: All that Python's collector knows, by type.
    """

    def __init__(self, objects: Mapping[type, Sequence[Any]]) -> None:
        known = objects.get(functools._lru_cache_wrapper, ())
        self._functions = [function for function in known if _is_users(function)]
        self.kept: tuple[Kept, ...] = ()
        """What the step called inside of `forgotten`."""

    @contextmanager
    def forgotten(self) -> Iterator[None]:
        """Capture inside."""
        _forget(self._functions)
        before = [function.cache_info() for function in self._functions]
        try:
            yield
        finally:
            _forget(self._functions)
            called = [
                function
                for function, info in zip(self._functions, before, strict=True)
                if function.cache_info() != info
            ]
            self.kept = tuple(Kept(function, dict(_returned(function))) for function in called)


def _forget(memos: Sequence[Any]) -> None:
    for memo in memos:
        known, kept = _LOOKED_INTO.get(memo, ()), tuple(_returned(memo).values())
        if len(known) == len(kept) and all(map(operator.is_, known, kept)):
            continue
        if _holds_tensors(memo, _DEEPEST):
            memo.cache_clear()
        else:
            _LOOKED_INTO[memo] = kept


def _returned(memo: Any) -> dict[Any, Any]:
    """What a function has returned, or what is around that, by its arguments."""
    own = getattr(memo, "__dict__", None)
    found = (held for held in gc.get_referents(memo) if type(held) is dict and held is not own)
    return next(found, {})


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
