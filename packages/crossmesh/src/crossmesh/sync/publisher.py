"""`Publisher`: the side of the trainer, which publishes versions of its weights."""

import atexit
import contextlib
import hashlib
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shardspec.amounts import bytes_text

from crossmesh.base.geometry import Box
from crossmesh.base.whole import whole_number
from crossmesh.errors import DeadlineError, MissingExtraError, PlanError, ShardError, TransferError
from crossmesh.sync.board import KEPT, NAP_S, Beat, Board, Pulse, check_unused, job_of, seconds
from crossmesh.sync.buffers import pack
from crossmesh.sync.session import Member, Round, Session, read_holds
from crossmesh.sync.states import LocalParts, State, as_tensor, checked

try:
    import torch
    from torch._C._distributed_c10d import Store
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None

Kept = Mapping[str, Sequence[tuple[Box, torch.Tensor]]]
"""The parts of a version that a process has kept."""

_LOG = logging.getLogger("crossmesh.sync")

RETRY_S = 0.5
"""How long the leader waits after a round that failed, so that others notice who is gone."""


class _Joined(NamedTuple):
    """What the leader knows of a replica."""

    pulse: Pulse
    served: list[int]
    """The numbers of the rounds that it took part in."""


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
        return self._publisher._settled(self.version) is not None

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
        self._publisher._cancel(self.version)

    def __repr__(self) -> str:
        return f"<version {self.version}, {'done' if self.done else 'on its way'}>"


