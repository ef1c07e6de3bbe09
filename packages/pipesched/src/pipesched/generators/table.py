"""Tables of schedules: ours, those that users register, and those of installed distributions.

A distribution provides schedules as entry points of the group `pipesched.schedules`, each a
`ScheduleEntry` with the entry point's name. The table looks for entry points when it is asked for a
name that it does not have, or for all names. It loads each entry once, when it is asked for this
entry. An entry does not change during the life of the process, so that caches which use the name of
a schedule as a key stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from pipesched.base.checks import match
from pipesched.errors import RegistrationError, UnknownScheduleError
from pipesched.generators.entry import ScheduleEntry

GROUP = "pipesched.schedules"
"""The group of the entry points with which distributions provide schedules."""


_CHUNKED = re.compile(r"(?P<name>\S+):(?P<chunks>[1-9]\d{0,3})")


class ScheduleTable:
    """Schedules by name.

    Args:
        entries: The first entries, which are not checked.
    """

    def __init__(self, entries: Iterable[ScheduleEntry]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._chunked: dict[str, ScheduleEntry] = {}
        self._points: dict[str, EntryPoint] | None = None

    def names(self) -> tuple[str, ...]:
        """All names, with those of installed distributions last; this loads no entry.

        Raises:
            RegistrationError: Several distributions have schedules of the same name.
        """
        return tuple(dict.fromkeys((*self._entries, *self._installed())))

    def __contains__(self, name: str) -> bool:
        if name in self._entries or name in self._installed():
            return True
        found = match(_CHUNKED, name)
        return found is not None and found["name"] in self and self.entry(found["name"]).has_chunks

    def entry(self, name: str) -> ScheduleEntry:
        """The entry of a schedule.

        Args:
            name: A name of the table, or `NAME:CHUNKS` for a number of stages on each rank.

        Raises:
            UnknownScheduleError: There is no schedule of this name.
            RegistrationError: The entry of an installed distribution cannot be loaded, or is not a
                valid entry.
        """
        if isinstance(name, str) and name not in self._entries and name in self._installed():
            self._entries[name] = self._loaded(self._installed()[name])
        if isinstance(name, str) and name not in self._entries and (found := match(_CHUNKED, name)):
            if name not in self._chunked:
                self._chunked[name] = self.entry(found["name"]).with_chunks(int(found["chunks"]))
            return self._chunked[name]
        if not isinstance(name, str) or name not in self._entries:
            raise UnknownScheduleError(
                f"a schedule is one of {', '.join(self.names())}, or registered by "
                f"pipesched.register_schedule; got name={name!r}"
            )
        return self._entries[name]

    def add(self, entry: ScheduleEntry) -> None:
        """Add a schedule to the table.

        Raises:
            RegistrationError: The entry is not valid, or another schedule has its name.
        """
        entry.check()
        if self._entries.get(entry.name, entry) != entry:
            raise RegistrationError(
                "a name belongs to one schedule, for all plans of a process; there is another "
                f"{entry.name} already: register it once, or give it another name"
            )
        if entry.name not in self._entries and entry.name in self._installed():
            raise RegistrationError(
                "a name belongs to one schedule; "
                f"{_whose(self._installed()[entry.name])} has another {entry.name}: give yours "
                "another name"
            )
        self._entries[entry.name] = entry

    def _installed(self) -> dict[str, EntryPoint]:
        """The entry points of installed distributions, by name."""
        if self._points is None:
            points: dict[str, EntryPoint] = {}
            for point in entry_points(group=GROUP):
                other = points.setdefault(point.name, point)
                if point.name in self._entries or other.value != point.value:
                    who = "another is there" if other == point else f"{_whose(other)} has another"
                    raise RegistrationError(
                        f"a name belongs to one schedule; {_whose(point)} has {point.name}, and "
                        f"{who}: uninstall what you do not need"
                    )
            self._points = points
        return self._points

    def _loaded(self, point: EntryPoint) -> ScheduleEntry:
        try:
            entry = point.load()
            if not isinstance(entry, ScheduleEntry) or entry.name != point.name:
                raise RegistrationError(
                    f"an entry point is the ScheduleEntry of its name; got {entry!r:.60}"
                )
            entry.check()
        except Exception as error:  # importing a distribution may raise anything
            raise RegistrationError(
                f"the schedules of installed distributions can be loaded; {point.name} of "
                f"{_whose(point)}, which is {point.value}, cannot: "
                f"{type(error).__name__}: {error}: repair or uninstall the distribution"
            ) from error
        return entry


def _whose(point: EntryPoint) -> str:
    """The name and version of the distribution that has an entry point."""
    dist = point.dist
    return "a distribution" if dist is None else f"{dist.name} {dist.version}"
