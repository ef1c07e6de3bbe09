"""Caches of the user's functions, as `functools.lru_cache` makes them.

During a capture, a cache would keep tensors without values, and return tensors from before whose
place is not known. So caches that hold tensors are cleared before a capture and after it: the
functions compute their results again, which are the same for equal arguments.

Other cached results are used by the captured program. As long as they are in the cache, Python
would get them again, whatever the function reads; once the user clears it, the program is invalid.
"""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import compress, filterfalse, repeat
from typing import Any

import torch

from frontends.torch.capture.users_code import is_users

_DEEPEST = 3
_WITHOUT: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()
"""By function, the arguments and cached results that were found to hold no tensors, by `id`. They
are kept alive here, so that a cache which was cleared since holds other objects."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Cached results of a function that the step called."""

    function: Any
    returned: Mapping[Any, Any]
    """The results, by arguments."""

    def difference(self) -> str | None:
        """Return a message if a result is no longer in the cache, else None."""
        now = _returned(self.function)
        if all(now.get(key) is value for key, value in self.returned.items()):
            return None
        return f"what {self.function.__qualname__}() had kept, which it has forgotten"


class Memos:
    """The user's functions that have a cache.

    Args:
        objects: The user's caches (`users_memos`), among others, by type.
    """

    def __init__(self, objects: Mapping[type, Sequence[Any]]) -> None:
        self._functions = objects.get(functools._lru_cache_wrapper, ())
        self.kept: tuple[Kept, ...] = ()
        """Cached results of functions that were called inside `forgotten`."""

    @contextmanager
    def forgotten(self) -> Iterator[None]:
        """Inside, a step is captured; caches with tensors are cleared before and after it."""
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


def users_memos(memos: Iterable[Any]) -> Iterable[Any]:
    """Select the caches of functions whose code is the user's."""
    return filter(_is_users, memos)


def _forget(memos: Sequence[Any]) -> None:
    for memo in memos:
        if _cache_holds_tensors(memo):
            memo.cache_clear()


def _cache_holds_tensors(memo: Any) -> bool:
    """Return whether a cache refers to a tensor; no result is looked into twice."""
    if not memo.cache_info().currsize:
        return False
    returned = _returned(memo)
    # Where the dict holds links, which hide what they refer to, the function refers to it, too.
    direct = filterfalse(partial(operator.is_, returned), gc.get_referents(memo))
    held = [*direct, *returned.keys(), *returned.values()]
    without = _WITHOUT.get(memo, {})
    if all(map(without.__contains__, map(id, held))):
        return False
    now = dict(zip(map(id, held), held, strict=True))
    if _holds_tensors([now[key] for key in now.keys() - without.keys()], _DEEPEST):
        return True
    _WITHOUT[memo] = now
    return False


def _returned(memo: Any) -> dict[Any, Any]:
    """Return the cached results by arguments; `lru_cache` may wrap each in a link of a list."""
    attributes = getattr(memo, "__dict__", None)
    referents = gc.get_referents(memo)  # results may come first, among them dicts
    referents.reverse()
    dicts = compress(referents, map(operator.is_, map(type, referents), repeat(dict)))
    return next((one for one in dicts if one is not attributes), {})


def _is_users(memo: Any) -> bool:
    code = getattr(memo.__wrapped__, "__code__", None)
    return code is not None and is_users(code.co_filename)


def _holds_tensors(node: Any, depth: int) -> bool:
    """Return whether an object refers to a tensor; references of functions are not followed."""
    for item in gc.get_referents(node):
        if issubclass(type(item), torch.Tensor):
            return True
        is_kept = type(item) in (dict, list, tuple) or type(item).__name__ == "_lru_list_elem"
        if depth and is_kept and _holds_tensors(item, depth - 1):
            return True
    return False
