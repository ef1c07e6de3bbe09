"""Effects of a step on the user's objects outside of its state, which are repeated at every call.

An average in a dict becomes a new tensor, a list of losses grows, a counter increases. While a step
is captured, Python code does that with tensors that have no values. These changes are undone after
the capture, and made again after each run of the program, with the values that it computed.
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
from frontends.torch.capture.location import MISSING, Location
from frontends.torch.capture.reads import Reads
from frontends.torch.capture.told import Told

Tensor = torch.Tensor
_MOST_OBJECTS = 100_000
_CONTAINERS = (list, dict, set, collections.deque)
_SIMPLE = (bool, int, float, str, bytes, type(None), type, ModuleType, FunctionType)


@dataclass(frozen=True, slots=True)
class ComputedValue:
    """Stands for a value that the program computes."""

    index: int
    """Its index among the values of effects."""


@dataclass(frozen=True, slots=True)
class Made:
    """A container or object that the step creates, so that every call needs a new one."""

    value: Any
    made: frozenset[int]
    """`id`s of itself and of the containers and objects inside it that the step creates, too."""

    def anew(self, done: dict[int, Any]) -> Any:
        """Return a new one.

        Args:
            done: By `id`, the new ones of this call so far; it is extended.
        """
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
        """Copy an object without calling code of its class, which could do anything."""
        new = done[id(value)] = object.__new__(type(value))
        for name, each in getattr(value, "__dict__", {}).items():
            vars(new)[name] = self._anew(each, done)
        for slot, each in slots(value):
            slot.__set__(new, self._anew(each, done))
        return new


@dataclass(frozen=True, slots=True)
class Effect:
    """A change of one of the user's objects."""

    place: Location
    """The place that gets a new value, or where the container is whose contents change."""

    contents: str
    """How the contents change: `keys` of a dict are set, all `items` of a list or set are replaced,
    or `more` are appended; empty if the place gets a new value."""

    removed: tuple[Any, ...]
    """Keys to remove from a dict."""

    tree: Tree
    """The structure of the new value, or of the new contents."""

    leaves: tuple[Any, ...]

    def apply(self, target: Any, value_of: Callable[[Any], Any]) -> None:
        """Make the change.

        Args:
            target: What was at the place before any effect.
            value_of: Returns the value of a leaf in this call.
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
            for key, value in new.items():  # not update(), which adds in a Counter
                target[key] = value
        else:
            if self.contents == "items":
                target.clear()
            add = target.update if isinstance(target, set) else target.extend
            add(new)


@dataclass
class Left:
    """Finds the effects of a step after it ran on stand-ins, and undoes them.

    Args:
        state: The state of model and optimizer; changes of its tensors are updates, not effects.
        reads: What the step has read and written of Python.
    """

    state: State
    reads: Reads
    values: list[Any] = field(default_factory=list)
    """Tensors and numbers without values that the effects contain."""

    names: Mapping[Any, str] = field(default_factory=dict)
    """By torch's symbols, the names of the numbers that each call passes in."""

    effects: list[Effect] = field(default_factory=list)
    containers: list[tuple[Location, ...]] = field(default_factory=list)
    """For each container whose contents change, all places where it is."""

    rebound: dict[str, int] = field(default_factory=dict)
    """State for which the step sets a new tensor: by name, the index of the value."""

    told: tuple[Told, ...] = ()
    """Output that is printed and logged after each call."""

    flags: tuple[tuple[Tensor, bool], ...] = ()
    """Tensors whose `requires_grad` the step changes, with the new value."""

    def __post_init__(self) -> None:
        self._flags = [(t, t.requires_grad) for t in self.state.tensors.values() if t.is_leaf]

    def look(self, settings: Mapping[tuple[int, str], Any]) -> None:
        """Find the effects, and undo them.

        Args:
            settings: The settings in `param_groups` that the step has changed.
        """
        with self.reads.paused():
            try:
                self._look(settings)
            finally:
                self.undo()

    def undo(self) -> None:
        """Restore the user's objects as they were before the step."""
        for place, frozen in self.reads.read.values():
            frozen.restore()
            self._put_back(place, frozen.value)
        for written in self.reads.written.values():
            self._put_back(written.place, written.before)
        self.reads.put_generators_back()
        self.reads.put_schedules_back()
        for tensor, flag in self._flags:
            if tensor.requires_grad is not flag:
                tensor.requires_grad_(flag)

    def _put_back(self, place: Location, before: Any) -> None:
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
            place = Location(self.state.optimizer.param_groups[group], key, key)
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
        changed: dict[int, tuple[list[Location], Any, Any]] = {}
        for place, frozen in self.reads.read.values():
            for keys, container, before in _changed(frozen):
                entry = changed.setdefault(id(container), ([], container, before))
                entry[0].append(place.inside(keys))
        for where, container, before in changed.values():
            n_effects = len(self.effects)
            self._contents(names, where[0], container, before)
            if len(self.effects) > n_effects:
                self.containers.append(tuple(where))

    def _said(self, argument: Any) -> Any:
        return self._leaf(argument) if is_value(argument) else argument

    def _is_rebound(self, names: Mapping[int, str], before: Any, now: Any) -> bool:
        """Return whether a new tensor replaces one of the state; if so, record it as an update."""
        name = names.get(id(before))
        if name is None or not is_stand_in(now) or isinstance(before, torch.nn.Parameter):
            return False
        if (now.shape, now.dtype) != (before.shape, before.dtype):
            return False
        self.rebound[name] = self._number(now)
        return True

    def _contents(
        self, names: Mapping[int, str], place: Location, container: Any, before: Any
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
        self, place: Location, now: Any, contents: str = "", removed: tuple[Any, ...] = ()
    ) -> Effect:
        """Return an effect in which stand-ins are replaced by `ComputedValue`s."""
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
        parts, tree = flatten(value)
        if not any(is_value(leaf.value) for leaf in parts):
            parts, tree = [Leaf("", value)], Tree(None)
        leaves += [leaf.value for leaf in parts]
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
            return ComputedValue(self._number(value))
        check_real(value, "keeps")
        created = Made(value, frozenset(self._made(value)))
        if not created.made:
            return value
        try:
            created.anew({})
        except Exception as error:  # whatever its class raises
            raise UnsupportedStepError(
                "an object that a step creates and keeps is created again at each call; this one "
                f"keeps a {type(value).__name__}, which cannot be "
                f"({type(error).__name__}: {error}): make it before the step is called"
            ) from None
        return created

    def _made(self, value: Any) -> dict[int, Any]:
        """Return, by `id`, the value and objects inside it, if they did not exist before the step.

        A thread that the step starts is kept: it goes on, and calls do not start new ones.
        """
        created: dict[int, Any] = {}
        rest = [value]
        while rest:
            one = rest.pop()
            if id(one) in created or id(one) in self._there:
                continue
            if isinstance(one, _CONTAINERS):
                created[id(one)] = one
                rest += one.values() if isinstance(one, dict) else one
                continue
            attributes = getattr(one, "__dict__", one)
            if id(attributes) in self.reads.made and not isinstance(one, threading.Thread):
                created[id(one)] = one
                rest += _attributes(one)
        return created

    @cached_property
    def _there(self) -> frozenset[int]:
        """`id`s of objects that existed before the step."""
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
    """Return a key with symbolic numbers replaced by their values at the capture."""
    if type(key) is tuple:
        return tuple(map(_plain, key))
    return known_number(key) if isinstance(key, SYMBOLS) else key


def _equal(now: Any, before: Any) -> bool:
    plain = (bool, int, float, str, bytes, type(None))
    return type(now) is type(before) and isinstance(now, plain) and now == before


def _attributes(value: Any) -> list[Any]:
    return [*getattr(value, "__dict__", {}).values(), *(each for _, each in slots(value))]


def check_real(value: Any, does: str) -> None:
    """Check that an object that is not flattened contains no stand-ins, as it is passed on as is.

    Args:
        value: The object.
        does: What the step does with it, for the message.

    Raises:
        UnsupportedStepError: It contains one.
    """
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
                "make the object before the step and copy the values into it, or pass on the "
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
    """Yield containers whose contents changed: the keys to it, itself, and its contents before."""
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
