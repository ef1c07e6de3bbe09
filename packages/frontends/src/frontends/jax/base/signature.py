"""How a step is called: arguments by position or by name, and static arguments.

A plan knows the step as a function of positional arrays. `jax.jit` allows more, and this module
translates it: an argument given by name moves to its position in the signature, keyword-only
arguments come last, and static arguments become part of the function.
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
class CallArguments:
    """The arguments of one call, in the order of the signature."""

    names: tuple[str, ...]
    n_places: int
    """How many of them are positional; the others are given by name."""

    arrays: Mapping[int, Any]
    """By the argument's number in the order of the signature, like the mappings below."""

    static: Mapping[int, Any]

    adapter: Adapter | None = None
    rests: Mapping[int, Hashable] = field(default_factory=dict)
    """What each argument holds besides arrays; empty without an adapter."""

    originals: Mapping[int, Any] = field(default_factory=dict)
    """The arguments before the adapter split them; empty without an adapter."""

    def function(self, step: Callable[..., Any], kept: Kept) -> Callable[..., Any]:
        """The step as a function of positional arrays only.

        Args:
            step: The user's function.
            kept: Filled whenever the function is traced: what its results hold besides arrays.
        """
        if not self.static and self.adapter is None and self.n_places == len(self.names):
            return step

        @functools.wraps(step)
        def planned(*arrays: Any) -> Any:
            values = dict(zip(self.arrays, arrays, strict=True))
            if self.adapter is not None:
                values = self.adapter.merge(values, self.rests)
            values_and_static = values | dict(self.static)
            positional = [values_and_static[i] for i in range(self.n_places)]
            named = {
                name: values_and_static[i]
                for i, name in enumerate(self.names)
                if i >= self.n_places
            }
            result = step(*positional, **named)
            if self.adapter is not None:
                result = self.adapter.leave(result, values, self.rests, kept)
            return result

        planned.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(self.names[i], _BY_PLACE[1]) for i in self.arrays]
        )
        return planned

    def places_of(self, argnums: Sequence[int]) -> tuple[int, ...]:
        """Positions among the arrays of the arguments with these numbers in the signature.

        Raises:
            BatchError: A number is out of range, or is that of a static argument.
        """
        numbers = list(self.arrays)
        positions = []
        for number in argnums:
            index = number + len(self.names) if number < 0 else number
            if index not in self.arrays:
                raise BatchError(
                    f"batch_argnums must number some of the step's {len(self.names)} arguments, "
                    f"and none that is static; got batch_argnums={tuple(argnums)}"
                )
            positions.append(numbers.index(index))
        return tuple(positions)


class Signature:
    """The parameters of a step.

    Args:
        step: The user's function.
        static_argnums: Numbers of the parameters that are not arrays, as in `jax.jit`.
        static_argnames: The same by name.
        adapter: Splits arguments that hold more than arrays; None if there are none.
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
        """The parameters that every call must pass, without the static ones.

        Raises:
            PlanError: The signature does not say how many arguments the step takes.
        """
        parameters = () if self._signature is None else tuple(self._signature.parameters.values())
        several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        if not parameters or any(p.kind in several for p in parameters):
            raise PlanError(
                "the signature of the step does not say how many arguments it takes: first call "
                "prepare(*arguments), with arrays or shapes"
            )
        return tuple(
            p
            for i, p in enumerate(parameters)
            if p.default is inspect.Parameter.empty
            and not self._is_static(i, p.name, len(parameters))
        )

    def call(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> CallArguments:
        """Sort the arguments of a call into arrays and static values.

        Raises:
            ArgumentError: The arguments do not fit the signature.
        """
        positional, others = tuple(arguments), dict(named)
        names: list[str] = []
        if self._signature is not None:
            try:
                bound = self._signature.bind(*arguments, **named)
            except TypeError as error:
                raise ArgumentError(
                    f"a step is called with the arguments of its signature {self._signature}: "
                    f"{error}"
                ) from error
            known = list(self._signature.parameters)
            order = [*known, *sorted(bound.kwargs)].index
            positional = bound.args
            others = {name: bound.kwargs[name] for name in sorted(bound.kwargs, key=order)}
            parameters = self._signature.parameters.values()
            names = [p.name for p in parameters if p.kind in _BY_PLACE][: len(positional)]
        names += [f"argument{i}" for i in range(len(names), len(positional))]
        names += others
        values = dict(enumerate([*positional, *others.values()]))
        is_static = {i: self._is_static(i, names[i], len(values)) for i in values}
        dynamic = {i: value for i, value in values.items() if not is_static[i]}
        static = {i: value for i, value in values.items() if is_static[i]}
        if self._adapter is None:
            return CallArguments(tuple(names), len(positional), dynamic, static)
        parts = self._adapter.split(dynamic)
        arrays = {i: tree for i, (tree, _) in parts.items()}
        rests = {i: hashable(rest, names[i]) for i, (_, rest) in parts.items()}
        return CallArguments(
            tuple(names), len(positional), arrays, static, self._adapter, rests, dynamic
        )

    def _is_static(self, index: int, name: str, n: int) -> bool:
        return index in self._numbers or index - n in self._numbers or name in self._names
