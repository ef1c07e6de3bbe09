"""What a step reads of Python while it is captured, and what it does there.

A captured step runs without its Python code, so whatever that code looked at has to be the same
when the program runs again: attributes of modules, of optimizers and of the user's objects,
globals, and variables of closures. `Reads` watches them while a step runs: the classes of the
objects that it meets get a `__getattribute__` and a `__setattr__` that take notes, and a trace
function sees which functions of the user run, and so which globals and closures they name. Code of
torch and of Python's library is not looked at; the objects that it is given are.

What comes from outside of the program (the time, the next item of an iterator) is another thing at
each call: such a step has `effects`, and is captured again at every call.
"""

from __future__ import annotations

import _io
import builtins
import copy
import dis
import functools
import io
import logging
import os
import pickle
import random
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any
from unittest import mock

import numpy as np
import torch

from frontends.base.sources import OURS
from frontends.errors import UnsupportedStepError
from frontends.torch.base import _compat, origins
from frontends.torch.base.frozen import Frozen, freeze, inside
from frontends.torch.base.trees import leaves_of
from frontends.torch.capture.named import Named, attributes_of, sets_attributes
from frontends.torch.capture.refusals import note_draw

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()
WHOLE: Any = type("Whole", (), {"__repr__": lambda self: "all attributes"})()
"""The key of a dict itself, where code looks at all that is in it."""

IS_ALIVE: Any = type("IsAlive", (), {"__repr__": lambda self: "is alive"})()
"""The key of a weak reference, by which it is known whether its object is there."""

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code made, and may change
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_LIBRARY = str(Path(sysconfig.get_paths()["stdlib"]))
_SITE = str(Path(torch.__file__).parent.parent)
_NOT_THE_USERS = (
    *(str(Path(_SITE, name)) for name in ("torch", "numpy", "sympy", "mpmath", "networkx")),
    *(str(Path(_SITE, name)) for name in ("typing_extensions", "functorch", "torchgen")),
    *(str(Path(_SITE, name)) for name in ("_pytest", "pluggy")),  # which hook into imports
    OURS,
    "<frozen",
)
_WATCHED_OF_TORCH = ("torch.nn", "torch.optim", "torch.amp", "torch.utils.data", "torch.cuda.amp")
_WATCHED_OF_LIBRARY = ("argparse", "collections", "csv", "queue", "threading", "types", "weakref")
_LAYERS = str(Path(torch.nn.__file__).parent)
_CLOCKS = (time.time, time.perf_counter, time.monotonic, time.time_ns, time.process_time)
_FILES = ((os, "stat"), (os, "listdir"), (os, "scandir"), (io, "open"))
_COPIES = (copy.copy.__code__, copy.deepcopy.__code__)
_STATES = ((torch, "initial_seed"), (torch, "get_rng_state"), (random, "getstate"))
"""Functions that say where generators of random numbers are."""

_DRAWS = tuple(
    (owner, name)
    for owner, generator in ((random, random._inst), (np.random, np.random.mtrand._rand))
    for name, each in vars(owner).items()
    if getattr(each, "__self__", None) is generator
    and name not in ("seed", "getstate", "setstate", "get_state", "set_state")
)
"""Functions that draw by the generators that Python and NumPy have one of."""

