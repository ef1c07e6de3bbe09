"""`TorchTransport`: moves shards between processes by a torch process group of gloo.

It needs the extra `torch`. Three properties of gloo decide how it works (torch 2.13):

- One cannot tell whether a message is complete without waiting for it: `Work.is_completed` stays
  false until somebody has waited. So there is a thread for each kind of message to or from each
  other rank; it waits for its messages in the order in which they were begun. It sleeps in gloo,
  which wakes it.
- Waiting with a timeout is no way to ask, because gloo closes all connections of the group when the
  timeout passes. But it is a way to give up: it wakes all waiting threads, also those of the other
  ranks.
- A message that is longer than its receive ends the receiving *process*, and a shorter one goes
  unnoticed. So the tag contains the length: messages of different lengths do not meet, and the
  deadline passes instead.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta

from crossmesh.errors import MissingExtraError, PlanError, TransportError
from crossmesh.run.transport import Bytes

try:
    import torch
    import torch.distributed as dist
except ImportError:
    raise MissingExtraError("crossmesh.engines.torch_transport", "torch") from None

from crossmesh.engines.torch_dtypes import writable

_LONGEST = timedelta(days=1)
"""How long a thread waits for a message. It is not the deadline: the executor enforces that, and
then closes the transport, which wakes waiting threads. A thread that still waits after this time
waits for a message that will not come."""

_IDLE_S = 1.0
"""How long a thread without messages stays alive, because the next transfer often follows soon."""

_AT_ONCE = timedelta(milliseconds=1)
"""The shortest possible timeout; 0 would mean the timeout of the group."""

_NAP_S = 5e-3
"""How often an executor checks the time when nothing arrives; anything that arrives wakes it."""

_LEAVE_S = 1.0
"""How long `close` waits for the threads that it woke to end. Gloo does not wake a thread whose
message is partly written or partly read when the connection closes (gloo's `Pair::signalException`
signals messages that have not begun). Such threads sleep on, and keep their bytes alive, until the
process ends, which does not wait for them."""

_N_TAGS = 2**31
"""Tags are non-negative 32-bit integers."""

_UNSENT = 0
"""A tag that no message has."""


class TorchTransport:
    """Carries a transfer between the processes of a process group.

    Examples:
        One process with one device, which has no other process to communicate with:

        >>> import torch.distributed as dist
        >>> from shardspec import Layout, Mesh, Spec
        >>> from crossmesh import execute, plan
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> layout = Layout((2,), Mesh((1,), ("x",), (0,)), Spec.parse("R"))
        >>> transport = TorchTransport(dist.new_group(backend="gloo"), {0: 0})
        >>> shards = {0: torch.tensor([1.0, 2.0]).numpy()}
        >>> execute(
        ...     plan(layout, layout, "float32"), shards, transport, window=1, deadline_s=10.0
        ... )
        {0: array([1., 2.], dtype=float32)}
        >>> transport.close()
        >>> dist.destroy_process_group()
    """

    def __init__(self, group: dist.ProcessGroup, rank_of: Mapping[int, int]) -> None:
        """Use a process group; does not wait for its other processes.

        Args:
            group: A process group with gloo as its backend for CPU tensors, such as
                `dist.new_group(backend="gloo")`. Nothing else may use it, because a failure closes
                its connections.
            rank_of: The rank in `group` of each device.

        Raises:
            PlanError: The backend is not gloo, or this process is not in the group.
        """
        if not isinstance(group, dist.ProcessGroup):
            raise PlanError(
                f"a transport has a process group that this process is in; got {group!r}; "
                "make one with all ranks of the transfer"
            )
        self._group = group
        self._rank_of = dict(rank_of)
        self._lanes: dict[tuple[str, int, int], _Lane] = {}
        self._news = threading.Event()
        self._closed = False
        backend = _cpu_backend(group)
        if backend != "gloo":
            raise PlanError(
                f"a TorchTransport has a process group with gloo for CPUs; got {backend}; "
                'make one with dist.new_group(backend="gloo")'
            )

    @property
    def rank(self) -> int:
        """See `Transport`."""
        return int(self._group.rank())

    @property
    def n_ranks(self) -> int:
        """See `Transport`."""
        return int(self._group.size())

    @property
    def rank_of(self) -> Mapping[int, int]:
        """See `Transport`."""
        return self._rank_of

    def send(self, rank: int, data: Bytes, tag: int) -> "_Pending":
        """See `Transport`."""
        return self._begin("send", rank, data, tag)

    def receive(self, rank: int, data: Bytes, tag: int) -> "_Pending":
        """See `Transport`. A message of another length never completes it."""
        return self._begin("receive", rank, data, tag)

    def pause(self) -> None:
        """See `Transport`."""
        self._news.wait(_NAP_S)
        self._news.clear()

    def close(self) -> None:
        """See `Transport`. Other ranks that send or receive in this group get a TransportError."""
        if self._closed:
            return
        self._closed = True
        if any(lane.busy for lane in self._lanes.values()):
            self._disconnect()
        for lane in self._lanes.values():
            lane.stop()
        until_s = time.monotonic() + _LEAVE_S
        for lane in self._lanes.values():
            lane.join(until_s - time.monotonic())

    def _begin(self, what: str, rank: int, data: Bytes, tag: int) -> "_Pending":
        if self._closed:
            raise TransportError(
                f"a closed transport moves nothing; asked to {what} {data.nbytes} bytes; "
                "make another, on another process group"
            )
        tensor = torch.from_numpy(writable(data))
        meets = 1 + (2 * data.nbytes + tag) % (_N_TAGS - 1)
        try:
            if what == "send":
                work = self._group.send([tensor], rank, meets)
            else:
                work = self._group.recv([tensor], rank, meets)
        except RuntimeError as error:
            raise _failed(what, rank, data, error) from error
        pending = _Pending(work, data, what, rank)
        if (what, rank, tag) not in self._lanes:
            self._lanes[what, rank, tag] = _Lane(self._news)
        self._lanes[what, rank, tag].put(pending)
        return pending

    def _disconnect(self) -> None:
        """Close the group's connections: a wait whose timeout passes closes all of them."""
        for rank in range(self.n_ranks):
            if rank != self.rank:
                nothing = torch.empty(1, dtype=torch.uint8)
                with contextlib.suppress(RuntimeError):
                    self._group.recv([nothing], rank, _UNSENT).wait(_AT_ONCE)


