"""`Leader` and `Follower`: who decides which replica gets which version, and who does as it says.

Rank 0 of the publishers leads: it writes a log, which the other publishers and the subscribers read
in order, and takes part in the rounds itself.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from crossmesh.errors import PlanError
from crossmesh.sync.board import KEPT, Beat, Board, Pulse
from crossmesh.sync.session import Member, Round
from crossmesh.sync.versions import Versions

RETRY_S = 0.5
"""How long the leader waits after a round that failed, so that others notice who is gone."""


class TakePart(Protocol):
    """Does this process's part of a round; a failure is noted under the round's epoch."""

    def __call__(self, planned: Round, lost: Callable[[], str]) -> None:
        """`lost` says why it is of no use to go on; "" while it is."""


class Follower:
    """What publishers other than the leader do: what the log says, in its order."""

    def __init__(self, board: Board, run: str, versions: Versions, take_part: TakePart) -> None:
        self._board = board
        self._run = run
        self._versions = versions
        self._take_part = take_part
        self._position = 0

    def step(self) -> bool:
        """Do what the next entry of the log says; False if there is none yet.

        Raises:
            PlanError: The leader found that the publishers do not agree.
        """
        entry = self._board.read(f"{self._run}/log/{self._position}")
        if entry is None:
            return False
        self._position += 1
        if entry["kind"] == "version":
            self._versions.become_current(entry["version"])
        elif entry["kind"] == "failed":
            raise PlanError(entry["reason"])
        elif entry["kind"] == "settled":
            self._versions.settle(entry["version"], entry["replicas"])
        else:
            self._take_part(Round.of(entry, self._run), lambda: "")
        return True


@dataclass(slots=True)
class _Joined:
    """What the leader knows of a replica."""

    pulse: Pulse
    n_rounds: int = 0
    """In how many rounds it took part."""


class Leader:
    """What rank 0 of the publishers does: decides, writes the log, and takes part."""

    def __init__(
        self,
        board: Board,
        run: str,
        versions: Versions,
        take_part: TakePart,
        packed: Callable[[int], bool],
        silent_s: float,
    ) -> None:
        """Begin a log.

        Args:
            board: Where the log is.
            run: The run of the publishers.
            versions: The versions of this process.
            take_part: Does its part of a round.
            packed: Whether all publishers have kept a version; raises PlanError if they differ.
            silent_s: A replica of which nothing is heard for so many seconds is left out.
        """
        self._board = board
        self._run = run
        self._versions = versions
        self._take_part = take_part
        self._packed = packed
        self._silent_s = silent_s
        self._position = 0
        self._n_rounds = 0
        self._epoch = 0
        self._session_of: tuple[Member, ...] = ()
        self._n_joins = 0
        self._joined: dict[Member, _Joined] = {}
        self._there: set[Member] = set()
        self._settled_there: set[Member] | None = None
        """Those who all had the current version when somebody looked last."""
        self._was_tried = False
        """Whether there was a round for the current version."""
        self._beat = Beat(board)
        self._not_before_s = 0.0

    def step(self) -> bool:
        """One decision; False if there is nothing to decide.

        Raises:
            PlanError: The publishers do not agree.
        """
        self._look_for_replicas(also_leaving=self._beat.show(f"{self._run}/beats/leader"))
        return self._look_for_versions() or self._look_for_rounds()

    def _look_for_replicas(self, also_leaving: bool) -> None:
        before = self._there
        while (n := self._n_joins) < self._board.number(f"{self._run}/joins"):
            content = self._board.read(f"{self._run}/join/{n + 1}")
            if content is None:
                break  # it is being written
            self._n_joins = n + 1
            member = Member(*content)
            for old in [other for other in self._joined if other.replica == member.replica]:
                del self._joined[old]  # it was started again
            keys = [f"{self._run}/beats/{member.key}/{rank}" for rank in range(member.size)]
            self._joined[member] = _Joined(Pulse(self._board, keys, self._silent_s))
        for member in [*self._joined] if also_leaving else ():
            if self._board.has(f"{self._run}/left/{member.key}"):
                del self._joined[member]
        # One that is silent may come back: it was stopped, or its network was.
        self._there = {m for m, joined in self._joined.items() if not joined.pulse.silent}
        if before != self._there:
            names = sorted(member.replica for member in self._there)
            self._board.post(f"{self._run}/replicas", names)

    def _look_for_versions(self) -> bool:
        """Make the next version current once all publishers have kept it."""
        version, current = self._versions.following, self._versions.current
        try:
            if version is None or not self._packed(version):
                return False
        except PlanError as error:
            self._write({"kind": "failed", "reason": str(error)})
            raise
        if current >= 0 and self._versions.settled(current) is None:
            if self._may_still_get(current):
                return False
            self._settle(current)
        self._write({"kind": "version", "version": version})
        self._versions.become_current(version)
        self._was_tried = False
        behind = version - self._board.number("versions")
        self._board.count("versions", max(behind, 0))
        return True

    def _may_still_get(self, version: int) -> bool:
        """Whether a replica is about to get a version before the next takes its place."""
        return not (self._was_tried or self._versions.is_cancelled(version)) and any(
            self._have(member) != version and self._is_free(member) for member in self._there
        )

    def _look_for_rounds(self) -> bool:
        version = self._versions.current
        if version < 0 or time.monotonic() < self._not_before_s:
            return False
        is_new = self._versions.settled(version) is None
        if not is_new and self._there == self._settled_there:
            return False
        lacking = {
            member: have for member in self._there if (have := self._have(member)) != version
        }
        if not lacking or self._versions.is_cancelled(version):
            self._settled_there = set(self._there)
            if is_new:
                self._settle(version)
            return is_new
        alike: defaultdict[tuple[str, ...] | None, list[Member]] = defaultdict(list)
        for member, have in lacking.items():
            if self._is_free(member):
                alike[self._versions.changed_since(have)].append(member)
        for names, members in alike.items():
            self._round(version, tuple(sorted(members)), names)
        return bool(alike)

    def _round(
        self, version: int, members: tuple[Member, ...], names: tuple[str, ...] | None
    ) -> None:
        if members != self._session_of or self._board.has(f"{self._run}/broken/{self._epoch}"):
            self._epoch += 1
            self._session_of = members
        self._n_rounds += 1
        self._was_tried = True
        planned = Round(self._run, self._n_rounds, version, self._epoch, members, names)
        joined = {member: self._joined[member] for member in members}
        for of_member in joined.values():
            of_member.n_rounds += 1
        self._write(planned.to_json())
        for of_member in joined.values():
            of_member.pulse.begin_again()

        def lost() -> str:
            silent = [m.replica for m, of_member in joined.items() if of_member.pulse.silent]
            return f"nothing is heard of the replicas {silent}" if silent else ""

        self._take_part(planned, lost)
        if self._board.has(planned.broken):
            self._not_before_s = time.monotonic() + RETRY_S

    def _settle(self, version: int) -> None:
        having = sorted(m.replica for m in self._there if self._have(m) == version)
        self._write({"kind": "settled", "version": version, "replicas": having})
        self._versions.settle(version, having)

    def _have(self, member: Member) -> int:
        """The version that a replica has; -1 for none of this run."""
        have = self._board.read(f"{self._run}/have/{member.key}")
        return -1 if have is None else int(have)

    def _is_free(self, member: Member) -> bool:
        """Whether all ranks of a replica are ready to receive another version."""
        free = self._board.number(f"{self._run}/free/{member.key}")
        return free == member.size * (1 + self._joined[member].n_rounds)

    def _write(self, entry: dict[str, Any]) -> None:
        self._board.post(f"{self._run}/log/{self._position}", entry)
        self._position += 1
        self._board.post(f"{self._run}/position", self._position)
        self._board.forget(f"{self._run}/log/{self._position - KEPT}")
