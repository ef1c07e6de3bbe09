"""`Channels`: the messages of chunks between this rank and others, in the program's order."""

import zlib
from collections import defaultdict, deque
from collections.abc import Iterator

import numpy as np

from crossmesh.errors import ChecksumError, InternalError
from crossmesh.run.transport import DATA, Bytes, Pending, Transport
from crossmesh.transfer.messages import Leg, MessageChunk

CHECKSUM_BYTES = 4
"""Of a CRC-32."""


class Message:
    """One leg of a chunk, from or to another rank."""

    def __init__(self, chunk: MessageChunk, leg: Leg, data: Bytes | None = None) -> None:
        self.chunk = chunk
        self.leg = leg
        self.data = data
        """What is sent, None while it is not there yet; or where to receive."""
        self.checksum = np.zeros(CHECKSUM_BYTES, np.uint8)
        self.pending: list[Pending] = []
        self.done = False

    @property
    def content(self) -> Bytes:
        """The bytes that are there.

        Raises:
            InternalError: They are not there yet.
        """
        if self.data is None:
            raise InternalError(f"a message has its bytes when they are looked at; got {self}")
        return self.data

    def __str__(self) -> str:
        return f"{self.chunk} from device {self.leg.sender} to device {self.leg.receiver}"


class Channels:
    """Begins and completes messages: between two ranks, one after the other.

    Sends are reserved in the program's order and leave in that order, each as soon as its bytes are
    there and all before it have left.
    """

    def __init__(self, transport: Transport, checksums: bool) -> None:
        self._transport = transport
        self._checksums = checksums
        self._reserved: defaultdict[int, deque[Message]] = defaultdict(deque)
        self._sending: defaultdict[int, deque[Message]] = defaultdict(deque)
        self._receiving: defaultdict[int, deque[Message]] = defaultdict(deque)

    def receive(self, message: Message) -> None:
        """Begin to receive into `message.data`."""
        rank = self._transport.rank_of[message.leg.sender]
        for data in self._parts(message):
            message.pending.append(self._transport.receive(rank, data, DATA))
        self._receiving[rank].append(message)

    def reserve(self, message: Message) -> None:
        """Take a place in the order; it is sent when `message.data` is set."""
        self._reserved[self._transport.rank_of[message.leg.receiver]].append(message)

    def advance(self) -> list[Message]:
        """Send what can be sent; what has arrived and what has left since.

        Raises:
            ChecksumError: other bytes arrived than were sent.
            TransportError: a rank is gone.
        """
        for rank, queue in self._reserved.items():
            while queue and queue[0].data is not None:
                message = queue.popleft()
                if self._checksums:
                    message.checksum[:] = _checksum(message)
                for data in self._parts(message):
                    message.pending.append(self._transport.send(rank, data, DATA))
                self._sending[rank].append(message)
        left = _completed(self._sending)
        arrived = _completed(self._receiving)
        if self._checksums:
            for message in arrived:
                _check(message)
        return left + arrived

    def waiting(self) -> Iterator[tuple[int, str]]:
        """The oldest message between this rank and each other that is not complete: rank, text."""
        for rank, queue in self._receiving.items():
            if queue:
                yield rank, f"to send {queue[0]}"
        for rank, queue in self._sending.items():
            if queue:
                yield rank, f"to take {queue[0]}"

    def _parts(self, message: Message) -> Iterator[Bytes]:
        yield message.content
        if self._checksums:
            yield message.checksum


def _completed(queues: dict[int, deque[Message]]) -> list[Message]:
    completed = []
    for queue in queues.values():
        while queue and all(pending.test() for pending in queue[0].pending):
            completed.append(queue.popleft())
            completed[-1].done = True
    return completed


def _checksum(message: Message) -> Bytes:
    content = message.content
    return np.frombuffer(zlib.crc32(content.data).to_bytes(CHECKSUM_BYTES, "little"), np.uint8)


def _check(message: Message) -> None:
    found = _checksum(message)
    if not np.array_equal(message.checksum, found):
        raise ChecksumError(
            "bytes arrive as they were sent; got another CRC-32 for "
            f"{message}: {message.checksum.tobytes().hex()} sent, {found.tobytes().hex()} arrived; "
            "look for bad memory or network adapters"
        )
