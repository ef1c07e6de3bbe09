"""What a step leaves in the user's objects, beside its state: done again at every call.

An average in a dict gets a new tensor, a list of losses grows, a counter goes up. While a step is
captured, Python code does that with tensors that have no values; it is undone then, and done when
the program has run, with the values that it made.
"""

from __future__ import annotations

import collections
import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

import torch

from frontends.errors import UnsupportedStepError
from frontends.torch.base.compat.values import SYMBOLS, is_stand_in, is_value, known_number
from frontends.torch.base.frozen import Frozen, Many, has_plain_attributes, inside
from frontends.torch.base.host import number_of
from frontends.torch.base.slots import slots
from frontends.torch.base.trees import Leaf, Tree, flatten
from frontends.torch.capture.arguments import State
from frontends.torch.capture.place import MISSING, Place
from frontends.torch.capture.reads import Reads
from frontends.torch.capture.told import Told

Tensor = torch.Tensor
_MOST_OBJECTS = 100_000
_CONTAINERS = (list, dict, set, collections.deque)
_SIMPLE = (bool, int, float, str, bytes, type(None), type, ModuleType, FunctionType)


@dataclass(frozen=True, slots=True)
class Value:
    """Stands for a value that a program makes."""

    index: int
    """Among all that a step leaves."""


@dataclass(frozen=True, slots=True)
class Made:
    """A container or object that the step makes, so that every call has one of its own."""

    value: Any
    made: frozenset[int]
    """Ids of the containers and objects in it that the step makes, too."""

    def anew(self, done: dict[int, Any]) -> Any:
        """Another one; `done` has, by id, those of this call."""
        return self._anew(self.value, done)

    def _anew(self, value: Any, done: dict[int, Any]) -> Any:
        if id(value) not in self.made:
            return value
        if id(value) not in done:
            if not isinstance(value, _CONTAINERS):
                return self._object_anew(value, done)
            new: Any = copy.copy(value)
            done[id(value)] = new
            if isinstance(value, dict):
                new.update({key: self._anew(each, done) for key, each in value.items()})
            elif not isinstance(value, set):
                new.clear()
                new.extend(self._anew(each, done) for each in value)
        return done[id(value)]

    def _object_anew(self, value: Any, done: dict[int, Any]) -> Any:
        """Without any code of its class, which may do anything."""
        new = done[id(value)] = object.__new__(type(value))
        for name, each in getattr(value, "__dict__", {}).items():
            vars(new)[name] = self._anew(each, done)
        for slot, each in slots(value):
            slot.__set__(new, self._anew(each, done))
        return new


@dataclass(frozen=True, slots=True)
class Effect:
    """A change of one of the user's objects."""

    place: Place
    """What gets another value, or where the container is that gets other contents."""

    contents: str
    """`keys` of a dict are set, `items` of a list or set replaced or `more` appended; or empty."""

    removed: tuple[Any, ...]
    """Keys of a dict."""

    tree: Tree
    """Of the value, or of the contents."""

    leaves: tuple[Any, ...]

    def apply(self, target: Any, value_of: Callable[[Any], Any]) -> None:
        """Do it.

        Args:
            target: What is at the place, before any other effect.
            value_of: The value of a leaf now.
        """
        leaves = map(value_of, self.leaves)
        new = self.tree.fill(iter(leaves))
        if not self.contents:
            if new is MISSING:
                self.place.delete()
            else:
                self.place.set(new)
        elif self.contents == "keys":
            for key in self.removed:
                target.pop(key, None)
            for key, value in new.items():  # as update() of a Counter adds
                target[key] = value
        else:
            if self.contents == "items":
                target.clear()
            add = target.update if isinstance(target, set) else target.extend
            add(new)