_PATCHED = ("__getattribute__", "__setattr__")
_NOT_READ = frozenset(
    (
        "_opt_called",
        "_step_count",
        "_zero_grad_profile_name",
        "_warned_capturable_if_run_uncaptured",
    )
)
"""Attributes by which torch warns of calls in a wrong order, and names what it profiles."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where Python keeps a value: a key of a dict, an attribute, or a variable of a closure."""

    container: Any
    """Of a value inside of another one, the `Place` of that, where another may be by now."""

    key: Any
    name: str
    """As the user would write it."""

    def inside(self, keys: Sequence[Any], path: str = "") -> Place:
        """Where a value is that lies inside of the one that is here."""
        place = self
        for key in keys:
            place = Place(place, key, self.name + path)
        return place

    def get(self) -> Any:
        """What is there now; `MISSING` if nothing is."""
        container = self.container
        if isinstance(container, Place):
            container = container.get()
        if self.key is WHOLE:
            return container
        if self.key is IS_ALIVE:
            return container() is not None
        if isinstance(container, dict):
            return dict.get(container, self.key, MISSING)
        if isinstance(container, ContextVar):
            return container.get(MISSING)
        if isinstance(container, MappingProxyType):
            return container.get(self.key, MISSING)
        if isinstance(container, CellType):
            try:
                return container.cell_contents
            except ValueError:  # it is empty
                return MISSING
        if isinstance(container, type):
            return vars(container).get(self.key, MISSING)
        if isinstance(self.key, int):
            with suppress(TypeError, IndexError):  # it is something else by now
                return container[self.key]
            return MISSING
        return getattr(container, self.key, MISSING)

    def set(self, value: Any) -> None:
        """Put a value there."""
        container = self.container
        if isinstance(container, CellType):
            container.cell_contents = value
        elif isinstance(container, ContextVar):
            container.set(value)
        elif isinstance(container, dict) or isinstance(self.key, int):
            container[self.key] = value
        else:
            setattr(container, self.key, value)

    def delete(self) -> None:
        """Let nothing be there."""
        if isinstance(self.container, dict):
            self.container.pop(self.key, None)
        elif not isinstance(self.container, CellType | ContextVar):
            delattr(self.container, self.key)


