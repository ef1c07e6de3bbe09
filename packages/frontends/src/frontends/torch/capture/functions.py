"""Functions that run in a step: the globals, variables of closures and defaults that they take.

A trace function sees which functions of the user begin, and their code says what they name.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from frontends.torch.base.frozen import Frozen, freeze
from frontends.torch.capture.attributes import Attributes
from frontends.torch.capture.met import Met, Overwritten
from frontends.torch.capture.named import Named, attributes_of, sets_attributes
from frontends.torch.capture.outside_calls import OutsideCalls
from frontends.torch.capture.place import MISSING, Place
from frontends.torch.capture.users_code import (
    imports_of,
    is_of_layers,
    is_users,
    is_users_module,
    is_watched,
    names_of,
)

_COPIES = (copy.copy.__code__, copy.deepcopy.__code__)


@dataclass
class Functions:
    """Those that run.

    Args:
        met: Gets the defaults that they may have taken.
        attributes: Gets what else they read.
        named: Gets what they name of libraries.
        outside: Checks the globals that they name.
    """

    met: Met
    attributes: Attributes
    named: Named
    outside: OutsideCalls
    _codes: set[tuple[CodeType, int]] = field(default_factory=set)
    _there: dict[CodeType, list[FunctionType]] = field(default_factory=dict)
    """Of the user, with closures or defaults, that were there before."""

    _alike: dict[CodeType, dict[tuple[int, ...], list[FunctionType]]] = field(default_factory=dict)
    """The same of code that ran, by `id` of what their variables were then."""

    _closures: set[tuple[CodeType, tuple[int, ...]]] = field(default_factory=set)
    """Whose variables are known, by `id` of their values."""

    _arguments: dict[int, Frozen] = field(default_factory=dict)
    """By `id`, containers that functions were called with, as they were."""

    def look_around(self, objects: Mapping[type, Sequence[Any]]) -> None:
        """Find those that there are, before a recording.

        Args:
            objects: All of the process, by type.
        """
        self._there.clear()
        for each in objects.get(FunctionType, ()):
            is_known = each.__closure__ or each.__defaults__ or each.__kwdefaults__
            if is_known and is_users(each.__code__.co_filename):
                self._there.setdefault(each.__code__, []).append(each)

    def given(self, function: Any) -> None:
        """Watch what the user's function holds, which others of ours have in their closures."""
        self.attributes.watch_inside(function)
        if isinstance(function, FunctionType) and not is_users(function.__code__.co_filename):
            for cell in function.__closure__ or ():
                self.given(cell.cell_contents)

    def called(self, frame: FrameType, event: str, arg: Any) -> None:
        """A function begins; only the user's are looked at, and none line by line."""
        code = frame.f_code
        if not self.met.is_on():
            return
        if not is_users(code.co_filename):
            if is_of_layers(code.co_filename):
                self._called_in_layer(frame)
            elif code in _COPIES:
                copied = frame.f_locals["x"]
                kind: type = type(copied)
                if is_watched(kind):
                    self.attributes.look_at_all(copied)
            return
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if first is not None:
            self.attributes.watch(type(first))
        if code.co_freevars:
            self._closure(frame)
        at = code, id(frame.f_globals)
        if at in self._codes:
            return
        self._codes.add(at)
        for value in list(frame.f_locals.values()):
            self.attributes.watch_inside(value)
            if isinstance(value, list | dict | set):
                with self.met.paused():
                    self._arguments.setdefault(id(value), freeze(value))
        for kind in (first if isinstance(first, type) else type(first)).__mro__[:-1]:
            self._members(kind, code)
        self._globals(frame)

    def _called_in_layer(self, frame: FrameType) -> None:
        """A function of torch's layers, which calls others that people replace."""
        code, own = frame.f_code, frame.f_globals
        at = code, id(own)
        if at in self._codes:
            return
        self._codes.add(at)
        for name in names_of(code):
            if name in own:
                self.named.note(own, own["__name__"], name)
                if isinstance(own[name], ModuleType):
                    self.named.module(own[name], code)

    def _globals(self, frame: FrameType) -> None:
        """What a function names of its module, and what it imports."""
        code = frame.f_code
        names, imported = names_of(code), imports_of(code)
        for name in imported:
            self._members(sys.modules.get(name), code)
        if "globals" in names:
            names = attributes_of(code)
        for name in names:
            value = frame.f_globals.get(name, MISSING)
            if value is MISSING:
                continue
            self.outside.look_at(value, name)
            if not isinstance(value, ModuleType):
                self.attributes.read(frame.f_globals, name, value, name)
                for kind in type(value).__mro__[:-1]:
                    self._members(kind, code)
            self._members(value, code)

    def _members(self, owner: Any, code: CodeType) -> None:
        """What code names of a module or class, by which people also hand settings around."""
        is_module = isinstance(owner, ModuleType)
        if isinstance(owner, FunctionType) and is_users(owner.__code__.co_filename):
            own = vars(owner)
            if own or sets_attributes(code):
                self.attributes.read(owner, "__dict__", own, f"attributes of {owner.__name__}")
            return
        if not is_module and not isinstance(owner, type):
            return
        if not is_users_module(owner if is_module else sys.modules.get(owner.__module__)):
            if is_module:
                self.named.module(owner, code)
            return
        members = vars(owner)
        for name in attributes_of(code):
            value = members.get(name, MISSING)
            if value is MISSING or name[:2] == "__":
                continue
            if isinstance(value, ModuleType):
                if is_module and value is not owner:
                    self._members(value, code)
            elif is_module or not (callable(value) or hasattr(value, "__get__")):
                container = members if is_module else owner
                self.attributes.read(container, name, value, f"{owner.__name__}.{name}")
            else:  # as it may be a method of another object
                self.attributes.watch_inside(getattr(value, "__func__", value))

    def _closure(self, frame: FrameType) -> None:
        """What a function takes of the one around it."""
        code = frame.f_code
        found = {n: frame.f_locals[n] for n in code.co_freevars if n in frame.f_locals}
        for name, value in found.items():
            self.attributes.streams.check(value, name)
            self._members(value, code)
        ids = tuple(map(id, found.values()))
        if (code, ids) not in self._closures:
            self._closures.add((code, ids))
            self._variables(code, found)

    def _variables(self, code: CodeType, found: Mapping[str, Any]) -> None:
        """The cells of a closure that runs, which only its function knows.

        Args:
            code: Of the function; others that were made in the same place have it, too.
            found: Its variables, by which it is told from those.
        """
        if code not in self._alike:
            alike = self._alike[code] = {}
            for function in self._there.get(code, ()):
                alike.setdefault(_ids(_cells(function)), []).append(function)
        ids, alike = tuple(map(id, found.values())), self._alike[code]
        for function in alike.get(ids) or self._there.get(code, []):
            cells = _cells(function)
            if _ids(cells) == ids:
                for name, value in found.items():
                    self.attributes.read(cells[name], None, value, name)

    def find_replaced(self) -> None:
        """Functions of libraries that the step has replaced."""
        for owner, of, name, before in self.named.written():
            place = Place(owner, name, f"{of}.{name}")
            self.met.written.setdefault((id(owner), name), Overwritten(place, before))

    def find_defaults(self) -> None:
        """Values that functions which ran take where they are given none."""
        ran = {code for code, _ in self._codes}
        for each in [one for code in ran for one in self._there.get(code, [])]:
            for key in ("__defaults__", "__kwdefaults__"):
                if value := getattr(each, key):
                    place = Place(each, key, f"defaults of {each.__name__}")
                    self.met.read.setdefault((id(each), key), (place, Frozen(value)))
                    items = value.items() if isinstance(value, dict) else enumerate(value)
                    for index, item in items:
                        was = self._arguments.get(id(item)) or freeze(item)
                        place = Place(value, index, f"a default of {each.__name__}")
                        self.met.read.setdefault((id(value), index), (place, was))
        self._there.clear()
        self._closures.clear()
        self._alike.clear()
        self._arguments.clear()


def _cells(function: FunctionType) -> dict[str, CellType]:
    """Of a closure, by name, but for those that hold nothing yet."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell for name, cell in cells if Place(cell, None, name).get() is not MISSING}


def _ids(cells: Mapping[str, CellType]) -> tuple[int, ...]:
    return tuple(id(cell.cell_contents) for cell in cells.values())
