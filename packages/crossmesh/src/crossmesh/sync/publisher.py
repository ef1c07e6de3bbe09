"""`Publisher`: the side of the trainer, which publishes versions of its weights."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable

from shardspec.amounts import bytes_text

from crossmesh.base.geometry import Box
from crossmesh.base.whole import whole_number
from crossmesh.errors import DeadlineError, MissingExtraError, PlanError, ShardError, TransferError
from crossmesh.sync.board import check_unused
from crossmesh.sync.buffers import pack
from crossmesh.sync.leader import Follower, Leader
from crossmesh.sync.session import Round, Session, read_holds
from crossmesh.sync.side import Side
from crossmesh.sync.states import LocalParts, State, as_tensor, checked, tied, with_tied
from crossmesh.sync.versions import Kept, Versions

try:
    import torch
    from torch._C._distributed_c10d import Store
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None


class Publication:
    """A version that was published.

    Attributes:
        version: Its number.
    """

    def __init__(self, publisher: "Publisher", version: int) -> None:
        self.version = version
        self._publisher = publisher

    @property
    def done(self) -> bool:
        """Whether all replicas that are there have it, or a later version takes its place."""
        return self._publisher._versions.settled(self.version) is not None

    def wait(self, deadline_s: float | None = None) -> tuple[str, ...]:
        """Wait until all replicas that are there have it, or a later version takes its place.

        Args:
            deadline_s: Seconds from now; None: as the publisher has it.

        Returns:
            The replicas that have it.

        Raises:
            DeadlineError: They do not have it in time; the message says why, if it is known.
            TransferError: The publisher failed.
        """
        return self._publisher._wait_settled(self.version, deadline_s)

    def cancel(self) -> None:
        """Send it to nobody any more; replicas that are receiving it keep what they had.

        Only rank 0 of the trainer decides who gets what, so on other ranks it does nothing until
        rank 0 calls it, too.
        """
        self._publisher._versions.cancel(self.version)

    def __repr__(self) -> str:
        return f"<version {self.version}, {'done' if self.done else 'on its way'}>"


class Publisher(Side):
    """Publishes versions of weights to all subscribers, in a thread of its own.

    Each process of the trainer makes one. They keep a copy of each version, so that the weights may
    change while it is sent, and replicas of the engine that come late get the latest one.
    """

    def __init__(
        self,
        state: State,
        store: Store,
        *,
        name: str = "weights",
        run_id: str | None = None,
        rank: int | None = None,
        size: int | None = None,
        host: str | None = None,
        deadline_s: float = 300.0,
        connect_s: float = 20.0,
        silent_s: float = 5.0,
    ) -> None:
        """Say what this process has of the weights; with torch.distributed, all ranks call it.

        Args:
            state: The weights by name, or a module: DTensors, tensors, or arrays of numpy or JAX.
                Tensors and numpy's arrays are whole here; ranks that have the same elements have
                equal ones.
            store: Where the jobs meet: a TCPStore, a FileStore, or another.
            name: Tells several syncs of one store apart.
            run_id: A text that differs from start to start of the trainer, and is the same on all
                its ranks. None: agreed on by torch.distributed.
            rank: The rank of this process. None: that of torch.distributed, or 0 without.
            size: The number of processes of the trainer.
            host: Name of the machine; None: the name that it has. Bytes cross to a machine once.
            deadline_s: Seconds that a version may take to the subscribers.
            connect_s: Seconds that the processes of a job, or those of a round, may take to meet.
            silent_s: A subscriber of which nothing is heard for so many seconds is left out.

        Raises:
            ShardError: A value is no tensor or array.
            PlanError: The store is none, or a rank or a number of seconds does not fit.
            TransportError: The store cannot be reached.
        """
        self._state = state
        self._parts = checked(state)
        super().__init__(store, name, (run_id, rank, size, host), deadline_s, connect_s, silent_s)
        self._run = f"runs/{self._job.run_id}"
        self._publishing = threading.Lock()
        self._versions = Versions(self._lock)
        self._last = -1
        self._register()
        role = (self._board, self._run, self._versions, self._take_part)
        self._role: Leader | Follower = Follower(*role)
        if self.is_leader:
            self._role = Leader(*role, self._is_packed, self._silent_s)
        self._start()

    @property
    def is_leader(self) -> bool:
        """Whether this process decides who gets what."""
        return self._job.rank == 0

    @property
    def version(self) -> int:
        """The last version that this process published, or the last one of the run before."""
        return self._last

    @property
    def replicas(self) -> tuple[str, ...]:
        """The replicas that have joined since this trainer began, without those that are gone."""
        found = self._board.read(f"{self._run}/replicas")
        return tuple(found or ())

    def wait_for(self, replicas: int, deadline_s: float | None = None) -> tuple[str, ...]:
        """Wait until so many replicas of the engine have joined.

        Raises:
            DeadlineError: Fewer did.
        """

        def enough() -> tuple[str, ...] | None:
            self._raise()
            return found if len(found := self.replicas) >= replicas else None

        joined: tuple[str, ...] = self._board.until(
            enough,
            self._limit_s(deadline_s),
            lambda: f"{replicas} replicas to join; there are {list(self.replicas)}",
        )
        return joined

    def publish(
        self,
        state: State | None = None,
        *,
        names: Iterable[str] | None = None,
        version: int | None = None,
    ) -> Publication:
        """Publish the weights as they are now; all ranks of the trainer call it.

        It copies them, and returns; they are sent meanwhile. A replica that has not got the version
        before gets this one instead.

        Args:
            state: The weights, if they are other objects than before, as arrays of JAX are after
                each step, and tensors of a `state_dict` once a parameter got other memory. They
                have the same names, shapes, types and layouts.
            names: The tensors that changed since the last version, such as those of LoRA: only they
                and others in the same memory, as tied weights are, are sent to replicas that have
                the last version. None: all, as in the first version.
            version: A number above that of the last version. None: the next one.

        Raises:
            PlanError: The version is not above the last one, or a name is unknown.
            ShardError: The state is not as before.
            DeadlineError: Other ranks of the trainer do not publish.
            TransferError: The publisher failed before.
        """
        with self._publishing:
            return self._publish(state, names, version)

    def _publish(
        self, state: State | None, names: Iterable[str] | None, version: int | None
    ) -> Publication:
        self._raise()
        if isinstance(names, str):
            raise PlanError(f"names are several texts; got the text {names!r}; pass [{names!r}]")
        names = None if names is None else [*names]
        self._look_again(self._state if state is None else state)
        last = self._last
        number = last + 1 if version is None else whole_number("a version", version)
        if not last < number < 2**63:
            raise PlanError(
                f"a version is above the last one, and below 2**63; got {number} after {last}"
            )
        if names is not None:
            for unknown in sorted(set(names) - self._holds.shapes.keys()):
                raise PlanError(f"only published tensors change; got the name {unknown!r}")
            if tied(self._parts) != self._tied:
                raise ShardError(
                    "names go together of tensors that shared their memory when the publisher was "
                    f"made, as tied weights do; got {tied(self._parts)} after {self._tied}; "
                    "publish without names, or make another publisher"
                )
        before = self._versions.kept(last)
        with self._lock:
            has_room = self._lock.wait_for(
                lambda: not self._versions.is_full or self._error or self._stopped,
                self._deadline_s,
            )
        self._raise()
        if not has_room:
            raise DeadlineError(
                f"two versions may be on their way; waited {self._deadline_s:g} s for all "
                f"{self._job.size} ranks of the trainer to publish version {last}, or for replicas "
                f"{list(self.replicas)} to receive the one before{self._why()}"
            )
        if names is None or before is None:
            changed = None
            kept: Kept = {name: _copies(parts) for name, parts in self._parts.items()}
        else:
            # On all ranks the same, whichever tensors a rank has.
            changed = tuple(sorted(with_tied(set(names), self._holds.tied)))
            fresh = {name: _copies(self._parts[name]) for name in changed if name in self._parts}
            kept = dict(before) | fresh
        self._versions.keep(number, kept, changed)
        self._last = number
        for key in (self._packed_alike(number), f"{self._run}/packed/{number}"):
            self._board.count(key, 1)
        return Publication(self, number)

    def _is_packed(self, version: int) -> bool:
        """Whether all publishers have kept a version.

        Raises:
            PlanError: They published other tensors.
        """
        size = self._job.size
        if self._board.number(f"{self._run}/packed/{version}") < size:
            return False
        if self._board.number(self._packed_alike(version)) < size:
            raise PlanError(
                f"all ranks publish the same names; some have others in version {version}; "
                "make another publisher"
            )
        return True

    def _packed_alike(self, version: int) -> str:
        """The key that counts the ranks that published the same tensors as this one."""
        names = json.dumps(self._versions.names(version))
        return f"{self._run}/packed/{version}/{hashlib.sha256(names.encode()).hexdigest()}"

    def __repr__(self) -> str:
        n_bytes = sum(parts.n_bytes for parts in self._parts.values())
        return (
            f"<publisher rank {self._job.rank} of {self._job.size}: {len(self._parts)} tensors, "
            f"{bytes_text(n_bytes)} here, version {self._last}>"
        )

    def _register(self) -> None:
        """Say what this process holds, and wait until all others have done so."""
        tensors = {
            name: (parts.shape, parts.dtype, [box for box, _ in parts.parts])
            for name, parts in self._parts.items()
        }
        job, board, own = self._job, self._board, f"{self._run}/holds/{self._job.rank}"
        check_unused(board, own, job)
        self._tied = tied(self._parts)
        board.post(own, {"tensors": tensors, "tied": self._tied, "host": job.host})
        if self.is_leader:
            board.until(
                lambda: not self._missing() or None,
                self._connect_s,
                lambda: f"publishers {self._missing()} of {job.size} to say what they hold",
            )
            board.post(f"{self._run}/first", board.number("versions") + 1)
            board.post("publisher", {"run": self._run, "size": job.size})
        first = board.until(
            lambda: board.read(f"{self._run}/first"),
            2 * self._connect_s,
            lambda: "publisher rank 0",
        )
        self._last = first - 1
        self._holds = read_holds(board, self._run, job.size)

    def _missing(self) -> list[int]:
        ranks = range(self._job.size)
        return [rank for rank in ranks if not self._board.has(f"{self._run}/holds/{rank}")]

    def _step(self) -> bool:
        return self._role.step()

    def _leave(self) -> None:
        """Nothing: subscribers wait for another run."""

    def _take_part(self, planned: Round, lost: Callable[[], str]) -> None:
        """This process's part of a round, as `TakePart` says; all publishers do theirs."""

        def over() -> str:
            if self._stopped:
                return "the publisher was closed"
            if self._versions.is_cancelled(planned.version):
                return "the version was cancelled"
            return lost()

        try:
            if self._session is None or self._session.epoch != planned.epoch:
                self._leave_session()
                self._session = Session(self._board, planned, self._holds)
            session = self._session
            session.connect(self._job.rank, self._connect_s)
            route = session.route(planned.names)
            kept = self._versions.kept(planned.version) or {}
            scales = {}
            if route.scales:
                magnitudes = session.combine(route.scales.magnitudes(kept), self._deadline_s)
                scales = route.scales.split(magnitudes)
            packed = {
                i: pack(stream, kept, scales, planned.version)
                for i, stream in enumerate(route.streams)
                if self._job.rank in stream.holders
            }
            session.move(route, packed, {}, self._deadline_s, over)
        except Exception as error:
            self._note_failure(planned, error)
            if not isinstance(error, TransferError):
                raise

    def _wait_settled(self, version: int, deadline_s: float | None) -> tuple[str, ...]:
        limit_s = self._limit_s(deadline_s)
        with self._lock:
            self._lock.wait_for(
                lambda: self._versions.settled(version) is not None or self._error or self._stopped,
                limit_s,
            )
            replicas = self._versions.settled(version)
        if replicas is not None:
            return replicas
        self._raise()
        raise DeadlineError(
            f"waited {limit_s:g} s until all replicas have version {version}; "
            f"there are {list(self.replicas)}{self._why()}"
        )

    def _look_again(self, state: State) -> None:
        """Find the parts of a state, whose tensors may be others than before."""
        new = checked(state)
        for name in sorted(self._parts.keys() | new.keys()):
            one, other = self._parts.get(name), new.get(name)
            if one is None or other is None or one.described != other.described:
                got, had = str(other or "none"), str(one or "none")
                raise ShardError(
                    "a state keeps its names, shapes, types and layouts from version to version; "
                    f"got {f'other parts of {got}' if got == had else got} for {name!r} after "
                    f"{had}; make another publisher"
                )
        self._state, self._parts = state, new


def _copies(parts: LocalParts) -> list[tuple[Box, torch.Tensor]]:
    """A copy of the parts of a value on the CPU, so that the value may change."""
    return [(box, as_tensor(part).to("cpu", copy=True)) for box, part in parts.parts]
