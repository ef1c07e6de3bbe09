"""Schedules of a learning rate that a step moves on, which is put off until the step has run.

A schedule counts its steps and decides in Python by the count, so that a captured step would be
another one at every call. It moves numbers that the program takes from `param_groups` at each call;
so it can be moved on after the program, if the step does not look at these numbers in between.
This is for torch's own classes: what a user's class keeps, and where it is looked at, is not known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.optim.lr_scheduler import LRScheduler

from frontends.torch.base.compat.values import is_value
from frontends.torch.base.trees import leaves_of
from frontends.torch.capture.met import Met
from frontends.torch.capture.told import Told


class LookedAtError(BaseException):
    """A step looks at what a schedule has set in it; no code of the user may catch this."""


class Unknown:
    """Stands for a number that a schedule will have set; any use of it raises `LookedAtError`.

    So does returning or keeping it, since it is looked at then for its attributes.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise LookedAtError

    def __hash__(self) -> int:
        raise LookedAtError


def _refuse(*args: Any) -> Any:
    raise LookedAtError


for _name in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv"),
    *("mod", "rmod", "pow", "rpow", "neg", "pos", "abs", "round", "lt", "le", "gt", "ge", "eq"),
    *("ne", "bool", "int", "float", "index", "complex", "str", "format", "repr", "iter", "len"),
    *("getitem", "contains", "reduce_ex"),
):
    setattr(Unknown, f"__{_name}__", _refuse)


class Schedules:
    """Puts off the steps of schedules.

    Args:
        met: Tells when the step runs.
        told: Gets what is to be called after each run.
        is_off: Whether schedules are moved on within the step after all.
    """

    def __init__(self, met: Met, told: list[Told], is_off: bool) -> None:
        self._met, self._told, self._is_off = met, told, is_off
        self._hidden: list[tuple[dict[Any, Any], Any, Any]] = []

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Inside, schedules are not moved on yet."""
        if self._is_off:
            yield
            return
        with ExitStack() as stack:
            stack.callback(self._show)
            for kind in {LRScheduler, *_subclasses(LRScheduler)}:
                if "step" in vars(kind) and kind.__module__ == LRScheduler.__module__:
                    stack.enter_context(mock.patch.object(kind, "step", self._later(kind)))
            yield

    def _later(self, kind: type) -> Callable[..., Any]:
        original: Callable[..., Any] = vars(kind)["step"]
        signature = inspect.signature(original)

        def step(schedule: Any, *args: Any, **named: Any) -> Any:
            if not self._met.is_on():
                return original(schedule, *args, **named)
            given = signature.bind(schedule, *args, **named).args[1:]
            groups = schedule.optimizer.param_groups
            if not (
                type(schedule).__module__ == LRScheduler.__module__
                and all(leaf is value for value in given for leaf in leaves_of(value))
                and not any(isinstance(group.get("lr"), torch.Tensor) for group in groups)
            ):
                raise LookedAtError  # it cannot be put off
            self._told.append(Told(original, (schedule, *given), {}))
            with self._met.paused():
                for group in groups:
                    self._hide(group)
                self._hide_in(schedule)
            return None

        return step

    def _hide_in(self, schedule: Any) -> None:
        """Hide the numbers of a schedule, and of those that it consists of."""
        self._hide(vars(schedule))
        for inner in vars(schedule).get("_schedulers", ()):
            self._hide_in(inner)

    def _hide(self, numbers: dict[Any, Any]) -> None:
        for key, value in list(numbers.items()):
            is_list = type(value) in (list, tuple) and value and all(map(_is_number, value))
            if (_is_number(value) or is_list) and key not in _KEPT:
                self._hidden.append((numbers, key, value))
                numbers[key] = Unknown()

    def _show(self) -> None:
        for container, key, value in reversed(self._hidden):
            container[key] = value

    def put_back(self) -> None:
        """Undo what an undoing of the step has brought back of numbers that were hidden."""
        for container, key, value in self._hidden:
            if type(container.get(key)) is Unknown:
                container[key] = value


_KEPT = frozenset(("_step_count", "_get_lr_called_within_step", "_is_initial"))
"""Attributes with which torch warns of calls in a wrong order."""


def _is_number(value: Any) -> bool:
    if type(value) is Unknown:
        return False
    return (isinstance(value, int | float) and not isinstance(value, bool)) or is_value(value)


def _subclasses(kind: type) -> Iterator[type]:
    each: type
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
