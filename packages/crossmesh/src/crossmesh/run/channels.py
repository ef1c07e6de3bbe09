"""`Channels`: the messages between this rank and the others, in the order of the program."""

import zlib
from collections import defaultdict, deque
from collections.abc import Iterator

import numpy as np

from crossmesh.errors import ChecksumError, InternalError
from crossmesh.run.transport import DATA, Bytes, Pending, Transport
from crossmesh.transfer.messages import Leg, MessageChunk

CHECKSUM_BYTES = 4
"""Bytes of a CRC-32."""


class Message:
    """One leg of a chunk, sent to or received from another rank."""

    def __init__(self, chunk: MessageChunk, leg: Leg, data: Bytes | None = None) -> None:
        self.chunk = chunk
        self.leg = leg
        self.data = data
        """The bytes to send, None while this rank does not have them yet; or the buffer to receive
        into."""
        self.checksum = np.zeros(CHECKSUM_BYTES, np.uint8)
        self.pending: list[Pending] = []
        self.done = False

    @property
    def content(self) -> Bytes:
        """The bytes of the message.

        Raises:
            InternalError: The message has no bytes yet.
        """
        if self.data is None:
            raise InternalError(f"a message has bytes before they are used; got {self}")
        return self.data

    def __str__(self) -> str:
        return f"{self.chunk} from device {self.leg.sender} to device {self.leg.receiver}"


class Channels:
    """Begins and completes messages; those between two ranks in the order of the program.

    Sends are reserved in that order. Each send begins as soon as it has its bytes and all sends to
    the same rank before it have begun.
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
        """Reserve the next place in the order of sends; it is sent once `message.data` is set."""
        self._reserved[self._transport.rank_of[message.leg.receiver]].append(message)

    def advance(self) -> list[Message]:
        """Begin all sends that can begin; return the messages that were completed since last time.

        Raises:
            ChecksumError: The bytes that arrived differ from those that were sent.
            TransportError: A rank is gone.
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
        """The oldest incomplete message to and from each other rank, as (rank, text)."""
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
    arrived = _checksum(message)
    if not np.array_equal(message.checksum, arrived):
        raise ChecksumError(
            "bytes arrive as they were sent; got another CRC-32 for "
            f"{message}: {message.checksum.tobytes().hex()} sent, {arrived.tobytes().hex()} "
            "arrived; look for bad memory or network adapters"
        )
