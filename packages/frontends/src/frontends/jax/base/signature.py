"""How a step is called: arguments by place or by name, and those that are static.

A plan knows the step as a function of arrays in places. What `jax.jit` lets a user do besides is
undone here: arguments that are named get the place that they have in the signature, those that can
only be named come last, and static ones become part of the function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frontends.errors import ArgumentError, BatchError, PlanError
from frontends.jax.base.adapters import Adapter, Kept, hashable

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call, in the order of the signature."""

    names: tuple[str, ...]
    n_places: int
    """How many of them are given by place; the others by name."""

    arrays: Mapping[int, Any]
    static: Mapping[int, Any]
    """By number in the order of the signature."""

    adapter: Adapter | None = None
    rests: Mapping[int, Hashable] = field(default_factory=dict)
    """What arguments have besides arrays, where there is an adapter."""

    originals: Mapping[int, Any] = field(default_factory=dict)
    """The arguments before the adapter took them apart."""

    def function(self, step: Callable[..., Any], kept: Kept) -> Callable[..., Any]:
        """The step as a function of the arrays alone, in places.

        Args:
            step: Of the user.
            kept: Is told, when it is traced, what its results have besides arrays.
        """
        if not self.static and self.adapter is None and self.n_places == len(self.names):
            return step

        @functools.wraps(step)
        def planned(*arrays: Any) -> Any:
            values = dict(zip(self.arrays, arrays, strict=True))
            if self.adapter is not None:
                values = self.adapter.merge(values, self.rests)
            every = values | dict(self.static)
            places = [every[i] for i in range(self.n_places)]
            named = {name: every[i] for i, name in enumerate(self.names) if i >= self.n_places}
            result = step(*places, **named)
            if self.adapter is not None:
                result = self.adapter.leave(result, values, self.rests, kept)
            return result

        planned.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(self.names[i], _BY_PLACE[1]) for i in self.arrays]
        )
        return planned

    def places_of(self, argnums: Sequence[int]) -> tuple[int, ...]:
        """Numbers in the signature as places among the arrays.

        Raises:
            BatchError: One of them is out of range, or a static argument's.
        """
        numbers = list(self.arrays)
        found = []
        for number in argnums:
            index = number + len(self.names) if number < 0 else number
            if index not in self.arrays:
                raise BatchError(
                    f"batch_argnums must number some of the step's {len(self.names)} arguments, "
                    f"and none that is static; got batch_argnums={tuple(argnums)}"
                )
            found.append(numbers.index(index))
        return tuple(found)


class Signature:
    """The parameters of a step.

    Args:
        step: What the user wrote.
        static_argnums: Numbers of parameters that hold no arrays, as `jax.jit` takes them.
        static_argnames: The same by name.
        adapter: Takes arguments apart that are more than arrays.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        static_argnums: Sequence[int],
        static_argnames: Sequence[str],
        adapter: Adapter | None = None,
    ) -> None:
        self._adapter = adapter
        try:
            self._signature: inspect.Signature | None = inspect.signature(step)
        except (TypeError, ValueError):  # a builtin
            self._signature = None
        self._numbers, self._names = frozenset(static_argnums), frozenset(static_argnames)

    @property
    def required(self) -> tuple[inspect.Parameter, ...]:
        """What a call must give besides static arguments.

        Raises:
            PlanError: The signature does not tell.
        """
        parameters = () if self._signature is None else tuple(self._signature.parameters.values())
        several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        if not parameters or any(p.kind in several for p in parameters):
            raise PlanError(
                "the signature of the step does not tell how many arguments it takes: plan it by "
                "prepare(*arguments), with arrays or shapes, first"
            )
        return tuple(
            p
            for i, p in enumerate(parameters)
            if p.default is inspect.Parameter.empty
            and not self._is_static(i, p.name, len(parameters))
        )

    def call(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Call:
        """Sort the arguments of a call.

        Raises:
            ArgumentError: The step cannot be called so.
        """
        places, others = tuple(arguments), dict(named)
        names: list[str] = []
        if self._signature is not None:
            try:
                bound = self._signature.bind(*arguments, **named)
            except TypeError as error:
                raise ArgumentError(
                    f"a step is called as its signature {self._signature} says: {error}"
                ) from error
            known = list(self._signature.parameters)
            order = [*known, *sorted(bound.kwargs)].index
            places = bound.args
            others = {name: bound.kwargs[name] for name in sorted(bound.kwargs, key=order)}
            kinds = self._signature.parameters.values()
            names = [p.name for p in kinds if p.kind in _BY_PLACE][: len(places)]
        names += [f"argument{i}" for i in range(len(names), len(places))]
        names += others
        values = dict(enumerate([*places, *others.values()]))
        static = {i for i in values if self._is_static(i, names[i], len(values))}
        found = {i: value for i, value in values.items() if i not in static}
        chosen = {i: value for i, value in values.items() if i in static}
        if self._adapter is None:
            return Call(tuple(names), len(places), found, chosen)
        apart = self._adapter.split(found)
        arrays = {i: each for i, (each, _) in apart.items()}
        rests = {i: hashable(rest, names[i]) for i, (_, rest) in apart.items()}
        return Call(tuple(names), len(places), arrays, chosen, self._adapter, rests, found)

    def _is_static(self, index: int, name: str, n: int) -> bool:
        return index in self._numbers or index - n in self._numbers or name in self._names
