"""`Subscriber`: the side of the engine, which gets versions of weights and switches to them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from shardspec.amounts import bytes_text

from crossmesh.errors import DeadlineError, MissingExtraError, PlanError, TransferError
from crossmesh.sync.board import KEPT, Beat, Pulse, check_unused
from crossmesh.sync.buffers import check
from crossmesh.sync.cells import streams_of
from crossmesh.sync.session import Round, RoundPlan, Session, needs_to_json, read_holds
from crossmesh.sync.side import Side
from crossmesh.sync.states import State, nested_like
from crossmesh.sync.targets import Targets, WeightMap

try:
    from torch._C._distributed_c10d import Store
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None

SWITCHES = 1000
"""How many calls of `apply` rank 0 may be ahead of the other ranks of its replica."""


class _Pending(NamedTuple):
    """A version that has arrived on all ranks of the replica, and is not applied yet."""

    version: int
    number: int
    """Of the round in which it arrived."""
    route: RoundPlan
    received: dict[int, npt.NDArray[np.uint8]]
    names: tuple[str, ...] | None


class Subscriber(Side):
    """Gets versions of weights in a thread of its own, and puts them in place when it is told to.

    Each process of a replica of the engine makes one. A version arrives beside the weights that are
    in use; `apply`, which all ranks of the replica call at the same point between two steps, puts
    it in their place. So a step sees one version, on all ranks the same.
    """

    def __init__(
        self,
        state: State,
        store: Store,
        weights: WeightMap | None = None,
        *,
        name: str = "weights",
        replica: str = "engine",
        run_id: str | None = None,
        rank: int | None = None,
        size: int | None = None,
        host: str | None = None,
        deadline_s: float = 300.0,
        connect_s: float = 20.0,
        silent_s: float = 5.0,
    ) -> None:
        """Join; waits until there is a publisher. With torch.distributed, all ranks call it.

        Args:
            state: The tensors that are to be updated, by name, or a module: tensors, DTensors and
                numpy's arrays in place; of JAX, `state` has new arrays after each version.
            store: Where the jobs meet, as for the publisher.
            weights: Says where each tensor comes from. None: from the published one of its name.
                `crossmesh.sync.maps.engine` knows engines that fuse projections and experts.
            name: As for the publisher.
            replica: Tells several engines apart, which get the same weights. One that was started
                again takes the place of the one of its name.
            run_id: As for the publisher.
            rank: The rank of this process in its replica.
            size: The number of processes of the replica.
            host: As for the publisher.
            deadline_s: Seconds that a version may take, and a publisher to be there.
            connect_s: Seconds that the processes of a job, or those of a round, may take to meet.
            silent_s: Nothing was heard of a publisher for so many seconds: it is gone.

        Raises:
            DeadlineError: There was no publisher, or other ranks of the replica did not come.
            ShardError: A value is no tensor or array.
            PlanError: A tensor is not published; see `View` and `Targets`.
            TransportError: The store cannot be reached.
        """
        if not isinstance(replica, str) or "/" in replica or not replica:
            raise PlanError(f"a replica has a name, a text without slashes; got {replica!r}")
        super().__init__(store, name, (run_id, rank, size, host), deadline_s, connect_s, silent_s)
        self._replica = replica
        self._key = f"{replica}/{self._job.run_id}"
        self._state = state
        self._weights = weights
        self._pending: _Pending | None = None
        self._version = -1
        self._applied_in_run = -1
        self._wanted = 0
        self._calls = 0
        self._beat = Beat(self._board)
        self._run = ""
        self._n_publishers = 0
        self._position = 0
        publisher = self._board.until(
            lambda: self._board.read("publisher"),
            self._deadline_s,
            lambda: f"a publisher of {name!r}; start one, with the same store and name",
        )
        own = f"subscribers/{self._key}/{self._job.rank}"
        check_unused(self._board, own, self._job)
        self._targets = self._register(publisher)
        self._board.post(own, True)
        self._start()

    @property
    def version(self) -> int:
        """The version that is in place; -1 before the first."""
        return self._version

    @property
    def pending(self) -> int | None:
        """The version that has arrived and is not in place yet; None if there is none."""
        pending = self._pending
        return None if pending is None else pending.version

    @property
    def state(self) -> dict[str, object]:
        """The tensors as they were given; those of JAX are other ones after each version."""
        values = self._targets.values
        return nested_like(self._state, values) if isinstance(self._state, Mapping) else values

    def wait(self, version: int = 0, deadline_s: float | None = None) -> int:
        """Wait until a version has arrived, or is in place; `apply` then puts it in place.

        Args:
            version: The oldest version that will do. An older one that has arrived makes room.
            deadline_s: Seconds from now; None: as the subscriber has it.

        Returns:
            The latest version that is here.

        Raises:
            DeadlineError: None has arrived in time; says what is known of the publisher.
            TransferError: The subscriber failed.
        """
        limit_s = self._limit_s(deadline_s)
        with self._lock:
            self._wanted = max(self._wanted, version)
            arrived = self._lock.wait_for(
                lambda: self._latest >= version or self._error or self._stopped, limit_s
            )
        if not arrived or self._latest < version:
            self._raise()
            gone = " of which nothing is heard" if self._publisher.silent else ""
            raise DeadlineError(
                f"waited {limit_s:g} s for version {version} from a publisher{gone}; "
                f"version {self._latest} is here{self._why()}"
            )
        return self._latest

    def apply(self, deadline_s: float | None = None) -> int | None:
        """Put the version that has arrived in place, if there is one; all ranks call it together.

        Returns:
            The version, on all ranks the same; None if there was nothing new.

        Raises:
            DeadlineError: Other ranks of the replica did not call it, or did not get the version.
            ShardError: The tensors are not as before, or arrays of JAX were donated. Nothing was
                written here; another call is the same one for the other ranks.
            TransferError: The subscriber failed; unless the message says otherwise, the weights
                are those of `version`.
        """
        limit_s = self._limit_s(deadline_s)
        self._raise()
        with self._lock:  # before the ranks agree, so that all of them or none switch
            self._targets.look_again(self._state)
        wanted = self.pending
        if self._job.size > 1:
            wanted = self._agreed(limit_s)
        if wanted is None:
            return None
        with self._lock:
            pending = self._pending
            if pending is None or pending.version != wanted:
                raise TransferError(
                    f"all ranks of a replica have the same versions; rank {self._job.rank} of "
                    f"{self._replica!r} lacks version {wanted}; start the replica again"
                )
            try:
                self._targets.write(pending.route.streams, pending.received, pending.names)
            except Exception as error:
                self._error = error
                raise TransferError(
                    f"version {wanted} is only partly in place: {error}; start the replica again"
                ) from error
            self._pending = None
            self._version = self._applied_in_run = wanted
        self._board.count(f"{self._run}/free/{self._key}", 1)
        return wanted

    def __repr__(self) -> str:
        coming = "" if self.pending is None else f", {self.pending} has arrived"
        return (
            f"<subscriber {self._replica!r} rank {self._job.rank} of {self._job.size}: "
            f"{len(self._targets.values)} tensors, {bytes_text(self._targets.n_bytes)} here, "
            f"version {self._version}{coming}>"
        )

    @property
    def _latest(self) -> int:
        pending = self.pending
        return self._version if pending is None else pending

    def _agreed(self, limit_s: float) -> int | None:
        """The version that rank 0 of the replica switches to at this call."""
        call = self._calls
        key = f"switches/{self._key}/{call}"
        if self._job.rank == 0:
            wanted = self.pending
            self._board.post(key, {"version": wanted})
            if call >= SWITCHES:
                self._board.forget(f"switches/{self._key}/{call - SWITCHES}")
            self._calls += 1
            return wanted
        switch = self._board.until(
            lambda: self._board.read(key),
            limit_s,
            lambda: f"rank 0 of replica {self._replica!r} to call apply",
        )
        version: int | None = switch["version"]
        if version is not None:
            with self._lock:
                self._lock.wait_for(
                    lambda: self.pending == version or self._error or self._stopped, limit_s
                )
            self._raise()
        self._calls += 1
        return version

    def _register(self, publisher: dict[str, Any]) -> Targets:
        """Tell the publishers of a run what this process needs.

        If the trainer is started again meanwhile, this ends early; the thread then sees the new
        run, as all ranks of the replica do.
        """
        board, job, run = self._board, self._job, publisher["run"]
        holds = read_holds(board, run, publisher["size"])
        targets = Targets(self._state, holds.published, self._weights)
        needs = targets.needs
        streams_of({sent: holds.of(sent) for sent in needs}, {s: {-1: b} for s, b in needs.items()})
        self._run, self._n_publishers = run, publisher["size"]
        self._applied_in_run = -1  # a version of another run may have had other weights
        self._publisher = Pulse(board, [f"{run}/beats/leader"], self._silent_s)
        self._position = board.read(f"{run}/position") or 0
        self._beat = Beat(board)
        self._beat.show(f"{run}/beats/{self._key}/{job.rank}")
        record = {"needs": needs_to_json(needs), "host": job.host}
        board.post(f"{run}/needs/{self._key}/{job.rank}", record)
        board.count(f"{run}/free/{self._key}", 1)
        if job.rank == 0:
            board.until(
                lambda: not self._missing() or board.read("publisher")["run"] != run or None,
                self._connect_s,
                lambda: f"ranks {self._missing()} of replica {self._replica!r} to join",
            )
            if not self._missing():
                number = board.count(f"{run}/joining", 1)
                board.post(f"{run}/join/{number}", [self._replica, job.run_id, job.size])
                board.count(f"{run}/joins", 1)
        return targets

    def _missing(self) -> list[int]:
        ranks, run = range(self._job.size), self._run
        return [r for r in ranks if not self._board.has(f"{run}/needs/{self._key}/{r}")]

    def _leave(self) -> None:
        self._board.post(f"{self._run}/left/{self._key}", True)

    def _step(self) -> bool:
        self._make_room()
        if self._beat.show(f"{self._run}/beats/{self._key}/{self._job.rank}"):
            publisher = self._board.read("publisher")
            # What a new trainer sends would overwrite what has arrived.
            if publisher["run"] != self._run and self._pending is None:
                self._leave_session()
                self._targets = self._register(publisher)
                return True
        entry = self._board.read(f"{self._run}/log/{self._position}")
        if entry is None:
            return False
        self._position += 1
        if entry["kind"] == "round":
            planned = Round.of(entry, self._run)
            if any(member.key == self._key for member in planned.members):
                self._take_part(planned)
        return True

    def _make_room(self) -> None:
        """Drop a version that is older than what is waited for; rank 0 of the replica decides."""
        with self._lock:
            pending = self._pending
            if pending is None:
                return
            key = f"{self._run}/dropped/{self._key}/{pending.number}"
            if self._job.rank == 0 and pending.version < self._wanted:
                self._board.post(key, True)
                self._board.post(f"{self._run}/have/{self._key}", self._applied_in_run)
            elif self._job.rank == 0 or not self._board.has(key):
                return  # other ranks follow rank 0
            self._pending = None
        self._board.count(f"{self._run}/free/{self._key}", 1)

    def _take_part(self, planned: Round) -> None:
        """This process's part of a round."""
        place = f"{planned.number}/{self._key}"
        pending = None
        try:
            pending = self._receive(planned)
            self._board.count(f"{self._run}/got/{place}", 1)
        except Exception as error:
            self._board.post(f"{self._run}/lost/{place}", True)
            self._note_failure(planned, error)
            if not isinstance(error, TransferError):
                raise
        is_committed = self._is_committed(place)
        if self._job.rank == 0:
            for what in ("got", "lost", "verdict"):
                self._board.forget(f"{self._run}/{what}/{planned.number - KEPT}/{self._key}")
        if is_committed and pending is not None:
            if self._job.rank == 0:
                self._board.post(f"{self._run}/have/{self._key}", planned.version)
            with self._lock:
                self._pending = pending
                self._last_failure = None
                self._lock.notify_all()
        else:
            self._board.count(f"{self._run}/free/{self._key}", 1)

    def _receive(self, planned: Round) -> _Pending:
        if self._session is None or self._session.epoch != planned.epoch:
            self._leave_session()
            holds = read_holds(self._board, self._run, self._n_publishers)
            self._session = Session(self._board, planned, holds)
        session = self._session
        rank = self._job.rank + session.first_rank(planned.members, self._key)
        session.connect(rank, self._connect_s)
        route = session.route(planned.names)
        out = {
            i: np.empty(stream.n_bytes, np.uint8)
            for i, stream in enumerate(route.streams)
            if rank in stream.receivers
        }
        session.move(route, {}, out, self._deadline_s, self._over)
        for i, content in out.items():
            check(route.streams[i], content, planned.version)
        return _Pending(planned.version, planned.number, route, out, planned.names)

    def _over(self) -> str:
        self._beat.show(f"{self._run}/beats/{self._key}/{self._job.rank}")
        return "a subscriber was closed" if self._stopped else ""

    def _is_committed(self, place: str) -> bool:
        """Whether all ranks of the replica have received a version; rank 0 decides."""
        board, run = self._board, self._run
        verdict = f"{run}/verdict/{place}"

        def show() -> None:
            self._beat.show(f"{run}/beats/{self._key}/{self._job.rank}")

        def decided() -> bool | None:
            if board.has(f"{run}/lost/{place}"):
                return False
            return True if board.number(f"{run}/got/{place}") == self._job.size else None

        try:
            if self._job.rank == 0:
                committed = board.until(decided, self._deadline_s, str, show)
                board.post(verdict, committed)
            else:
                committed = board.until(
                    lambda: board.read(verdict), self._deadline_s + self._silent_s, str, show
                )
        except DeadlineError:
            committed = False
            if self._job.rank == 0:
                board.post(verdict, False)
        return bool(committed)