@dataclass(frozen=True, slots=True)
class Told:
    """What a step prints or logs."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    """Texts, and tensors and numbers without values."""

    named: Mapping[str, Any]


@dataclass(slots=True)
class Written:
    """A place that a step wrote."""

    place: Place
    before: Any


@dataclass
class Reads:
    """What was read and written.

    Args:
        skipped: Attributes that are no guards, as (id of the object, name): the step knows them.
    """

    skipped: frozenset[tuple[int, str]] = frozenset()
    read: dict[tuple[int, Any], tuple[Place, Frozen]] = field(default_factory=dict)
    """By container and key, what was there when it was read first."""

    written: dict[tuple[int, Any], Written] = field(default_factory=dict)
    tracers: Any = None
    """The module in which a tracer keeps constants."""

    effects: dict[str, None] = field(default_factory=dict)
    """What cannot be done again but by running the code."""

    generators: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Generators of random numbers that are not torch's, and their states when they were met."""

    named: Named = field(default_factory=Named)
    """What it names of libraries."""

    told: list[Told] = field(default_factory=list)
    """What the step prints and logs, to be done when it has run."""

    _patched: dict[type, tuple[Any, Any]] = field(default_factory=dict)
    _codes: set[tuple[CodeType, int]] = field(default_factory=set)
    _functions: dict[CodeType, list[FunctionType]] = field(default_factory=dict)
    """Of the user, with closures or defaults, that were there before."""

    _alike: dict[CodeType, dict[tuple[int, ...], list[FunctionType]]] = field(default_factory=dict)
    """The same of code that ran, by `id` of what their variables were then."""

    _closures: set[tuple[CodeType, tuple[int, ...]]] = field(default_factory=set)
    """Whose variables are known, by `id` of their values."""

    _arguments: dict[int, Frozen] = field(default_factory=dict)
    """By `id`, containers that functions were called with, as they were."""

    _containers: dict[int, Frozen] = field(default_factory=dict)
    """By `id`, containers as they were when they were met first."""

    _owners: dict[int, tuple[Any, weakref.ref[Any], dict[Any, Any]]] = field(default_factory=dict)
    """By `id`, attributes that were looked at, kept so that the number stays theirs; whose; and
    what they were."""

    made: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By `id`, attributes of objects that the step makes."""

    _streams: frozenset[int] = frozenset()
    """By `id`, files, generators and other iterators that there were before."""

    _written_to: list[Any] = field(default_factory=list)
    """Files that the step may write to."""

    _stack: ExitStack = field(default_factory=ExitStack)
    """Of what is undone when the step has run."""

    _armed: bool = False
    _thread: int = 0

    @contextmanager
    def recording(self, function: Callable[..., Any]) -> Iterator[None]:
        """Watch what a function reads, which is called inside."""
        self._thread = threading.get_ident()
        self._note_given(function)
        for kind in (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler):
            self._watch(kind)
        before = sys.gettrace()
        try:
            with ExitStack() as stack:
                for owner, name in (
                    *((builtins, name) for name in ("next", "input", "open")),
                    *((time, clock.__name__) for clock in _CLOCKS),
                    *(*_STATES, (np.random, "get_state")),
                ):
                    stack.enter_context(self._seen(owner, name))
                for owner, name in _FILES:
                    stack.enter_context(self._seen(owner, name, through_library=True))
                for owner, name in _DRAWS:
                    stack.enter_context(self._draws(owner, name))
                environment = self._environment()
                stack.enter_context(mock.patch.object(type(os.environ), "__getitem__", environment))
                stack.enter_context(self._put_off(builtins, "print"))
                stack.enter_context(self._put_off(logging.Logger, "handle"))
                self._stack = stack
                for stream in (sys.stdout, sys.stderr):
                    with suppress(AttributeError):  # it is none, or has no attributes of its own
                        self._writes_later(stream, of_users=True)
                sys.settrace(self._called)
                self._armed = True
                yield
                self._find_replaced()
        finally:
            self._armed = False
            sys.settrace(before)
            for patched, own in self._patched.items():
                for name, before_it in zip(_PATCHED, own, strict=True):
                    if before_it is None:
                        delattr(patched, name)
                    else:
                        setattr(patched, name, before_it)
            self._patched.clear()
            self._find_defaults()
            self._find_written()
            self._forget_dead()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is read meanwhile is not the step's to read."""
        armed, self._armed = self._armed, False
        try:
            yield
        finally:
            self._armed = armed

    def put_generators_back(self) -> list[str]:
        """Let nothing have been drawn; the types of generators from which something was."""
        drawn = [(one, state) for one, state in self.generators.values() if _state(one) != state]
        for one, state in drawn:
            if isinstance(one, random.Random):
                one.setstate(state)
            elif isinstance(one, np.random.Generator):
                one.bit_generator.state = pickle.loads(state)
            else:
                one.set_state(pickle.loads(state))
        return [type(one).__name__ for one, _ in drawn]

    def look_around(self, objects: Mapping[type, Sequence[Any]]) -> None:
        """Find what only a walk over all objects of the process can find, before a recording.

        Args:
            objects: By type.
        """
        streams = [ones for kind, ones in objects.items() if _is_iterator(kind) or _is_file(kind)]
        self._streams = frozenset(id(one) for ones in streams for one in ones)
        self._functions.clear()
        for each in objects.get(FunctionType, ()):
            is_known = each.__closure__ or each.__defaults__ or each.__kwdefaults__
            if is_known and is_users(each.__code__.co_filename):
                self._functions.setdefault(each.__code__, []).append(each)

    # -- what is met ---------------------------------------------------------------------------

    def _record(self, container: Any, key: Any, value: Any, name: str) -> None:
        self._check_stream(value, name)
        at = id(container), key
        if at not in self.read and at not in self.written:
            with self.paused():
                if (frozen := self._was(container, key, value)) is not None:
                    self.read[at] = Place(container, key, name), frozen
                    for each in frozen.containers():
                        self._containers.setdefault(id(each.value), each)
            self._note(value)

    def _was(self, container: Any, key: Any, value: Any) -> Frozen | None:
        """What a value is compared with: what it was when it, or where it is, was met first.

        `functional_call` puts other tensors among a module's parameters for a while, and a list
        has grown before another attribute is looked at that is it, too. None if there was nothing.
        """
        known = self._containers.get(id(container)) if isinstance(container, dict) else None
        if known is not None and isinstance(known.contents, dict):
            return known.contents.get(key)
        return freeze(value, known=self._containers)

    def _check_stream(self, value: Any, name: str) -> None:
        """What the user's code names it goes on with, be it by a loop, `send()` or `write()`."""
        if id(value) not in self._streams:
            return
        if hasattr(value, "writerow"):
            raise UnsupportedStepError(
                "what a step writes to a file is written when it has run, but for what goes by a "
                f"csv.writer as {name} here: write the row after the step"
            )
        if _is_file(type(value)) and (value.closed or value.writable()):
            if value not in self._written_to:
                self._written_to.append(value)
                self._writes_later(value)
        else:
            raise UnsupportedStepError(
                "a step gets what changes by its arguments, so that it can be captured without "
                f"using it up; this one goes on with {name}, a {type(value).__name__} that was "
                "begun before: take what comes of it before the step, and give it to the step"
            )

    def _find_written(self) -> None:
        """Attributes that changed in another way than by being set, as `cached_property` does."""
        for own, owner, before in self._owners.values():
            for name in [n for n in {**before, **own} if n not in _NOT_READ]:
                was, now = before.get(name, MISSING), own.get(name, MISSING)
                if was is not now and (id(owner()), name) not in self.skipped:
                    label = f"{type(owner()).__name__}.{name}"
                    self.written.setdefault((id(own), name), Written(Place(own, name, label), was))

    def _forget_dead(self) -> None:
        """What the step made for itself, and what is gone with it, it makes again."""
        self._arguments.clear()
        self._containers.clear()
        self._forget(set(self.made))
        # What was noted of an object keeps alive what it holds, which may be the step's, too.
        while dead := {at for at, (_, owner, _) in self._owners.items() if owner() is None}:
            self._forget(dead)
            for own in dead:
                del self._owners[own]
                self.made.pop(own, None)
        self._owners.clear()

    def _forget(self, owners: Set[int]) -> None:
        for places in (self.read, self.written):
            for at in [at for at in places if at[0] in owners]:
                del places[at]

    def _owned(self, own: Any, obj: Any) -> None:
        """The attributes of an object live as long as it does."""
        if own is not None and id(own) not in self._owners:
            with suppress(TypeError):  # it cannot be referred to weakly
                seen = self._containers.get(id(own))
                before = dict(own)
                if seen is not None and isinstance(seen.contents, dict):
                    before = {name: each.value for name, each in seen.contents.items()}
                self._owners[id(own)] = own, weakref.ref(obj), before
                if not own and _is_made_here(obj):
                    self.made[id(own)] = own

    def _note(self, value: Any) -> None:
        """Watch the attributes of whatever a value holds."""
        for item in inside(value):
            if isinstance(item, functools.partial):
                self._note(item.func)
                for part in ("args", "keywords"):
                    label = f"what a partial of {getattr(item.func, '__name__', '')} is given"
                    self._record(item, part, getattr(item, part), label)
            elif isinstance(item, ContextVar):
                self._record(item, None, item.get(MISSING), f"the context variable {item.name}")
            elif isinstance(item, weakref.ref):
                self._record(item, IS_ALIVE, item() is not None, "whether an object is alive")
                self._note(item())
            elif isinstance(item, MethodType):
                self._watch(type(item.__self__))
            elif isinstance(item, BuiltinMethodType) and _is_object(item.__self__):
                self._record(item, "__self__", item.__self__, f"the owner of {item.__name__}")
            elif isinstance(item, random.Random | np.random.Generator | np.random.RandomState):
                self.generators.setdefault(id(item), (item, _state(item)))
            elif isinstance(item, type):
                continue
            else:
                self._watch(type(item))

    def _note_given(self, function: Any) -> None:
        """The same for the user's function, which others of ours have in their closures."""
        self._note(function)
        if isinstance(function, FunctionType) and not is_users(function.__code__.co_filename):
            for cell in function.__closure__ or ():
                self._note_given(cell.cell_contents)

    def _watch(self, kind: type) -> None:
        if kind in self._patched or not _is_watched(kind):
            return
        if getattr(kind.__getattribute__, "is_reads", False):
            return  # it inherits from one that is watched
        getter: Any = kind.__getattribute__
        setter: Any = kind.__setattr__
        own = vars(kind).get(_PATCHED[0]), vars(kind).get(_PATCHED[1])

        def get(obj: Any, name: str) -> Any:
            if self._is_on(name) and obj is not self.tracers:
                self._owned(_attributes(obj), obj)
            elif (
                name == "__dict__"
                and self._is_on("")
                and is_users(sys._getframe(1).f_code.co_filename)
            ):
                self._whole(obj)
            try:
                value = getter(obj, name)
            except AttributeError:
                if self._is_on(name):
                    self._absent(obj, name)
                raise
            if self._is_on(name):
                self._attribute(obj, name, value)
            return value

        def put(obj: Any, name: str, value: Any) -> None:
            if self._is_on(name) and name not in _NOT_READ and obj is not self.tracers:
                with self.paused():
                    self._writes(obj, name)
            setter(obj, name, value)

        get.is_reads = True  # type: ignore[attr-defined]
        kind.__getattribute__ = get  # type: ignore[method-assign, assignment]
        kind.__setattr__ = put  # type: ignore[method-assign, assignment]
        self._patched[kind] = own

    def _whole(self, obj: Any) -> None:
        """All attributes of an object are looked at."""
        own = _attributes(obj)
        if own is not None and obj is not self.tracers:
            self._owned(own, obj)
            if not any(map(_compat.is_value, own.values())):  # the step made the object
                self._record(own, WHOLE, own, f"attributes of a {type(obj).__name__}")

    def _is_on(self, name: str) -> bool:
        return self._armed and name[:2] != "__" and threading.get_ident() == self._thread

    def _attribute(self, obj: Any, name: str, value: Any) -> None:
        if name in _NOT_READ or (id(obj), name) in self.skipped or obj is self.tracers:
            return
        own = _attributes(obj)
        self._owned(own, obj)
        label = f"{type(obj).__name__}.{name}"
        if own is not None and name in own:
            self._record(own, name, own[name], label)
            return
        for kind in type(obj).__mro__:
            found = vars(kind).get(name, MISSING)
            if found is MISSING:
                continue
            if type(found).__name__ == "member_descriptor":  # of __slots__
                self._record(obj, name, value, label)
            elif isinstance(found, FunctionType):
                self._method(obj, own, kind, name, found)
            elif not callable(found) and not hasattr(found, "__get__"):
                if own is not None:  # which would hide that of the class
                    self._record(own, name, MISSING, label)
                self._record(kind, name, found, f"{kind.__name__}.{name}")
            return

    def _method(self, obj: Any, own: Any, kind: type, name: str, found: Any) -> None:
        """Methods may be replaced, of an object or of the user's classes."""
        is_own = is_users(found.__code__.co_filename)
        if own is not None and (is_own or name == "forward"):
            self._record(own, name, MISSING, f"{type(obj).__name__}.{name}")
        if is_own:
            self._record(kind, name, found, f"{kind.__name__}.{name}")
        elif name == "forward":
            self.named.note(vars(kind), kind.__name__, name)

    def _absent(self, obj: Any, name: str) -> None:
        """Modules keep what they are made of in dicts, beside their attributes."""
        own = _attributes(obj)
        if own is None or obj is self.tracers:
            return
        self._owned(own, obj)
        for among in ("_parameters", "_buffers", "_modules"):
            parts = own.get(among)
            if isinstance(parts, dict) and name in parts:
                self._owned(parts, obj)
                self._record(parts, name, parts[name], f"{type(obj).__name__}.{name}")
                return
        self._record(own, name, MISSING, f"{type(obj).__name__}.{name}")

    def _writes(self, obj: Any, name: str) -> None:
        own = _attributes(obj)
        label = f"{type(obj).__name__}.{name}"
        if own is None:
            place = Place(obj, name, label)
        else:
            among = next(
                (
                    own[a]
                    for a in ("_parameters", "_buffers", "_modules")
                    if isinstance(own.get(a), dict) and name in own[a]
                ),
                own,
            )
            self._owned(among, obj)
            place = Place(among, name, label)
        at = id(place.container), name
        if at not in self.written:
            before = self.read[at][1].value if at in self.read else place.get()
            self.written[at] = Written(place, before)

    # -- functions that run ---------------------------------------------------------------------

    def _called(self, frame: FrameType, event: str, arg: Any) -> None:
        """A function begins; only the user's are looked at, and none line by line."""
        code = frame.f_code
        if not self._armed:
            return
        if not is_users(code.co_filename):
            if code.co_filename.startswith(_LAYERS):
                self._called_in_layer(frame)
            elif code in _COPIES:
                copied = frame.f_locals["x"]
                kind: type = type(copied)
                if _is_watched(kind):
                    self._whole(copied)
            return
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if first is not None:
            self._watch(type(first))
        if code.co_freevars:
            found = {n: frame.f_locals[n] for n in code.co_freevars if n in frame.f_locals}
            for name, value in found.items():
                self._check_stream(value, name)
                self._members(value, code)
            ids = tuple(map(id, found.values()))
            if (code, ids) not in self._closures:
                self._closures.add((code, ids))
                self._variables(code, found)
        at = code, id(frame.f_globals)
        if at in self._codes:
            return
        self._codes.add(at)
        for value in list(frame.f_locals.values()):
            self._note(value)
            if isinstance(value, list | dict | set):
                with self.paused():
                    self._arguments.setdefault(id(value), freeze(value))
        for kind in (first if isinstance(first, type) else type(first)).__mro__[:-1]:
            self._members(kind, code)
        names, imported = names_of(code), imports_of(code)
        for name in imported:
            self._members(sys.modules.get(name), code)
        if "globals" in names:
            names = attributes_of(code)
        for name in names:
            value = frame.f_globals.get(name, MISSING)
            if value is MISSING:
                continue
            if any(value is clock for clock in _CLOCKS):
                self.effects.setdefault(f"a call of {name}()")
            if not isinstance(value, ModuleType):
                self._record(frame.f_globals, name, value, name)
                for kind in type(value).__mro__[:-1]:
                    self._members(kind, code)
            self._members(value, code)

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

    def _find_replaced(self) -> None:
        """Functions of libraries that the step has replaced."""
        for owner, of, name, before in self.named.written():
            place = Place(owner, name, f"{of}.{name}")
            self.written.setdefault((id(owner), name), Written(place, before))

    def _members(self, owner: Any, code: CodeType) -> None:
        """What code names of a module or class, by which people also hand settings around."""
        is_module = isinstance(owner, ModuleType)
        if isinstance(owner, FunctionType) and is_users(owner.__code__.co_filename):
            own = vars(owner)
            if own or sets_attributes(code):
                self._record(owner, "__dict__", own, f"attributes of {owner.__name__}")
            return
        if not is_module and not isinstance(owner, type):
            return
        module = owner if is_module else sys.modules.get(owner.__module__)
        root = str(getattr(module, "__name__", "")).partition(".")[0]
        file = getattr(module, "__file__", None) or ""
        if not is_users(file) or (root in sys.stdlib_module_names and root != "__main__"):
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
                self._record(container, name, value, f"{owner.__name__}.{name}")
            else:  # as it may be a method of another object
                self._note(getattr(value, "__func__", value))

    def _variables(self, code: CodeType, found: Mapping[str, Any]) -> None:
        """The cells of a closure that runs, which only its function knows.

        Args:
            code: Of the function; others that were made in the same place have it, too.
            found: Its variables, by which it is told from those.
        """
        if code not in self._alike:
            alike = self._alike[code] = {}
            for function in self._functions.get(code, ()):
                alike.setdefault(_ids(_cells(function)), []).append(function)
        ids, alike = tuple(map(id, found.values())), self._alike[code]
        for function in alike.get(ids) or self._functions.get(code, []):
            cells = _cells(function)
            if _ids(cells) == ids:
                for name, value in found.items():
                    self._record(cells[name], None, value, name)

    def _find_defaults(self) -> None:
        """Values that functions which ran take where they are given none."""
        ran = {code for code, _ in self._codes}
        for each in [one for code in ran for one in self._functions.get(code, [])]:
            for key in ("__defaults__", "__kwdefaults__"):
                if value := getattr(each, key):
                    place = Place(each, key, f"defaults of {each.__name__}")
                    self.read.setdefault((id(each), key), (place, Frozen(value)))
                    items = value.items() if isinstance(value, dict) else enumerate(value)
                    for index, item in items:
                        was = self._arguments.get(id(item)) or freeze(item)
                        place = Place(value, index, f"a default of {each.__name__}")
                        self.read.setdefault((id(value), index), (place, was))
        self._functions.clear()
        self._closures.clear()
        self._alike.clear()

    def _environment(self) -> Any:
        """What the step asks of the environment."""
        original = type(os.environ).__getitem__

        def get(environment: Any, key: str) -> str:
            if self._is_on("") and environment is os.environ:
                data, at = vars(environment)["_data"], environment.encodekey(key)
                self._record(data, at, data.get(at, MISSING), f"os.environ[{key!r}]")
            return original(environment, key)

        return get

    def _seen(self, owner: Any, name: str, *, through_library: bool = False) -> Any:
        """Let a function of Python's library be noted when it is called by the user.

        Args:
            owner: Of the function.
            name: Of the function.
            through_library: Whether others of Python's library may call it for the user.
        """
        original = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            if self._armed and threading.get_ident() == self._thread:
                frame: FrameType | None = sys._getframe(1)
                while through_library and frame and frame.f_code.co_filename.startswith(_LIBRARY):
                    if "site-packages" in frame.f_code.co_filename:
                        break
                    frame = frame.f_back
                caller = frame.f_code.co_filename if frame else "<frozen"
                if name == "next" and is_users(caller) and self._was_there(args[0]):
                    raise UnsupportedStepError(
                        "a step gets what changes by its arguments, so that it can be captured "
                        f"without using it up; this one takes the next item of a "
                        f"{type(args[0]).__name__}, at {origins.calling_line()}: take it before "
                        "the step, and give it to the step"
                    )
                if name != "next" and is_users(caller):
                    self.effects.setdefault(f"a call of {name}()")
            return original(*args, **named)

        return mock.patch.object(owner, name, call)

    def _draws(self, owner: Any, name: str) -> Any:
        """Let it be noted where the step draws."""
        original = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            if self._armed and threading.get_ident() == self._thread:
                note_draw()
            return original(*args, **named)

        return mock.patch.object(owner, name, call)

    def _put_off(self, owner: Any, name: str) -> Any:
        """Let what only tells people something be told when the step has run."""
        original = getattr(owner, name)

        def call(*args: Any, **named: Any) -> None:
            is_on = self._armed and threading.get_ident() == self._thread
            if is_on and not _is_said_once(sys._getframe(1)):
                self.told.append(Told(original, tuple(map(_text, args)), named))
            else:
                original(*args, **named)

        return mock.patch.object(owner, name, call)

    def _writes_later(self, stream: Any, *, of_users: bool = False) -> None:
        """Let what is written to a stream be written when the step has run.

        Args:
            stream: Open to be written.
            of_users: Whether only what the user's own code writes is the step's.
        """

        def later(method: str) -> Any:
            original = getattr(stream, method)

            def call(*args: Any) -> Any:
                is_on = self._armed and threading.get_ident() == self._thread
                if not is_on or (of_users and not is_users(sys._getframe(1).f_code.co_filename)):
                    return original(*args)
                self.told.append(Told(original, args, {}))
                return len(args[0]) if args else None

            return mock.patch.object(stream, method, call)

        for method in ("write", "flush"):
            self._stack.enter_context(later(method))

    def _was_there(self, value: Any) -> bool:
        """Whether a value was read from somewhere, and not made by the step."""
        known = [frozen for _, frozen in self.read.values()]
        return any(item is value for frozen in known for item in frozen.held())


