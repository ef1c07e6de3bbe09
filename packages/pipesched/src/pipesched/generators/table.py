"""Tables of schedules: ours, those that users register, and those of installed distributions.

A distribution has schedules as entry points of the group `pipesched.schedules`, each a
`ScheduleEntry` under its name. They are found when a table is asked for what it does not have, or
for all of its names, and each is loaded when it is asked for, once. An entry stays what it is for
the life of the process, so that whatever is kept by the name of a schedule stays right.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from pipesched.errors import RegistrationError, UnknownScheduleError
from pipesched.generators.entry import ScheduleEntry

GROUP = "pipesched.schedules"
"""Of the entry points of distributions that have schedules."""


class ScheduleTable:
    """Schedules by name.

    Args:
        entries: Those to begin with, which are believed to be right.
    """

    def __init__(self, entries: Iterable[ScheduleEntry]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._points: dict[str, EntryPoint] | None = None

    def names(self) -> tuple[str, ...]:
        """All names, those of installed distributions last; nothing is loaded.

        Raises:
            RegistrationError: Distributions have schedules of the same name.
        """
        return tuple(dict.fromkeys((*self._entries, *self._installed())))

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self._installed()

    def entry(self, name: str) -> ScheduleEntry:
        """The entry of a schedule.

        Raises:
            UnknownScheduleError: There is none of that name.
            RegistrationError: It is that of a distribution, and cannot be loaded or is none.
        """
        if isinstance(name, str) and name not in self._entries and name in self._installed():
            self._entries[name] = self._loaded(self._installed()[name])
        if not isinstance(name, str) or name not in self._entries:
            raise UnknownScheduleError(
                f"a schedule is one of {', '.join(self.names())}, or registered by "
                f"pipesched.register_schedule; got name={name!r}"
            )
        return self._entries[name]

    def add(self, entry: ScheduleEntry) -> None:
        """Have one more schedule from now on.

        Raises:
            RegistrationError: It is none, or another one has its name.
        """
        entry.check()
        if self._entries.get(entry.name, entry) != entry:
            raise RegistrationError(
                "a name is that of one schedule, for all plans of a process; there is another "
                f"{entry.name} already: register it once, or call it something else"
            )
        if entry.name not in self._entries and entry.name in self._installed():
            raise RegistrationError(
                "a name is that of one schedule; "
                f"{_whose(self._installed()[entry.name])} has another {entry.name}: call yours "
                "something else"
            )
        self._entries[entry.name] = entry

    def _installed(self) -> dict[str, EntryPoint]:
        """The schedules of distributions, by name."""
        if self._points is None:
            found: dict[str, EntryPoint] = {}
            for point in entry_points(group=GROUP):
                other = found.setdefault(point.name, point)
                if point.name in self._entries or other.value != point.value:
                    who = "another is there" if other == point else f"{_whose(other)} has another"
                    raise RegistrationError(
                        f"a name is that of one schedule; {_whose(point)} has {point.name}, and "
                        f"{who}: uninstall what you do not need"
                    )
            self._points = found
        return self._points

    def _loaded(self, point: EntryPoint) -> ScheduleEntry:
        try:
            entry = point.load()
            if not isinstance(entry, ScheduleEntry) or entry.name != point.name:
                raise RegistrationError(
                    f"an entry point is the ScheduleEntry of its name; got {entry!r:.60}"
                )
            entry.check()
        except Exception as error:  # whatever a distribution does when it is imported
            raise RegistrationError(
                f"the schedules of installed distributions can be loaded; {point.name} of "
                f"{_whose(point)}, which is {point.value}, cannot: "
                f"{type(error).__name__}: {error}: mend or uninstall the distribution"
            ) from error
        return entry


def _whose(point: EntryPoint) -> str:
    """The distribution that has an entry point."""
    dist = point.dist
    return "a distribution" if dist is None else f"{dist.name} {dist.version}"