@dataclass
class Left:
    """What a step leaves, found after it ran on stand-ins.

    Args:
        state: Of model and optimizer, whose tensors are no one else's.
        reads: What the step read and wrote of Python.
    """

    state: State
    reads: Reads
    values: list[Any] = field(default_factory=list)
    """Tensors and numbers without values that are left."""

    names: Mapping[Any, str] = field(default_factory=dict)
    """Of the numbers that are given, by torch's symbols for them."""

    effects: list[Effect] = field(default_factory=list)
    containers: list[tuple[Place, ...]] = field(default_factory=list)
    """Where each container is that gets other contents; one that is in several places there."""

    rebound: dict[str, int] = field(default_factory=dict)
    """State that is a new tensor after the step, and which value that is."""

    told: tuple[Told, ...] = ()
    """What is printed and logged, of values that are known after a call."""

    flags: tuple[tuple[Tensor, bool], ...] = ()
    """Tensors whose `requires_grad` the step changes, and to what."""

    def __post_init__(self) -> None:
        self._flags = [(t, t.requires_grad) for t in self.state.tensors.values() if t.is_leaf]

    def look(self, settings: Mapping[tuple[int, str], Any]) -> None:
        """Find what was done, and undo it.

        Args:
            settings: What the step has set in `param_groups`.
        """
        with self.reads.paused():
            try:
                self._look(settings)
            finally:
                self.undo()

    def undo(self) -> None:
        """Let the user's objects be what they were before the step."""
        for place, frozen in self.reads.read.values():
            frozen.restore()
            self._put_back(place, frozen.value)
        for written in self.reads.written.values():
            self._put_back(written.place, written.before)
        self.reads.put_generators_back()
        for tensor, flag in self._flags:
            if tensor.requires_grad is not flag:
                tensor.requires_grad_(flag)

    def _put_back(self, place: Place, before: Any) -> None:
        now = place.get()
        if now is before:
            return
        if before is MISSING:
            place.delete()
        else:
            place.set(before)

    def _look(self, settings: Mapping[tuple[int, str], Any]) -> None:
        names = {id(tensor): name for name, tensor in self.state.tensors.items()}
        now_ = [(t, t.requires_grad, flag) for t, flag in self._flags]
        self.flags = tuple((t, now) for t, now, flag in now_ if now is not flag)
        if drawn := self.reads.put_generators_back():
            raise UnsupportedStepError(
                "random numbers of a step are drawn by torch, which draws new ones in every step; "
                f"this one draws by a {drawn[0]} of its own: take torch.rand, or draw them before "
                "the step and put them into the batch"
            )
        for (group, key), value in settings.items():
            place = Place(self.state.optimizer.param_groups[group], key, key)
            self.effects.append(self._effect(place, value))
        self.told = tuple(
            replace(told, arguments=tuple(map(self._said, told.arguments)))
            for told in self.reads.told
        )
        done: set[tuple[int, Any]] = set()
        places = [(place, frozen.value) for place, frozen in self.reads.read.values()]
        places += [(w.place, w.before) for w in self.reads.written.values()]
        for place, before in places:
            at = id(place.container), place.key
            now = place.get()
            if at in done or now is before or _equal(now, before):
                continue
            done.add(at)
            if self._is_rebound(names, before, now):
                continue
            self.effects.append(self._effect(place, now))
        changed: dict[int, tuple[list[Place], Any, Any]] = {}
        for place, frozen in self.reads.read.values():
            for keys, container, before in _changed(frozen):
                found = changed.setdefault(id(container), ([], container, before))
                found[0].append(place.inside(keys))
        for places_there, container, before in changed.values():
            n_effects = len(self.effects)
            self._contents(names, places_there[0], container, before)
            if len(self.effects) > n_effects:
                self.containers.append(tuple(places_there))

    def _said(self, argument: Any) -> Any:
        return self._leaf(argument) if is_value(argument) else argument

    def _is_rebound(self, names: Mapping[int, str], before: Any, now: Any) -> bool:
        """Whether a new tensor takes the place of one of the state."""
        name = names.get(id(before))
        if name is None or not is_stand_in(now) or isinstance(before, torch.nn.Parameter):
            return False
        if (now.shape, now.dtype) != (before.shape, before.dtype):
            return False
        self.rebound[name] = self._number(now)
        return True

    def _contents(
        self, names: Mapping[int, str], place: Place, container: Any, before: Any
    ) -> None:
        if isinstance(container, dict):
            container = {_plain(key): value for key, value in container.items()}
            now = {
                key: value
                for key, value in container.items()
                if key not in before
                or not (
                    value is before[key].value or self._is_rebound(names, before[key].value, value)
                )
            }
            removed = tuple(key for key in before if key not in container)
            if [k for k in container if k in before] != [k for k in before if k in container]:
                now, removed = container, tuple(before)
            if now or removed:
                self.effects.append(self._effect(place, now, "keys", removed))
            return
        items, n_before = list(container), len(before)
        is_longer = isinstance(before, tuple) and len(items) > n_before
        if is_longer and all(a is b.value for a, b in zip(items, before, strict=False)):
            self.effects.append(self._effect(place, items[n_before:], "more"))
        else:
            self.effects.append(self._effect(place, items, "items"))

    def _effect(
        self, place: Place, now: Any, contents: str = "", removed: tuple[Any, ...] = ()
    ) -> Effect:
        """Values without numbers are replaced; all else is what Python had made."""
        leaves: list[Any] = []
        if not contents:
            tree = self._template(now, leaves)
        else:
            items = list(now.values() if isinstance(now, dict) else now)
            keys = tuple(now) if isinstance(now, dict) else tuple(range(len(items)))
            children = tuple(self._template(item, leaves) for item in items)
            tree = Tree(dict if isinstance(now, dict) else list, keys, None, children)
        return Effect(place, contents, removed, tree, tuple(map(self._leaf, leaves)))

    def _template(self, value: Any, leaves: list[Any]) -> Tree:
        found, tree = flatten(value)
        if not any(is_value(leaf.value) for leaf in found):
            found, tree = [Leaf("", value)], Tree(None)
        leaves += [leaf.value for leaf in found]
        return tree

    def _leaf(self, value: Any) -> Any:
        number = number_of(value, self.names)
        if number is not None:
            return number
        if is_value(value):
            if isinstance(value, torch.nn.Parameter):
                raise UnsupportedStepError(
                    "a step keeps the parameters that it has; this one makes a new one: make it "
                    "before the step is called"
                )
            return Value(self._number(value))
        check_real(value, "keeps")
        made = Made(value, frozenset(self._made(value)))
        if not made.made:
            return value
        try:
            made.anew({})
        except Exception as error:  # of its class, whatever that does
            raise UnsupportedStepError(
                "what a step makes and keeps is made anew at each call; this one keeps a "
                f"{type(value).__name__}, which cannot be ({type(error).__name__}: {error}): make "
                "it before the step is called"
            ) from None
        return made

    def _made(self, value: Any) -> dict[int, Any]:
        """By id what a value holds, and itself, that was not there before the step.

        A thread that the step starts is one that goes on, and no other one at each call.
        """
        made: dict[int, Any] = {}
        rest = [value]
        while rest:
            one = rest.pop()
            if id(one) in made or id(one) in self._there:
                continue
            if isinstance(one, _CONTAINERS):
                made[id(one)] = one
                rest += one.values() if isinstance(one, dict) else one
                continue
            own = getattr(one, "__dict__", one)
            if id(own) in self.reads.made and not isinstance(one, threading.Thread):
                made[id(one)] = one
                rest += _attributes(one)
        return made

    @cached_property
    def _there(self) -> frozenset[int]:
        """Ids of what was there before the step."""
        known = [id(item) for _, frozen in self.reads.read.values() for item in frozen.held()]
        before = [written.before for written in self.reads.written.values()]
        return frozenset((*known, *(id(item) for value in before for item in inside(value))))

    def _number(self, value: Any) -> int:
        for index, known in enumerate(self.values):
            if known is value:
                return index
        self.values.append(value)
        return len(self.values) - 1