def _cpu_backend(group: dist.ProcessGroup) -> str:
    try:
        name: str = group._get_backend(torch.device("cpu")).name()
    except RuntimeError:
        return "none"
    return name


class _Pending:
    """A message that gloo has begun, and its bytes."""

    def __init__(self, work: dist.Work, data: Bytes, what: str, rank: int) -> None:
        self._work = work
        self._data = data
        self._what = what
        self._rank = rank
        self._done = False
        self._error: TransportError | None = None

    def test(self) -> bool:
        """See `Pending`."""
        if self._error:
            raise self._error
        return self._done

    @property
    def over(self) -> bool:
        """Whether it is complete or failed."""
        return self._done or self._error is not None

    def see_it_out(self) -> None:
        """Sleep until it is complete or failed, which `test` then reports in other threads.

        An error is kept rather than raised, because `test` has to raise it.
        """
        try:
            self._work.wait(_LONGEST)
            self._done = True
        except RuntimeError as error:
            self._error = _failed(self._what, self._rank, self._data, error)


class _Lane:
    """A thread that waits for messages one after the other, as long as it has some."""

    def __init__(self, news: threading.Event) -> None:
        self._news = news
        self._messages: deque[_Pending] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._last: _Pending | None = None
        self._thread: threading.Thread | None = None

    def put(self, message: _Pending) -> None:
        """Make the thread wait for this message after its others."""
        with self._changed:
            self._last = message
            self._messages.append(message)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="crossmesh-gloo", daemon=True
                )
                self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether the last message is neither complete nor failed, as far as its thread knows."""
        return self._last is not None and not self._last.over

    def stop(self) -> None:
        """Let the thread end once it has waited for all its messages."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def join(self, at_most_s: float) -> None:
        """Wait until the thread has ended, but no longer than this."""
        if thread := self._thread:
            thread.join(max(at_most_s, 0.0))

    def _run(self) -> None:
        while message := self._next():
            message.see_it_out()
            self._news.set()

    def _next(self) -> _Pending | None:
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._stopped, _IDLE_S)
            if self._messages:
                return self._messages.popleft()
            self._thread = None
            return None


def _failed(what: str, rank: int, data: Bytes, error: RuntimeError) -> TransportError:
    """A TransportError that quotes gloo on what happened to the connection."""
    reason = str(error).splitlines()[0].partition(" This is typically")[0]
    failed = TransportError(
        f"gloo failed to {what} {data.nbytes} bytes, other rank {rank}: {reason}"
    )
    failed.culprits = (rank,)
    failed.__cause__ = error
    return failed