class Publisher:
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
        self._board = Board(store, name)
        self._deadline_s = seconds("deadline_s", deadline_s)
        self._connect_s = seconds("connect_s", connect_s)
        self._silent_s = seconds("silent_s", silent_s)
        self._job = job_of(run_id, rank, size, host)
        self._run = f"runs/{self._job.run_id}"
        self._lock = threading.Condition()
        self._publishing = threading.Lock()
        self._kept: dict[int, Kept] = {}
        self._names: dict[int, tuple[str, ...] | None] = {}
        self._settled_to: dict[int, tuple[str, ...]] = {}
        self._current = -1
        self._last = -1
        self._cancelled: set[int] = set()
        self._session: Session | None = None
        self._error: Exception | None = None
        self._last_failure: Exception | None = None
        self._stopped = False
        self._began()
        self._thread = threading.Thread(target=self._serve, name="crossmesh-publisher", daemon=True)
        self._thread.start()
        atexit.register(self.close)

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
            self._deadline_s if deadline_s is None else seconds("deadline_s", deadline_s),
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
            raise PlanError(f"versions grow, below 2**63; got version {number} after {last}")
        if names is not None:
            for unknown in sorted(set(names) - self._holds.shapes.keys()):
                raise PlanError(f"only published tensors change; got the name {unknown!r}")
        before = self._kept.get(last)
        partial = names is not None and before is not None
        with self._lock:
            alone = self._lock.wait_for(
                lambda: len(self._kept) < 2 or self._error or self._stopped, self._deadline_s
            )
        self._raise()
        if not alone:
            raise DeadlineError(
                f"two versions may be on their way; waited {self._deadline_s:g} s for all "
                f"{self._job.size} ranks of the trainer to publish version {last}, or for replicas "
                f"{list(self.replicas)} to receive the one before{self._why()}"
            )
        changed = set(self._holds.shapes)
        if partial and names is not None:
            changed = _with_aliases(set(names), self._parts)
        fresh = {name: _copies(self._parts[name]) for name in changed & self._parts.keys()}
        kept = {**(before or {}), **fresh} if partial else fresh
        with self._lock:
            self._kept[number] = kept
            self._names[number] = tuple(sorted(changed)) if partial else None
            self._last = number
        for key in (self._packed_alike(number), f"{self._run}/packed/{number}"):
            self._board.count(key, 1)
        return Publication(self, number)

    def _packed_alike(self, version: int) -> str:
        """The key that counts the ranks that published the same tensors as this one."""
        names = json.dumps(self._names[version])
        return f"{self._run}/packed/{version}/{hashlib.sha256(names.encode()).hexdigest()}"

    def close(self) -> None:
        """Stop; a version that is under way is given up: wait for one that has to arrive."""
        atexit.unregister(self.close)
        with self._lock:
            self._stopped = True
            self._lock.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._deadline_s)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        n_bytes = sum(_n_bytes(parts) for parts in self._parts.values())
        return (
            f"<publisher rank {self._job.rank} of {self._job.size}: {len(self._parts)} tensors, "
            f"{bytes_text(n_bytes)} here, version {self._last}>"
        )

    # What follows is done once, by the constructor.

    def _began(self) -> None:
        tensors = {
            name: (parts.shape, parts.dtype, [box for box, _ in parts.parts])
            for name, parts in self._parts.items()
        }
        job, board = self._job, self._board
        check_unused(board, f"{self._run}/holds/{job.rank}", job)
        board.post(f"{self._run}/holds/{job.rank}", {"tensors": tensors, "host": job.host})
        if self.is_leader:
            board.until(
                lambda: self._held_by_all(),
                self._connect_s,
                lambda: f"publishers {self._missing()} of {job.size} to say what they hold",
            )
            first = board.number("versions") + 1
            board.post(f"{self._run}/first", first)
            board.post("publisher", {"run": self._run, "size": job.size})
        self._last = -1 + board.until(
            lambda: board.read(f"{self._run}/first"),
            2 * self._connect_s,
            lambda: "publisher rank 0",
        )
        self._holds = read_holds(board, self._run, job.size)

    def _held_by_all(self) -> bool | None:
        return not self._missing() or None

    def _missing(self) -> list[int]:
        ranks = range(self._job.size)
        return [rank for rank in ranks if not self._board.has(f"{self._run}/holds/{rank}")]

    # What follows happens in the thread.

    def _serve(self) -> None:
        try:
            follower = _Leader(self) if self.is_leader else _Follower(self)
            while not self._stopped:
                if not follower.step():
                    time.sleep(NAP_S)
        except Exception as error:
            self._error = error
        finally:
            with self._lock:
                self._lock.notify_all()
            if self._session is not None:
                with contextlib.suppress(TransferError):
                    self._session.close()

    def _became_current(self, version: int) -> None:
        """Drop older versions: no round begins for them any more."""
        with self._lock:
            self._current = version
            for old in [kept for kept in self._kept if kept < version]:
                del self._kept[old]
            for notes in (self._names, self._settled_to):
                for old in [*notes][:-KEPT]:
                    del notes[old]
            self._lock.notify_all()

    def _note_settled(self, version: int, replicas: Sequence[str]) -> None:
        with self._lock:
            self._settled_to[version] = tuple(replicas)
            self._lock.notify_all()

    def _take_part(self, planned: Round, is_lost: Callable[[], object] = lambda: None) -> None:
        """This process's part of a round; all publishers do theirs.

        Args:
            planned: The round.
            is_lost: Asked all the time whether it is of no use to go on.
        """
        try:
            if self._session is None or self._session.epoch != planned.epoch:
                self._leave_session()
                size = self._job.size
                self._session = Session(self._board, self._run, planned, self._holds, size)
            session = self._session
            session.connect(self._job.rank, self._connect_s)
            route = session.route(planned.names)
            kept = self._kept[planned.version]
            scales = {}
            if route.scales:
                magnitudes = session.combine(route.scales.magnitudes(kept), self._deadline_s)
                scales = route.scales.split(magnitudes)
            packed = {
                i: pack(stream, kept, scales, planned.version)
                for i, stream in enumerate(route.streams)
                if self._job.rank in stream.holders
            }
            session.move(
                route,
                packed,
                {},
                self._deadline_s,
                lambda: self._stopped or planned.version in self._cancelled or bool(is_lost()),
            )
        except Exception as error:
            self._last_failure = error
            _LOG.warning("%r: round %d failed: %s", self, planned.number, error)
            self._board.post(f"{self._run}/broken/{planned.epoch}", True)
            self._leave_session()
            if not isinstance(error, TransferError):
                raise

    def _leave_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    # What follows is for `Publication`.

    def _settled(self, version: int) -> tuple[str, ...] | None:
        known = self._settled_to.get(version)
        return () if known is None and version < self._current else known

    def _wait_settled(self, version: int, deadline_s: float | None) -> tuple[str, ...]:
        limit_s = self._deadline_s if deadline_s is None else seconds("deadline_s", deadline_s)
        with self._lock:
            self._lock.wait_for(
                lambda: self._settled(version) is not None or self._error or self._stopped, limit_s
            )
            replicas = self._settled(version)
        if replicas is not None:
            return replicas
        self._raise()
        raise DeadlineError(
            f"waited {limit_s:g} s until all replicas have version {version}; "
            f"there are {list(self.replicas)}{self._why()}"
        )

    def _why(self) -> str:
        return f"; the last round failed: {self._last_failure}" if self._last_failure else ""

    def _cancel(self, version: int) -> None:
        with self._lock:
            self._cancelled.add(version)

    def _look_again(self, state: State) -> None:
        """Find the parts of a state, whose tensors may be others than before."""
        new = checked(state)
        for name in sorted(self._parts.keys() | new.keys()):
            one, other = self._parts.get(name), new.get(name)
            if one is None or other is None or _described(one) != _described(other):
                got, had = _text(other), _text(one)
                got = f"other parts of {got}" if got == had else got
                raise ShardError(
                    "a state keeps its names, shapes, types and layouts from version to version; "
                    f"got {got} for {name!r} after {had}; make another publisher"
                )
        self._state, self._parts = state, new

    def _raise(self) -> None:
        if self._error is not None:
            raise TransferError(
                f"the publisher failed: {self._error}; make another"
            ) from self._error
        if self._stopped:
            raise TransferError("a closed publisher publishes nothing; make another")