def _cells(function: FunctionType) -> dict[str, CellType]:
    """Of a closure, by name, but for those that hold nothing yet."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell for name, cell in cells if Place(cell, None, name).get() is not MISSING}


def _ids(cells: Mapping[str, CellType]) -> tuple[int, ...]:
    return tuple(id(cell.cell_contents) for cell in cells.values())


def _is_object(owner: Any) -> bool:
    """Whether a method belongs to an object, as `log.append`, and is no function of a module."""
    return owner is not None and not isinstance(owner, ModuleType | type)


def _is_iterator(kind: type) -> bool:
    """Whether values are used up by whoever goes on with them, without Python code that says so."""
    return kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__")


def _is_file(kind: type) -> bool:
    """Whether values are written to, or read of, without Python code that says so."""
    return issubclass(kind, _io._IOBase) or kind.__module__ == "_csv"


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.get_state(legacy=False))


def _is_made_here(obj: Any) -> bool:
    """Whether an object without attributes is looked at by its `__init__`."""
    frame: FrameType | None = sys._getframe(2)
    while frame and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "__init__":
        return False
    return frame.f_locals.get(frame.f_code.co_varnames[0]) is obj


def _is_said_once(frame: FrameType | None) -> bool:
    """Whether a library says something at its first call only, by a `warning_once`."""
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code.co_name.endswith("_once"):
            return True
        frame = frame.f_back
    return False


def _text(argument: Any) -> Any:
    """An argument of `print` as it is now, unless it has no value yet; of a logger as it is."""
    if isinstance(argument, logging.Logger) or _compat.is_value(argument):
        return argument
    if isinstance(argument, logging.LogRecord):
        argument.getMessage()
        return argument
    leaves = leaves_of(argument)
    if any(isinstance(leaf, torch.Tensor) or _compat.is_value(leaf) for leaf in leaves):
        raise UnsupportedStepError(
            "a step prints single tensors that it computes; this one prints others, or some in a "
            f"{type(argument).__name__}, at {origins.calling_line()}: print them one by one, or "
            "return them from the step and print them there"
        )
    return str(argument)


def _attributes(obj: Any) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


@functools.cache
def names_of(code: CodeType) -> tuple[str, ...]:
    """The globals that a function names."""
    found = {
        instruction.argval: None
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return tuple(found)


@functools.cache
def imports_of(code: CodeType) -> tuple[str, ...]:
    """The modules that a function imports."""
    found = {i.argval: None for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME"}
    return tuple(found)


@functools.cache
def is_users(file: str) -> bool:
    """Whether code is the user's, or of a library other than torch's and Python's own."""
    if file.startswith(_NOT_THE_USERS):
        return False
    return not file.startswith(_LIBRARY) or "site-packages" in file


@functools.cache
def _is_watched(kind: type) -> bool:
    """Whether a class can be changed so that reads of its objects' attributes are seen."""
    if kind.__flags__ & (_HEAP_TYPE | _IMMUTABLE) != _HEAP_TYPE or issubclass(
        kind, torch.Tensor | type | BaseException | Exception
    ):
        return False
    if getattr(kind, "_member_map_", None) is not None:  # an enum
        return False
    module = getattr(kind, "__module__", None) or ""
    if module.split(".")[0] == "torch":
        return module.startswith(_WATCHED_OF_TORCH)
    root = module.split(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return root in _WATCHED_OF_LIBRARY
    return root not in ("numpy", "sympy", "frontends", "_pytest", "pluggy")
