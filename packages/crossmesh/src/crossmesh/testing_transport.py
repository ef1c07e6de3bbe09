"""A transport within one process, whose ranks take turns: for tests without threads or clocks."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from crossmesh.errors import TransportError
from crossmesh.run.executor import Execution
from crossmesh.run.packing import Array
from crossmesh.run.transport import DATA, Bytes


class Wires:
    """Connects the ranks of one process, and counts their messages.

    Args:
        rank_of: The rank of each device.
        n_ranks: The number of ranks.
        arrives: Called whenever a message could arrive; returns whether it arrives now.
        like_gloo: Whether to behave like gloo: a send completes as soon as its receive has begun,
            instead of when the receive has taken the bytes; and a rank that closes its transport
            breaks its connections, so that messages that have met a receive still arrive, but
            nothing else can be sent or received.
    """

    def __init__(
        self,
        rank_of: Mapping[int, int],
        n_ranks: int,
        arrives: Callable[[], bool] = lambda: True,
        *,
        like_gloo: bool = False,
    ) -> None:
        self.rank_of = rank_of
        self.n_ranks = n_ranks
        self.arrives = arrives
        self.like_gloo = like_gloo
        self.closed: set[int] = set()
        """The ranks that have closed their transports."""
        self.ways: dict[tuple[int, int, int], deque[_Sent]] = {}
        """The messages on their way, by (sending rank, receiving rank, tag)."""
        self.begun: Counter[tuple[int, int, int, str]] = Counter()
        """The numbers of sends and receives that have begun, by the same and "send" or "receive".
        """
        self.sent_bytes: Counter[tuple[int, int]] = Counter()
        """The bytes of shards from one rank to another."""
        self.corrupt: Callable[[Bytes], None] = lambda data: None
        """Called with the bytes of each shard message that arrives, which it may change."""

    def transports(self) -> list["WireTransport"]:
        """A transport for each rank."""
        return [WireTransport(self, rank) for rank in range(self.n_ranks)]

    def check_connected(self, a: int, b: int) -> None:
        """Check that two ranks are still connected.

        Raises:
            TransportError: One of the two ranks has broken its connections.
        """
        broken = self.closed.intersection((a, b))
        if self.like_gloo and broken:
            error = TransportError(f"ranks that closed have no connections; got rank {broken}")
            error.culprits = tuple(sorted(broken))
            raise error


class _Sent:
    """A message that is on its way until its receive takes it."""

    def __init__(self, wires: Wires, way: tuple[int, int, int], data: Bytes) -> None:
        self.wires = wires
        self.way = way
        self.data = data
        self.number = wires.begun[*way, "send"]
        self.taken = False
        wires.begun[*way, "send"] += 1

    @property
    def has_met(self) -> bool:
        """Whether its receive has begun."""
        return self.number < self.wires.begun[*self.way, "receive"]

    def test(self) -> bool:
        """Whether it was received, or with `like_gloo` has met its receive."""
        if self.taken or (self.wires.like_gloo and self.has_met):
            return True
        self.wires.check_connected(*self.way[:2])
        return False


class _Receive:
    """A receive that takes the oldest message when it is tested."""

    def __init__(self, wires: Wires, way: tuple[int, int, int], data: Bytes) -> None:
        self.wires = wires
        self.way = way
        self.data = data
        self.done = False
        wires.begun[*way, "receive"] += 1

    def test(self) -> bool:
        """Whether its message has arrived."""
        queue = self.wires.ways.setdefault(self.way, deque())
        if not self.done and not (queue and queue[0].has_met):
            self.wires.check_connected(*self.way[:2])
        if self.done or not queue or not self.wires.arrives():
            return self.done
        sent = queue.popleft()
        if sent.data.size != self.data.size:
            error = TransportError(
                "a message has as many bytes as its receive; "
                f"rank {self.way[0]} sent {sent.data.size} bytes to rank {self.way[1]}, which "
                f"expects {self.data.size}"
            )
            error.culprits = self.way[:1]
            raise error
        self.data[:] = sent.data
        sent.taken = self.done = True
        if self.way[2] == DATA:
            self.wires.sent_bytes[self.way[:2]] += sent.data.size
            self.wires.corrupt(self.data)
        return True


class WireTransport:
    """One rank's transport; a send completes when it is received, like that of a large message."""

    def __init__(self, wires: Wires, rank: int) -> None:
        self.wires = wires
        self.rank = rank
        self.closed = False

    @property
    def n_ranks(self) -> int:
        """The number of ranks."""
        return self.wires.n_ranks

    @property
    def rank_of(self) -> Mapping[int, int]:
        """The rank of each device."""
        return self.wires.rank_of

    def send(self, rank: int, data: Bytes, tag: int) -> _Sent:
        """Begin to send bytes."""
        self._check(rank, data)
        way = self.rank, rank, tag
        sent = _Sent(self.wires, way, data)
        self.wires.ways.setdefault(way, deque()).append(sent)
        return sent

    def receive(self, rank: int, data: Bytes, tag: int) -> _Receive:
        """Begin to receive bytes."""
        self._check(rank, data)
        return _Receive(self.wires, (rank, self.rank, tag), data)

    def _check(self, rank: int, data: Bytes) -> None:
        assert data.ndim == 1, f"a message has one dim; got shape {data.shape}"
        assert data.flags.c_contiguous, "a message is contiguous"
        assert data.size, "a message is not empty"
        assert rank != self.rank, "a rank does not send to itself"
        self.wires.check_connected(self.rank, rank)

    def pause(self) -> None:
        """Do nothing; the ranks take turns, so there is nothing to wait for."""

    def close(self) -> None:
        """Record that it was called."""
        self.closed = True
        self.wires.closed.add(self.rank)


def take_turns(
    executions: Sequence[Execution], order: Callable[[], int] | None = None, most: int = 10**6
) -> list[Exception | None]:
    """Step executions until each one is done or has failed; returns their errors.

    Raises:
        AssertionError: Some executions still wait after `most` steps.
    """
    errors: list[Exception | None] = [None] * len(executions)
    running = list(range(len(executions)))
    for turn in range(most):
        if not running:
            return errors
        i = running[(turn if order is None else order()) % len(running)]
        try:
            executions[i].step()
        except Exception as error:
            errors[i] = error
            running.remove(i)
            continue
        if executions[i].done:
            running.remove(i)
    raise AssertionError(f"after {most} rounds ranks {running} still wait")


def ranks_shards(
    shards: Mapping[str, Mapping[int, Array]], rank_of: Mapping[int, int], n_ranks: int
) -> list[dict[str, dict[int, Array]]]:
    """The source shards of each rank."""
    return [
        {
            name: {device: array for device, array in held.items() if rank_of[device] == rank}
            for name, held in shards.items()
        }
        for rank in range(n_ranks)
    ]
