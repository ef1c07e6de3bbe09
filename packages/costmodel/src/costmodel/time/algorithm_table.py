"""The algorithms that prices choose from: ours, those of users, and those of installed packages.

A distribution provides algorithms as entry points of the group `costmodel.algorithms`, each an
`AlgorithmEntry`. They are loaded when something is priced for the first time, because a price is
that of the fastest known algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import entry_points

from costmodel.errors import RegistrationError, UnknownNameError, shown
from costmodel.time.algorithm import AlgorithmEntry, Family, check_kind
from costmodel.time.algorithms import ENTRIES
from costmodel.time.ring import Rounds

GROUP = "costmodel.algorithms"
"""Group of the entry points by which distributions provide algorithms."""


class Algorithms:
    """A set of algorithms; of equally fast ones the first is chosen.

    It never changes and compares by identity, so caches of prices have the `Algorithms` that a
    price was found with in their key.
    """

    def __init__(self, entries: Iterable[AlgorithmEntry]) -> None:
        self._of: dict[str, dict[str, AlgorithmEntry]] = {}
        for entry in entries:
            self._of.setdefault(entry.kind, {})[entry.name] = entry

    def of(self, kind: str) -> dict[str, AlgorithmEntry]:
        """The algorithms of a collective, by name."""
        return self._of.get(kind, {})

    def with_entry(self, entry: AlgorithmEntry) -> Algorithms:
        """These algorithms and `entry`; the same object if they already include it.

        Raises:
            RegistrationError: The entry is not valid, or another algorithm of the collective has
                its name.
        """
        entry.check()
        other = self.of(entry.kind).get(entry.name)
        if other == entry:
            return self
        if other is not None:
            raise RegistrationError(
                "the algorithms of a collective have different names, for all prices of a process; "
                f"there is another {entry.name} of {entry.kind} already: register it once, or "
                "under another name"
            )
        present = (one for known in self._of.values() for one in known.values())
        return Algorithms((*present, entry))


_known = Algorithms(ENTRIES)
_are_loaded = False


def known_algorithms() -> Algorithms:
    """All algorithms that this process knows now.

    Raises:
        RegistrationError: An entry point of an installed distribution is not an algorithm.
    """
    global _known, _are_loaded
    if not _are_loaded:
        _known = _with_installed(_known)
        _are_loaded = True
    return _known


def register_algorithm(
    kind: str, name: str, rounds: Callable[[int], Rounds], *, family: Family = "direct"
) -> None:
    """Adds an algorithm to those that all later prices choose from.

    It becomes a candidate in every group of devices, and on every level of a hierarchical
    collective. A distribution can also provide algorithms without being imported: as entry points
    of the group `costmodel.algorithms`, each an `AlgorithmEntry`.

    Args:
        kind: The collective, a `CollectiveKind`; or "scatter", a phase of hierarchical broadcasts.
        name: Name in `Choice.algorithm` and for `collective_time(algorithm=name)`.
        rounds: A function from the number of devices to what the busiest of them does: messages one
            after the other, and multiples of the collective's bytes, as in `costmodel.time.ring`.
        family: Decides which link of a group on several levels the algorithm uses.

    Raises:
        RegistrationError: Another algorithm has this name, or the algorithm cannot be right: in
            some group of up to 65 devices it moves less than any algorithm has to.

    Examples:
        >>> from costmodel import Rounds
        >>> def store_and_forward(n):
        ...     return Rounds(2 * (n > 1), 0, 2 * (n > 1))
        >>> register_algorithm("point_to_point", "store and forward", store_and_forward)
        >>> rounds("point_to_point", "store and forward", 8)
        Rounds(messages=2, exchanged=0, one_way=2)
    """
    global _known
    _known = known_algorithms().with_entry(AlgorithmEntry(kind, name, family, rounds))


def rounds(kind: str, algorithm: str, n: int) -> Rounds:
    """Rounds of an algorithm in a group of `n` devices.

    Raises:
        UnknownNameError: No collective is called `kind`, or it has no algorithm of this name.
    """
    check_kind(kind)
    known = known_algorithms().of(kind)
    if algorithm not in known:
        raise UnknownNameError(
            f"{kind} has the algorithms {', '.join(known)}, or those that "
            f"costmodel.register_algorithm adds; got {shown(algorithm)}",
            str(algorithm),
        )
    return known[algorithm].rounds(n)


def _with_installed(known: Algorithms) -> Algorithms:
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        try:
            entry = point.load()
            if not isinstance(entry, AlgorithmEntry):
                raise RegistrationError(f"an entry point is an AlgorithmEntry; got {entry!r:.60}")
            known = known.with_entry(entry)
        except Exception as error:  # importing a distribution may raise anything
            whose = "a distribution" if point.dist is None else point.dist.name
            raise RegistrationError(
                f"the algorithms of installed distributions can be loaded; {point.name} of "
                f"{whose}, which is {point.value}, cannot: {type(error).__name__}: {error}: mend "
                "or uninstall the distribution"
            ) from error
    return known
