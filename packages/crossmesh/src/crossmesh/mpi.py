"""`MpiTransport`: moves shards between processes by MPI; needs the extra `mpi`.

It uses non-blocking point-to-point messages, and nothing else of MPI. MPI moves bytes only while it
is being called, and its own waiting keeps a processor busy. So `pause` sleeps between rounds of
tests, twice as long each time that nothing was complete, up to a limit.
"""

import time
from collections.abc import Mapping

from crossmesh.errors import MissingExtraError, PlanError, TransportError
from crossmesh.run.transport import DATA, Bytes

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library was found
    raise MissingExtraError("crossmesh.mpi", "mpi") from error

_SHORTEST_NAP_S = 50e-6
"""Linux may wake a sleeping thread this much later anyway: prctl(2), PR_SET_TIMERSLACK,
"default"."""

_LONGEST_NAP_S = 1e-3
"""Less than the 3.3 ms that a host's socket buffer of 4 MiB (Linux's default limit, tcp(7)) takes
at 10 Gbit/s."""

_abandoned: list[tuple[MPI.Request, Bytes]] = []
"""Buffers that MPI may read or write until the process ends; kept alive after the transport."""


class MpiTransport:
    """Carries a transfer between the processes of a communicator.

    Examples:
        One process with one device, which has no other process to communicate with:

        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from shardspec import Layout, Mesh, Spec
        >>> from crossmesh import execute, plan
        >>> layout = Layout((2,), Mesh((1,), ("x",), (0,)), Spec.parse("R"))
        >>> transport = MpiTransport(MPI.COMM_SELF, {0: 0})
        >>> shards = {0: np.array([1.0, 2.0], np.float32)}
        >>> execute(
        ...     plan(layout, layout, "float32"), shards, transport, window=1, deadline_s=10.0
        ... )
        {0: array([1., 2.], dtype=float32)}
    """

    def __init__(self, comm: MPI.Intracomm, rank_of: Mapping[int, int]) -> None:
        """Use a communicator; does not wait for its other processes.

        Args:
            comm: A communicator that nothing else uses during transfers, such as
                `MPI.COMM_WORLD.Dup()`. Do not use it again after a failure, because messages of the
                transfer may remain in it.
            rank_of: The rank in `comm` of each device.

        Raises:
            PlanError: This process is not in the communicator.
        """
        if comm == MPI.COMM_NULL:
            raise PlanError(
                "a transport has a communicator that this process is in; got MPI.COMM_NULL; "
                "make one with all ranks of the transfer"
            )
        self._comm = comm
        self._rank_of = dict(rank_of)
        self._under_way: set[_Pending] = set()
        self._closed = False
        self._nap_s = _SHORTEST_NAP_S

    @property
    def rank(self) -> int:
        """See `Transport`."""
        return int(self._comm.rank)

    @property
    def n_ranks(self) -> int:
        """See `Transport`."""
        return int(self._comm.size)

    @property
    def rank_of(self) -> Mapping[int, int]:
        """See `Transport`."""
        return self._rank_of

    def send(self, rank: int, data: Bytes, tag: int) -> "_Pending":
        """See `Transport`."""
        return self._begin("send", rank, data, tag)

    def receive(self, rank: int, data: Bytes, tag: int) -> "_Pending":
        """See `Transport`."""
        return self._begin("receive", rank, data, tag)

    def pause(self) -> None:
        """See `Transport`."""
        time.sleep(self._nap_s)
        self._nap_s = min(2 * self._nap_s, _LONGEST_NAP_S)

    def close(self) -> None:
        """See `Transport`.

        Sends that other ranks have not received stay with MPI, because it is not safe to cancel
        them (MPICH 5.0.2 crashes). At the end of the process, mpi4py calls `MPI.Finalize`, which
        waits for all ranks of the job, and so forever if one hangs. `MPI.COMM_WORLD.Abort()` does
        not wait, nor does an uncaught error under `mpiexec ... python -m mpi4py program.py`.
        """
        self._closed = True
        for pending in self._under_way:
            pending.give_up()
        self._under_way.clear()

    def _begin(self, what: str, rank: int, data: Bytes, tag: int) -> "_Pending":
        if self._closed:
            raise TransportError(
                f"a closed transport moves nothing; asked to {what} {data.nbytes} bytes; "
                "make another, on another communicator"
            )
        # Shards are sent synchronously, so that they wait at the sender until they are received.
        # Otherwise MPI would send short messages of later tasks ahead, and these would take the
        # link from the first tasks. (gloo sends synchronously anyway.)
        send = self._comm.Issend if tag == DATA else self._comm.Isend
        begin = send if what == "send" else self._comm.Irecv
        try:
            request = begin([data, MPI.BYTE], rank, tag)
        except MPI.Exception as error:
            raise _failed(what, rank, data, error) from error
        pending = _Pending(self, request, data, what, rank)
        self._under_way.add(pending)
        return pending

    def _ended(self, pending: "_Pending") -> None:
        self._under_way.remove(pending)
        self._nap_s = _SHORTEST_NAP_S


class _Pending:
    """A request of MPI, and its bytes."""

    def __init__(
        self, transport: MpiTransport, request: MPI.Request, data: Bytes, what: str, rank: int
    ) -> None:
        self._transport = transport
        self._request = request
        self._data = data
        self._what = what
        self._rank = rank
        self._done = False
        self._error: TransportError | None = None

    def test(self) -> bool:
        """See `Pending`."""
        if not self._done and not self._error:
            self._progress()
        if self._error:
            raise self._error
        return self._done

    def give_up(self) -> None:
        """Cancel a receive; keep the buffer alive of what cannot be cancelled."""
        try:
            if self._what == "receive":
                self._request.Cancel()
            over = self._request.Test()
        except MPI.Exception:
            over = True
        if not over:
            _abandoned.append((self._request, self._data))
        self._error = TransportError(
            f"a closed transport completes nothing; it gave up to {self._what} "
            f"{self._data.nbytes} bytes, other rank {self._rank}"
        )

    def _progress(self) -> None:
        status = MPI.Status()
        try:
            self._done = self._request.Test(status)
        except MPI.Exception as error:
            self._error = _failed(self._what, self._rank, self._data, error)
        arrived = status.Get_count(MPI.BYTE)
        if self._done and self._what == "receive" and arrived != self._data.nbytes:
            self._done = False
            self._error = TransportError(
                "a message has as many bytes as the receive that it meets; "
                f"got {arrived} from rank {self._rank} for {self._data.nbytes}"
            )
            self._error.culprits = (self._rank,)
        if self._done or self._error:
            self._transport._ended(self)


def _failed(what: str, rank: int, data: Bytes, error: MPI.Exception) -> TransportError:
    """A TransportError with MPI's error as its cause."""
    reason = MPI.Get_error_string(error.Get_error_class())
    failed = TransportError(
        f"MPI failed to {what} {data.nbytes} bytes, other rank {rank}: {reason}"
    )
    failed.culprits = (rank,)
    failed.__cause__ = error
    return failed
