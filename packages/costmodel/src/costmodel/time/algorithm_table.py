"""The algorithms that prices know: ours, those that users register, and those of distributions.

A distribution has algorithms as entry points of the group `costmodel.algorithms`, each an
`AlgorithmEntry`. As a price is that of the fastest algorithm, they are loaded when something is
priced for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import entry_points

from costmodel.errors import RegistrationError, UnknownNameError, shown
from costmodel.time.algorithm import AlgorithmEntry, Family, check_kind
from costmodel.time.algorithms import ENTRIES
from costmodel.time.ring import Rounds

GROUP = "costmodel.algorithms"
"""Of the entry points of distributions that have algorithms."""


class Algorithms:
    """Some algorithms, in the order in which the first of equally fast ones is taken.

    It never changes and compares by identity: whatever is kept by a price is kept by the
    `Algorithms` that it was found with, too.
    """

    def __init__(self, entries: Iterable[AlgorithmEntry]) -> None:
        self._of: dict[str, dict[str, AlgorithmEntry]] = {}
        for entry in entries:
            self._of.setdefault(entry.kind, {})[entry.name] = entry

    def of(self, kind: str) -> dict[str, AlgorithmEntry]:
        """Those of a collective, by name."""
        return self._of.get(kind, {})

    def with_entry(self, entry: AlgorithmEntry) -> Algorithms:
        """These and one more; these themselves if it is among them.

        Raises:
            RegistrationError: It is none, or another algorithm of the collective has its name.
        """
        entry.check()
        other = self.of(entry.kind).get(entry.name)
        if other == entry:
            return self
        if other is not None:
            raise RegistrationError(
                "a name is that of one algorithm of a collective, for all prices of a process; "
                f"there is another {entry.name} of {entry.kind} already: register it once, or "
                "call it something else"
            )
        ours = (one for known in self._of.values() for one in known.values())
        return Algorithms((*ours, entry))


_known = Algorithms(ENTRIES)
_are_loaded = False


def known_algorithms() -> Algorithms:
    """All that this process knows now.

    Raises:
        RegistrationError: An entry point of an installed distribution is no algorithm.
    """
    global _known, _are_loaded
    if not _are_loaded:
        _known = _with_installed(_known)
        _are_loaded = True
    return _known


def register_algorithm(
    kind: str, name: str, rounds: Callable[[int], Rounds], *, family: Family = "direct"
) -> None:
    """Let all prices that are found from now on know one more algorithm, as they know ours.

    It is a candidate in every group of devices, and on every level of a hierarchical collective. A
    distribution that has algorithms need not be imported for it: each entry point of the group
    `costmodel.algorithms` is an `AlgorithmEntry`.

    Args:
        kind: Which collective, a `CollectiveKind`; or "scatter", part of hierarchical broadcasts.
        name: For `Choice.algorithm` and `collective_time(algorithm=name)`.
        rounds: From the number of devices to what the busiest of them does: messages one after the
            other, and multiples of the collective's bytes, which are those
            of `costmodel.time.ring`.
        family: Which link of a group on several levels it uses.

    Raises:
        RegistrationError: Another one has the name, or it cannot be right: in some group of up to
            65 devices it moves less than any algorithm has to.

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
    """Rounds of an algorithm in a group of `n`.

    Raises:
        UnknownNameError: No collective is called `kind`, or it has no such algorithm.
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
        except Exception as error:  # whatever a distribution does when it is imported
            whose = "a distribution" if point.dist is None else point.dist.name
            raise RegistrationError(
                f"the algorithms of installed distributions can be loaded; {point.name} of "
                f"{whose}, which is {point.value}, cannot: {type(error).__name__}: {error}: mend "
                "or uninstall the distribution"
            ) from error
    return known
