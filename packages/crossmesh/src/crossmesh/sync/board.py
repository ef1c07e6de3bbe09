"""`Board`: what the jobs of a sync tell each other, by the keys of a store.

The leader, which is rank 0 of the publishers, writes a log; all others read it in order. Nobody
else decides who takes part in what, so no two processes can disagree.

    publisher                            the run of the publishers that is current
    RUN/holds/RANK                       the boxes that a publisher has
    RUN/packed/VERSION                   how many publishers have kept a version
    RUN/log/NUMBER, RUN/position         the log, and how long it is
    RUN/joins, RUN/join/NUMBER           the replicas of the engine that joined
    RUN/needs/REPLICA/RANK               the boxes that a subscriber needs
    RUN/beats/REPLICA/RANK               a number that grows while a process lives
    RUN/free/REPLICA                     how often its ranks were ready for another version
    RUN/got, lost, verdict/ROUND/REPLICA whether all its ranks have received a version
    RUN/have/REPLICA                     the version that it has
    RUN/dropped/REPLICA/ROUND            that it waits for a later one than it has received
    RUN/groups/EPOCH                     where gloo meets
"""

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

from crossmesh.base.whole import whole_number
from crossmesh.errors import DeadlineError, MissingExtraError, PlanError, TransportError

try:
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, Store
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None

NAP_S = 1e-2
"""How often a process looks whether a key is there. A store could wait itself, but all other calls
of the same client would wait with it."""

KEPT = 10_000
"""How many entries of a log, and rounds of a replica, a store keeps: nobody is so far behind."""

BEAT_S = 0.5
"""How often a process shows that it lives."""


class Board:
    """A store, and the names under which the jobs of one sync use it."""

    def __init__(self, store: Store, name: str) -> None:
        if not isinstance(store, Store):
            raise PlanError(
                "jobs meet by a store of torch.distributed, such as TCPStore or FileStore; "
                f"got {type(store).__name__}"
            )
        # While one waits by a client of a TCPStore, all other calls of this client wait, too.
        self.store = PrefixStore(f"crossmesh/{name}", own_client(store))

    def post(self, key: str, value: Any) -> None:
        """Write a value, which JSON can express."""
        self._ask(lambda: self.store.set(key, json.dumps(value)))

    def read(self, key: str) -> Any:
        """The value of a key; None if nobody has written it yet."""
        return json.loads(self._ask(lambda: self.store.get(key))) if self.has(key) else None

    def has(self, key: str) -> bool:
        """Whether somebody has written the key."""
        return bool(self._ask(lambda: self.store.check([key])))

    def count(self, key: str, more: int) -> int:
        """Add to a number, which begins as 0; returns the sum."""
        return int(self._ask(lambda: self.store.add(key, more)))

    def number(self, key: str) -> int:
        """A number that `count` adds to; a file would grow if 0 was added to it."""
        return int(self._ask(lambda: self.store.get(key))) if self.has(key) else 0

    def forget(self, key: str) -> None:
        """Remove a key that nobody reads any more."""
        self._ask(lambda: self.store.delete_key(key))

    def until(
        self,
        found: Callable[[], Any],
        deadline_s: float,
        waiting_for: Callable[[], str],
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        """Ask again and again until there is an answer.

        Args:
            found: Returns the answer, or None.
            deadline_s: Seconds from now until which there has to be one.
            waiting_for: Says for whom or what, for the error.
            meanwhile: Called again and again.

        Raises:
            DeadlineError: There was none in time.
        """
        until_s = time.monotonic() + deadline_s
        while (answer := found()) is None:
            if time.monotonic() > until_s:
                raise DeadlineError(f"waited {deadline_s:g} s for {waiting_for()}")
            meanwhile()
            time.sleep(NAP_S)
        return answer

    def _ask(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except RuntimeError as error:  # torch's DistError derives from it
            reason = str(error).splitlines()[0]
            raise TransportError(f"the store that the jobs meet by failed: {reason}") from error


def own_client(store: Store) -> Store:
    """Another client of the same store, whose calls wait for nobody else's."""
    client: Store = cast("Any", store).clone()
    return client


@dataclass(frozen=True, slots=True)
class Job:
    """One process of a job of several."""

    run_id: str
    """Differs from start to start of the job, and is the same on all its ranks."""
    rank: int
    size: int
    host: str
    """Name of the network interface that it shares with others."""


def job_of(run_id: str | None, rank: int | None, size: int | None, host: str | None) -> Job:
    """This process and its job; what is not given is that of `torch.distributed`.

    Raises:
        PlanError: A rank comes without a size or a run, or is none of that size.
    """
    host = socket.gethostname() if host is None else host
    if rank is None and size is None:
        if not dist.is_initialized():
            return Job(run_id or uuid4().hex, 0, 1, host)
        agreed = [run_id or uuid4().hex]
        if run_id is None:
            dist.broadcast_object_list(agreed, src=0)
        return Job(agreed[0], dist.get_rank(), dist.get_world_size(), host)
    if rank is None or size is None or (run_id is None and size != 1):
        raise PlanError(
            "a process of a job without torch.distributed has a rank, a size, and a run_id that "
            f"differs from start to start; got {rank=}, {size=}, {run_id=}"
        )
    rank, size = whole_number("a rank", rank), whole_number("a size", size)
    if not 0 <= rank < size:
        raise PlanError(f"ranks are from 0 to size - 1; got {rank=} and {size=}")
    return Job(run_id or uuid4().hex, rank, size, host)


def check_unused(board: Board, key: str, job: Job) -> None:
    """Refuse a run that was there before.

    Raises:
        PlanError: A process of the same run wrote the key.
    """
    if board.has(key):
        raise PlanError(
            "a run_id differs from start to start; "
            f"got {job.run_id!r}, with which rank {job.rank} was there before; add a number to it"
        )


class Beat:
    """Shows the others that this process lives."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._count = 0
        self._next_s = 0.0

    def show(self, key: str) -> bool:
        """Do so, unless it was just done; returns whether it was not."""
        is_due = time.monotonic() >= self._next_s
        if is_due:
            self._next_s = time.monotonic() + BEAT_S
            self._count += 1
            self._board.post(key, self._count)
        return is_due


class Pulse:
    """Whether processes live: their numbers have grown within some seconds."""

    def __init__(self, board: Board, keys: list[str], silent_s: float) -> None:
        self._board = board
        self._silent_s = silent_s
        self._seen = {key: (-1, time.monotonic()) for key in keys}
        self._next_s = 0.0

    def begin_again(self) -> None:
        """Take all of them as just heard of."""
        self._seen = {key: (count, time.monotonic()) for key, (count, _) in self._seen.items()}

    @property
    def silent(self) -> list[int]:
        """The ranks of which nothing was heard for too long; asks the store now and then."""
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + BEAT_S
            for key, (count, _) in self._seen.items():
                latest = self._board.read(key)
                if latest is not None and latest != count:
                    self._seen[key] = (latest, now)
        times = [seen_s for _, seen_s in self._seen.values()]
        return [rank for rank, seen_s in enumerate(times) if now - seen_s > self._silent_s]


def seconds(name: str, value: float) -> float:
    """A number of seconds above 0.

    Raises:
        PlanError: It is none.
    """
    try:
        if timedelta(seconds=value) > timedelta():
            return float(value)
    except (TypeError, OverflowError, ValueError):
        pass
    raise PlanError(f"{name} is a number of seconds above 0, not of many years; got {value!r}")
