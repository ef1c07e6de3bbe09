"""`Versions`: the versions that a publisher has kept, and what became of them."""

import threading
from collections.abc import Mapping, Sequence

from crossmesh.base.geometry import Box
from crossmesh.errors import MissingExtraError
from crossmesh.sync.board import KEPT

try:
    import torch
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None

Kept = Mapping[str, Sequence[tuple[Box, torch.Tensor]]]
"""The parts of a version that a process has kept."""

MOST_KEPT = 2
"""The versions that a process keeps: the one that is sent, and the next one."""


class Versions:
    """The versions of a publisher; the caller's thread adds some, its own thread drops them.

    Attributes:
        changed: A condition that is notified after every change.
        current: The version that is sent; -1 before the first.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.current = -1
        self._kept: dict[int, Kept] = {}
        self._names: dict[int, tuple[str, ...] | None] = {}
        self._settled: dict[int, tuple[str, ...]] = {}
        self._cancelled: set[int] = set()

    def keep(self, version: int, kept: Kept, names: tuple[str, ...] | None) -> None:
        """Add a version, of which only some tensors changed; None: all may have."""
        with self.changed:
            self._kept[version] = kept
            self._names[version] = names

    def kept(self, version: int) -> Kept | None:
        """The parts of a version; None if it is not kept any more."""
        return self._kept.get(version)

    @property
    def is_full(self) -> bool:
        """Whether another version has to wait."""
        return len(self._kept) >= MOST_KEPT

    @property
    def following(self) -> int | None:
        """The first version that is kept beyond the current one."""
        with self.changed:
            return min((kept for kept in self._kept if kept > self.current), default=None)

    def become_current(self, version: int) -> None:
        """Drop older versions: no round begins for them any more."""
        with self.changed:
            self.current = version
            for old in [kept for kept in self._kept if kept < version]:
                del self._kept[old]
            self._cancelled = {one for one in self._cancelled if one >= version}
            for notes in (self._names, self._settled):
                for old in [*notes][:-KEPT]:
                    del notes[old]
            self.changed.notify_all()

    def settle(self, version: int, replicas: Sequence[str]) -> None:
        """Note the replicas that have a version, once no other is going to get it."""
        with self.changed:
            self._settled[version] = tuple(replicas)
            self.changed.notify_all()

    def settled(self, version: int) -> tuple[str, ...] | None:
        """The replicas that have a version; None while others are about to get it."""
        known = self._settled.get(version)
        return () if known is None and version < self.current else known

    def cancel(self, version: int) -> None:
        """Let nobody get a version any more."""
        with self.changed:
            self._cancelled.add(version)

    def is_cancelled(self, version: int) -> bool:
        """Whether nobody is to get it any more."""
        return version in self._cancelled

    def names(self, version: int) -> tuple[str, ...] | None:
        """The tensors that changed in a version; None: all may have."""
        return self._names[version]

    def changed_since(self, version: int) -> tuple[str, ...] | None:
        """The tensors that changed after a version until the current one; None: all may have."""
        if version not in self._names:
            return None
        with self.changed:
            since = [names for one, names in self._names.items() if version < one <= self.current]
        changed: set[str] = set()
        for names in since:
            if names is None:
                return None
            changed.update(names)
        return tuple(sorted(changed))
