"""What code names of libraries: `F.gelu`, `math.sqrt`, `nn.GELU.forward`, which people may replace.

There are many such names, and they nearly never change. So they are not copied as what a step reads
of the user's modules is (`reads`), but looked at together: each has to be the very object that it
was. They are looked up when the capture is over, which replaces some of them itself.
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
"""Functions to which code gives a name as a string."""


@functools.cache
def attributes_of(code: CodeType) -> tuple[str, ...]:
    """Names by which code may look at anything, also by `getattr(module, "name")`."""
    names = dict.fromkeys(code.co_names)
    if not _BY_NAME.isdisjoint(names):
        names |= {c: None for c in code.co_consts if isinstance(c, str) and c.isidentifier()}
    return tuple(names)


@functools.cache
def sets_attributes(code: CodeType) -> bool:
    """Whether code sets attributes of anything."""
    return "setattr" in code.co_names or any(
        instruction.opname == "STORE_ATTR" for instruction in dis.get_instructions(code)
    )


@dataclass(frozen=True, slots=True)
class Members:
    """Some of what a module or class of a library had."""

    owner: Mapping[str, Any]
    name: str
    """Of the owner."""

    keys: tuple[str, ...]
    values: tuple[Any, ...]

    def difference(self) -> str | None:
        """Which is another one now; None if none is."""
        if all(map(operator.is_, map(self.owner.get, self.keys), self.values)):
            return None
        pairs = zip(self.keys, self.values, strict=True)
        changed = next((key for key, value in pairs if self.owner.get(key) is not value), "")
        return f"{self.name}.{changed}, which is another object"


@dataclass
class Named:
    """The names that code has met."""

    _owners: dict[int, tuple[Mapping[str, Any], str, dict[str, Any]]] = field(default_factory=dict)
    _seen: set[tuple[int, CodeType]] = field(default_factory=set)

    def note(self, owner: Mapping[str, Any], of: str, name: str) -> None:
        """Something that was looked at.

        Args:
            owner: The module's or class's.
            of: Its name.
            name: In there.
        """
        _, _, found = self._owners.setdefault(id(owner), (owner, of, {}))
        found.setdefault(name, owner.get(name))

    def module(self, module: ModuleType, code: CodeType) -> None:
        """What code names of a module, and of modules in there."""
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
        """What is another object than when it was met: where, the owner's name, and what it was."""
        return [
            (owner, of, name, before)
            for owner, of, found in self._owners.values()
            if isinstance(owner, dict)
            for name, before in found.items()
            if owner.get(name) is not before
        ]

    def members(self) -> tuple[Members, ...]:
        """All that has to stay, and the methods of tensors."""
        owners = [(owner, of, tuple(found)) for owner, of, found in self._owners.values()]
        own = vars(torch.Tensor)
        owners.append((own, "torch.Tensor", tuple(own)))
        return tuple(
            Members(owner, of, keys, tuple(map(owner.get, keys))) for owner, of, keys in owners
        )
