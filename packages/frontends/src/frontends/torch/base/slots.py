"""Attributes that a class keeps in `__slots__`, beside or instead of a `__dict__`."""

from __future__ import annotations

from collections.abc import Iterator
from types import MemberDescriptorType
from typing import Any


def has_slot(kind: type, name: str) -> bool:
    """Return whether objects of a class keep an attribute in a slot."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), object)
    return isinstance(vars(owner).get(name), MemberDescriptorType)


def slots(obj: Any) -> Iterator[tuple[MemberDescriptorType, Any]]:
    """Yield the slots of an object that are set, with their values."""
    for kind in type(obj).__mro__:
        for slot in vars(kind).values():
            if isinstance(slot, MemberDescriptorType):
                try:
                    value = slot.__get__(obj)
                except AttributeError:
                    continue
                yield slot, value