def _plain(key: Any) -> Any:
    """A key without torch's numbers, which stand for what they are at the capture."""
    if type(key) is tuple:
        return tuple(map(_plain, key))
    return known_number(key) if isinstance(key, SYMBOLS) else key


def _equal(now: Any, before: Any) -> bool:
    plain = (bool, int, float, str, bytes, type(None))
    return type(now) is type(before) and isinstance(now, plain) and now == before


def _attributes(value: Any) -> list[Any]:
    return [*getattr(value, "__dict__", {}).values(), *(each for _, each in slots(value))]


def check_real(value: Any, does: str) -> None:
    """An object that is none of a tree's nodes is handed on as it is, so it holds no stand-ins."""
    seen: set[int] = set()
    rest = [value]
    while rest and len(seen) < _MOST_OBJECTS:
        one = rest.pop()
        if id(one) in seen or isinstance(one, _SIMPLE):
            continue
        seen.add(id(one))
        if is_value(one):
            raise UnsupportedStepError(
                "tensors that a step makes are returned, or kept, in lists, dicts, dataclasses and "
                f"attributes; this one {does} a {type(value).__name__} that holds one of "
                f"{getattr(one, 'dtype', type(one).__name__)}{list(getattr(one, 'shape', ()))}: "
                "make the object before the step and copy the values into it, or hand on the "
                "tensors alone"
            )
        if isinstance(one, dict):
            rest += dict.values(one)
        elif isinstance(one, list | tuple | set | frozenset | collections.deque):
            rest += one
        elif not isinstance(one, Tensor):
            rest += _attributes(one)


def _changed(
    frozen: Frozen, keys: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Containers that hold other things than they did: keys that lead there, and what they held."""
    value, contents = frozen.value, frozen.contents
    if isinstance(contents, frozenset):
        if isinstance(value, set) and value != contents:
            yield keys, value, contents
        return
    if isinstance(contents, Many):
        if not contents.are_in(value):
            yield keys, value, contents.looked_into(value)
        return
    if not isinstance(contents, dict | tuple):
        return
    for key, each in contents.items() if isinstance(contents, dict) else enumerate(contents):
        yield from _changed(each, (*keys, key))
    if isinstance(value, dict | list | collections.deque) and not frozen.has_its_items():
        yield keys, value, contents
    elif has_plain_attributes(value) and not frozen.has_its_items():
        yield (*keys, "__dict__"), vars(value), contents
