"""Members of libraries that code names and users may replace: `F.gelu`, `nn.GELU.forward`.

There are many such names, and they hardly ever change. So their values are not copied as those of
the user's modules are (`reads`), but compared by identity, all together. They are looked up after
the capture, because the capture itself replaces some of them.
"""

from __future__ import annotations

import dis
import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

import torch

_BY_NAME = frozenset(("getattr", "hasattr", "setattr", "delattr", "globals", "attrgetter"))
"""Functions that take the name of an attribute or global as a string."""


@functools.cache
def attributes_of(code: CodeType) -> tuple[str, ...]:
    """Return the names that code may read of anything, also by `getattr(module, "name")`."""
    names = dict.fromkeys(code.co_names)
    if not _BY_NAME.isdisjoint(names):
        names |= {c: None for c in code.co_consts if isinstance(c, str) and c.isidentifier()}
    return tuple(names)


@functools.cache
def sets_attributes(code: CodeType) -> bool:
    """Return whether code sets attributes of anything."""
    return "setattr" in code.co_names or any(
        instruction.opname == "STORE_ATTR" for instruction in dis.get_instructions(code)
    )


@dataclass(frozen=True, slots=True)
class Members:
    """Some members of a module or class of a library, at the capture."""

    owner: Mapping[str, Any]
    """The `__dict__` of the module or class."""

    name: str
    """The name of the module or class."""

    keys: tuple[str, ...]
    values: tuple[Any, ...]

    def difference(self) -> str | None:
        """Return a message if one is another object now, else None."""
        if all(map(operator.is_, map(self.owner.get, self.keys), self.values)):
            return None
        pairs = zip(self.keys, self.values, strict=True)
        changed = next((key for key, value in pairs if self.owner.get(key) is not value), "")
        return f"{self.name}.{changed}, which is another object"


@dataclass
class NamedMembers:
    """The members of libraries that code names."""

    _owners: dict[int, tuple[Mapping[str, Any], str, dict[str, Any]]] = field(default_factory=dict)
    _seen: set[tuple[int, CodeType]] = field(default_factory=set)

    def note(self, owner: Mapping[str, Any], of: str, name: str) -> None:
        """Record a member that code reads.

        Args:
            owner: The `__dict__` of the module or class.
            of: The name of the module or class.
            name: The name of the member.
        """
        _, _, members = self._owners.setdefault(id(owner), (owner, of, {}))
        members.setdefault(name, owner.get(name))

    def module(self, module: ModuleType, code: CodeType) -> None:
        """Record what code names of a module and, recursively, of modules in it."""
        if (id(module), code) in self._seen:
            return
        self._seen.add((id(module), code))
        members = vars(module)
        for name in attributes_of(code):
            if name in members and name[:2] != "__":
                self.note(members, module.__name__, name)
                if isinstance(members[name], ModuleType):
                    self.module(members[name], code)

    def written(self) -> list[tuple[dict[str, Any], str, str, Any]]:
        """Return members that were replaced: `__dict__`, owner's name, member's name, old value."""
        return [
            (owner, of, name, before)
            for owner, of, members in self._owners.values()
            if isinstance(owner, dict)
            for name, before in members.items()
            if owner.get(name) is not before
        ]

    def members(self) -> tuple[Members, ...]:
        """Return all recorded members with their current values, and the methods of tensors."""
        owners = [(owner, of, tuple(members)) for owner, of, members in self._owners.values()]
        methods = vars(torch.Tensor)
        owners.append((methods, "torch.Tensor", tuple(methods)))
        return tuple(
            Members(owner, of, keys, tuple(map(owner.get, keys))) for owner, of, keys in owners
        )
