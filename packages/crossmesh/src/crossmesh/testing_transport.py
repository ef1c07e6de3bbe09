"""An in-process transport, and ranks that take turns; for tests, without threads or time."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from crossmesh.errors import TransportError
from crossmesh.run.executor import Execution
from crossmesh.run.packing import Array
from crossmesh.run.transport import DATA, Bytes


class Wires:
    """What connects the ranks of one process: bytes on their way, and those that arrived.

    Args:
        rank_of: The rank of each device.
        n_ranks: How many there are.
        arrives: Called whenever a message could arrive: whether it does so now.
        like_gloo: Whether sends complete when their receives have begun, rather than seen them, and
            a rank that closes its transport breaks its connections: what has met a receive arrives,
            and nothing else can be sent or received.
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
        """Ranks that have closed their transports."""
        self.ways: dict[tuple[int, int, int], deque[_Sent]] = {}
        self.begun: Counter[tuple[int, int, int, str]] = Counter()
        """Sends and receives of each way."""
        self.sent_bytes: Counter[tuple[int, int]] = Counter()
        """Bytes of shards that passed from one rank to another."""
        self.corrupt: Callable[[Bytes], None] = lambda data: None
        """Called with what arrives of shards."""

    def transports(self) -> list["WireTransport"]:
        """One for each rank."""
        return [WireTransport(self, rank) for rank in range(self.n_ranks)]

    def check_connected(self, a: int, b: int) -> None:
        """Refuse what nothing connects any more.

        Raises:
            TransportError: one of two ranks has broken its connections.
        """
        broken = self.closed.intersection((a, b))
        if self.like_gloo and broken:
            raise TransportError(f"ranks that closed have no connections; rank {broken} did")


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
        """Whether it was received."""
        if self.taken or (self.wires.like_gloo and self.has_met):
            return True
        self.wires.check_connected(*self.way[:2])
        return False


class _Receive:
    """A receive, which takes the oldest message when it is tested."""

    def __init__(self, wires: Wires, way: tuple[int, int, int], data: Bytes) -> None:
        self.wires = wires
        self.way = way
        self.data = data
        self.done = False
        wires.begun[*way, "receive"] += 1

    def test(self) -> bool:
        """Whether it arrived."""
        queue = self.wires.ways.setdefault(self.way, deque())
        if not self.done and not (queue and queue[0].has_met):
            self.wires.check_connected(*self.way[:2])
        if self.done or not queue or not self.wires.arrives():
            return self.done
        sent = queue.popleft()
        if sent.data.size != self.data.size:
            raise TransportError(
                "a message has as many bytes as its receive; "
                f"rank {self.way[0]} sent {sent.data.size} bytes to rank {self.way[1]}, which "
                f"expects {self.data.size}"
            )
        self.data[:] = sent.data
        sent.taken = self.done = True
        if self.way[2] == DATA:
            self.wires.sent_bytes[self.way[:2]] += sent.data.size
            self.wires.corrupt(self.data)
        return True


class WireTransport:
    """One rank's end of the wires; sends complete when they are received, as of large messages."""

    def __init__(self, wires: Wires, rank: int) -> None:
        self.wires = wires
        self.rank = rank
        self.closed = False

    @property
    def n_ranks(self) -> int:
        """How many ranks there are."""
        return self.wires.n_ranks

    @property
    def rank_of(self) -> Mapping[int, int]:
        """The rank of each device."""
        return self.wires.rank_of

    def send(self, rank: int, data: Bytes, tag: int) -> _Sent:
        """Begin to send."""
        self._check(rank, data)
        way = self.rank, rank, tag
        sent = _Sent(self.wires, way, data)
        self.wires.ways.setdefault(way, deque()).append(sent)
        return sent

    def receive(self, rank: int, data: Bytes, tag: int) -> _Receive:
        """Begin to receive."""
        self._check(rank, data)
        return _Receive(self.wires, (rank, self.rank, tag), data)

    def _check(self, rank: int, data: Bytes) -> None:
        assert data.ndim == 1, f"{data.shape} is not one dim"
        assert data.flags.c_contiguous, "there are gaps"
        assert data.size, "a message is not empty"
        assert rank != self.rank, "a rank does not send to itself"
        self.wires.check_connected(self.rank, rank)

    def pause(self) -> None:
        """Nothing to wait for: ranks take turns."""

    def close(self) -> None:
        """Take note that it was called."""
        self.closed = True
        self.wires.closed.add(self.rank)


def take_turns(
    executions: Sequence[Execution], order: Callable[[], int] | None = None, most: int = 10**6
) -> list[Exception | None]:
    """Step executions until each is done or failed; the errors.

    Raises:
        AssertionError: after `most` rounds some still wait.
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
    """What each rank holds of the source shards."""
    return [
        {
            name: {device: array for device, array in held.items() if rank_of[device] == rank}
            for name, held in shards.items()
        }
        for rank in range(n_ranks)
    ]
