"""Records what functions that run in a step read: globals, variables of closures and defaults.

A trace function (`sys.settrace`) is notified when a function of the user begins; the names that it
uses are in its code object.
"""

from __future__ import annotations

import copy
import functools
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from frontends.torch.base.frozen import Frozen, freeze
from frontends.torch.capture.attributes import Attributes
from frontends.torch.capture.location import MISSING, Location
from frontends.torch.capture.met import Met, Overwritten
from frontends.torch.capture.named import NamedMembers, attributes_of, sets_attributes
from frontends.torch.capture.outside_calls import OutsideCalls
from frontends.torch.capture.users_code import (
    imports_of,
    is_of_layers,
    is_users,
    is_users_module,
    is_watched,
    names_of,
)

_COPIES = (copy.copy.__code__, copy.deepcopy.__code__)
_COPYING = copy.copy.__code__.co_filename
_file_of = operator.attrgetter("__code__.co_filename")


@dataclass
class Functions:
    """Watches functions that run, and reports what they read.

    Args:
        met: Receives the default values that they may have used.
        attributes: Receives all else that they read.
        named: Receives the names of libraries that they use.
        outside: Checks the globals that they name.
    """

    met: Met
    attributes: Attributes
    named: NamedMembers
    outside: OutsideCalls
    _codes: set[tuple[CodeType, int]] = field(default_factory=set)
    _there: dict[CodeType, list[FunctionType]] = field(default_factory=dict)
    """By code, the user's functions with closures or defaults that existed before the step."""

    _alike: dict[CodeType, dict[tuple[int, ...], list[FunctionType]]] = field(default_factory=dict)
    """By code that ran, those of its functions grouped by the `id`s of their closures' values."""

    _closures: set[tuple[CodeType, tuple[int, ...]]] = field(default_factory=set)
    """Closures whose variables are recorded: code, and `id`s of the values."""

    _arguments: dict[int, Frozen] = field(default_factory=dict)
    """By `id`, copies of containers that functions got as arguments."""

    def look_around(self, objects: Mapping[type, Sequence[Any]]) -> None:
        """Find the functions that exist before a recording.

        Args:
            objects: The user's functions (`users_functions`), among others, by type.
        """
        self._there.clear()
        for each in objects.get(FunctionType, ()):
            if each.__closure__ or each.__defaults__ or each.__kwdefaults__:
                self._there.setdefault(each.__code__, []).append(each)

    def given(self, function: Any) -> None:
        """Watch what the user's function holds; functions of this package have it in a closure."""
        self.attributes.watch_inside(function)
        if isinstance(function, FunctionType) and not is_users(function.__code__.co_filename):
            for cell in function.__closure__ or ():
                self.given(cell.cell_contents)

    def called(self, frame: FrameType, event: str, arg: Any) -> None:
        """Handle the begin of a function, as a trace function; lines are not traced."""
        code = frame.f_code
        if _is_passed_over(code.co_filename) or not self.met.is_on():
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
        """Record the globals of a function in torch's layers; users replace some of these."""
        code, members = frame.f_code, frame.f_globals
        at = code, id(members)
        if at in self._codes:
            return
        self._codes.add(at)
        for name in names_of(code):
            if name in members:
                self.named.note(members, members["__name__"], name)
                if isinstance(members[name], ModuleType):
                    self.named.module(members[name], code)

    def _globals(self, frame: FrameType) -> None:
        """Record what a function names of its module, and of modules that it imports."""
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

    def _members(self, owner: Any, code: CodeType, seen: set[int] | None = None) -> None:
        """Record what code names of a module or class; users keep settings there, too.

        Args:
            owner: The module or class.
            code: Names attributes.
            seen: The modules that were met on the way to this one; modules may have each other.
        """
        seen = set() if seen is None else seen
        is_module = isinstance(owner, ModuleType)
        if isinstance(owner, FunctionType) and is_users(owner.__code__.co_filename):
            held = vars(owner)
            if held or sets_attributes(code):
                self.attributes.read(owner, "__dict__", held, f"attributes of {owner.__name__}")
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
                if is_module and id(value) not in seen | {id(owner)}:
                    seen.add(id(owner))
                    self._members(value, code, seen)
            elif is_module or not (callable(value) or hasattr(value, "__get__")):
                container = members if is_module else owner
                self.attributes.read(container, name, value, f"{owner.__name__}.{name}")
            else:  # it may be a method of another object
                self.attributes.watch_inside(getattr(value, "__func__", value))

    def _closure(self, frame: FrameType) -> None:
        """Record the variables that a function uses of the function around it."""
        code = frame.f_code
        variables = {n: frame.f_locals[n] for n in code.co_freevars if n in frame.f_locals}
        for name, value in variables.items():
            self.attributes.streams.check(value, name)
            self._members(value, code)
        ids = tuple(map(id, variables.values()))
        if (code, ids) not in self._closures:
            self._closures.add((code, ids))
            self._variables(code, variables)

    def _variables(self, code: CodeType, variables: Mapping[str, Any]) -> None:
        """Record the variables of a running closure at their cells.

        Only the function object has the cells, and a frame does not tell its function object.

        Args:
            code: The function's code; all functions from the same definition have it.
            variables: The closure's variables, which distinguish it from these others.
        """
        if code not in self._alike:
            alike = self._alike[code] = {}
            for function in self._there.get(code, ()):
                alike.setdefault(_ids(_cells(function)), []).append(function)
        ids, alike = tuple(map(id, variables.values())), self._alike[code]
        for function in alike.get(ids) or self._there.get(code, []):
            cells = _cells(function)
            if _ids(cells) == ids:
                for name, value in variables.items():
                    self.attributes.read(cells[name], None, value, name)

    def find_replaced(self) -> None:
        """Record the functions of libraries that the step has replaced as writes."""
        for owner, of, name, before in self.named.written():
            place = Location(owner, name, f"{of}.{name}")
            self.met.written.setdefault((id(owner), name), Overwritten(place, before))

    def find_defaults(self) -> None:
        """Record the default values of functions that ran as reads."""
        ran = {code for code, _ in self._codes}
        for each in [one for code in ran for one in self._there.get(code, [])]:
            for key in ("__defaults__", "__kwdefaults__"):
                if value := getattr(each, key):
                    place = Location(each, key, f"defaults of {each.__name__}")
                    self.met.read.setdefault((id(each), key), (place, Frozen(value)))
                    items = value.items() if isinstance(value, dict) else enumerate(value)
                    for index, item in items:
                        was = self._arguments.get(id(item)) or freeze(item)
                        place = Location(value, index, f"a default of {each.__name__}")
                        self.met.read.setdefault((id(value), index), (place, was))
        self._there.clear()
        self._closures.clear()
        self._alike.clear()
        self._arguments.clear()


def users_functions(functions: Iterable[FunctionType]) -> Iterable[FunctionType]:
    """Select the functions whose code is the user's."""
    functions = list(functions)
    files = list(map(_file_of, functions))
    users = set(filter(is_users, set(files)))
    return compress(functions, map(users.__contains__, files))


@functools.cache
def _is_passed_over(file: str) -> bool:
    """Return whether nothing is recorded of a file's functions, which most calls are of."""
    return not (is_users(file) or is_of_layers(file) or file == _COPYING)


def _cells(function: FunctionType) -> dict[str, CellType]:
    """Return the cells of a closure by name, without empty ones."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell for name, cell in cells if Location(cell, None, name).get() is not MISSING}


def _ids(cells: Mapping[str, CellType]) -> tuple[int, ...]:
    return tuple(id(cell.cell_contents) for cell in cells.values())
