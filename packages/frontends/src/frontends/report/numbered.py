"""Numbers things, for data that names them by their place in a list."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Numbered(Generic[T]):
    """Things in the order in which they were first asked for.

    Examples:
        >>> table = Numbered()
        >>> table["a"], table["b"], table["a"]
        (0, 1, 0)
        >>> [*table]
        ['a', 'b']
    """

    def __init__(self) -> None:
        self._places: dict[T, int] = {}

    def __getitem__(self, thing: T) -> int:
        return self._places.setdefault(thing, len(self._places))

    def __iter__(self) -> Iterator[T]:
        return iter(self._places)