class _Follower:
    """What ranks other than the leader do: what the log says, in its order."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._position = 0

    def step(self) -> bool:
        """Do what the next entry of the log says; False if there is none yet."""
        publisher = self._publisher
        entry = publisher._board.read(f"{publisher._run}/log/{self._position}")
        if entry is None:
            return False
        self._position += 1
        if entry["kind"] == "version":
            publisher._became_current(entry["version"])
        elif entry["kind"] == "failed":
            raise PlanError(entry["reason"])
        elif entry["kind"] == "settled":
            publisher._note_settled(entry["version"], entry["replicas"])
        else:
            publisher._take_part(Round.of(entry))
        return True


class _Leader:
    """What rank 0 does: decides, writes the log, and takes part."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._board, self._run = publisher._board, publisher._run
        self._position = 0
        self._rounds = 0
        self._epoch = 0
        self._session_of: tuple[Member, ...] = ()
        self._n_joins = 0
        self._joined: dict[Member, _Joined] = {}
        self._there: set[Member] = set()
        self._settled_there: set[Member] | None = None
        """Those who all had the current version when somebody looked last."""
        self._beat = Beat(self._board)
        self._versions: list[int] = []
        self._tried: set[int] = set()
        self._not_before_s = 0.0

    def step(self) -> bool:
        """One decision; False if there is nothing to decide."""
        self._look_for_replicas(self._beat.show(f"{self._run}/beats/leader"))
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
            pulse = Pulse(self._board, keys, self._publisher._silent_s)
            self._joined[member] = _Joined(pulse, [])
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
        publisher = self._publisher
        with publisher._lock:
            following = sorted(kept for kept in publisher._kept if kept > publisher._current)
        if not following:
            return False
        version, size = following[0], publisher._job.size
        if self._board.number(f"{self._run}/packed/{version}") < size:
            return False
        if self._board.number(publisher._packed_alike(version)) < size:
            reason = f"all ranks publish the same names; some have others in version {version}"
            self._write({"kind": "failed", "reason": reason})
            raise PlanError(reason)
        current = publisher._current
        if current >= 0 and publisher._settled(current) is None:
            if self._may_still_get(current):
                return False
            self._settle(current)
        self._versions = [*self._versions[1 - KEPT :], version]
        self._write({"kind": "version", "version": version})
        publisher._became_current(version)
        behind = version - self._board.number("versions")
        self._board.count("versions", max(behind, 0))
        return True

    def _may_still_get(self, version: int) -> bool:
        """Whether a replica is about to get a version before the next takes its place."""
        return version not in self._publisher._cancelled | self._tried and any(
            self._lacks(member, version) and self._is_free(member) for member in self._there
        )

    def _look_for_rounds(self) -> bool:
        publisher = self._publisher
        version = publisher._current
        if version < 0 or time.monotonic() < self._not_before_s:
            return False
        if publisher._settled(version) is not None and self._there == self._settled_there:
            return False
        lacking = [member for member in self._there if self._lacks(member, version)]
        if version in publisher._cancelled:
            lacking = []
        if not lacking:
            self._settled_there = set(self._there)
            is_new = publisher._settled(version) is None
            if is_new:
                self._settle(version)
            return is_new
        alike: defaultdict[tuple[str, ...] | None, list[Member]] = defaultdict(list)
        for member in lacking:
            if self._is_free(member):
                alike[self._changed_since(self._have(member))].append(member)
        for names, members in alike.items():
            self._round(version, tuple(sorted(members)), names)
        return bool(alike)

    def _round(
        self, version: int, members: tuple[Member, ...], names: tuple[str, ...] | None
    ) -> None:
        if members != self._session_of or self._board.has(f"{self._run}/broken/{self._epoch}"):
            self._epoch += 1
            self._session_of = members
        self._rounds += 1
        self._tried.add(version)
        planned = Round(self._rounds, version, self._epoch, members, names)
        for member in members:
            self._joined[member].served.append(planned.number)
        self._write({"kind": "round", **planned._asdict()})
        pulses = {member: self._joined[member].pulse for member in members}
        for pulse in pulses.values():
            pulse.begin_again()
        self._publisher._take_part(planned, lambda: any(p.silent for p in pulses.values()))
        if self._board.has(f"{self._run}/broken/{self._epoch}"):
            self._not_before_s = time.monotonic() + RETRY_S

    def _settle(self, version: int) -> None:
        having = sorted(m.replica for m in self._there if self._have(m) == version)
        self._write({"kind": "settled", "version": version, "replicas": having})
        self._publisher._note_settled(version, having)

    def _lacks(self, member: Member, version: int) -> bool:
        return self._have(member) != version

    def _have(self, member: Member) -> int:
        have = self._board.read(f"{self._run}/have/{member.key}")
        return -1 if have is None else int(have)

    def _is_free(self, member: Member) -> bool:
        """Whether all ranks of a replica are ready to receive another version."""
        free = self._board.number(f"{self._run}/free/{member.key}")
        return free == member.size * (1 + len(self._joined[member].served))

    def _changed_since(self, version: int) -> tuple[str, ...] | None:
        """The tensors that changed after a version; None: all."""
        if version not in self._versions:
            return None
        since = self._versions[self._versions.index(version) + 1 :]
        changed = [self._publisher._names[number] for number in since]
        if any(names is None for names in changed):
            return None
        return tuple(sorted({name for names in changed for name in names or ()}))

    def _write(self, entry: dict[str, Any]) -> None:
        self._board.post(f"{self._run}/log/{self._position}", entry)
        self._position += 1
        self._board.post(f"{self._run}/position", self._position)
        self._board.forget(f"{self._run}/log/{self._position - KEPT}")


def _copies(parts: LocalParts) -> list[tuple[Box, torch.Tensor]]:
    """A copy of the parts of a value on the CPU, so that the value may change."""
    return [(box, as_tensor(part).to("cpu", copy=True)) for box, part in parts.parts]


def _with_aliases(names: set[str], parts: Mapping[str, LocalParts]) -> set[str]:
    """The names, and those of other tensors in the same memory, as tied weights are."""
    memory = {
        name: {
            part.untyped_storage().data_ptr()
            for _, part in of_name.parts
            if isinstance(part, torch.Tensor) and part.numel()
        }
        for name, of_name in parts.items()
    }
    changed = set().union(*(memory.get(name, ()) for name in names))
    return names | {name for name, of_name in memory.items() if of_name & changed}


def _text(parts: LocalParts | None) -> str:
    return "none" if parts is None else f"{parts.dtype} of {parts.shape}"


def _n_bytes(parts: LocalParts) -> int:
    return sum(as_tensor(part).nbytes for _, part in parts.parts)


def _described(parts: LocalParts) -> tuple[object, ...]:
    return parts.shape, parts.dtype, [box for box, _ in parts.parts]
