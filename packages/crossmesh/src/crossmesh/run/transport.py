"""`Transport`: the interface of an engine that moves bytes between processes for the executor."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
"""An array of bytes with one dim, contiguous. One that is sent may be read-only."""

CONTROL, DATA = 0, 1
"""The two tags: messages of the agreement between ranks, and shards. A message with one tag never
waits for a message with the other."""


class Pending(Protocol):
    """A send or a receive that has begun; whoever began it keeps its buffer alive."""

    def test(self) -> bool:
        """Whether it is complete; once complete, it stays so. Never blocks.

        Raises:
            TransportError: It failed, for example because the other rank is gone, or because the
                message does not have exactly as many bytes as the buffer. An engine that cannot
                detect a message of another size never completes it.
        """


class Transport(Protocol):
    """Moves bytes between ranks without blocking, by MPI or a torch process group for example.

    Messages with the same tag from one rank to another arrive in the order in which they were sent,
    and receives complete in the order in which they were begun; the executor relies on no other
    order. A message has as many bytes as the receive that it meets, and at least one. A rank does
    not send to itself.
    """

    @property
    def rank(self) -> int:
        """The rank of this process, from 0 to `n_ranks` - 1."""

    @property
    def n_ranks(self) -> int:
        """The number of ranks."""

    @property
    def rank_of(self) -> Mapping[int, int]:
        """The rank of each device; a rank may have several devices, or none."""

    def send(self, rank: int, data: Bytes, tag: int) -> Pending:
        """Begin to send bytes; the caller does not change them before the send is complete."""

    def receive(self, rank: int, data: Bytes, tag: int) -> Pending:
        """Begin to receive into a buffer; its content is undefined until this is complete."""

    def pause(self) -> None:
        """Let other processes run for a moment; called when nothing was complete.

        Returns after a few milliseconds at most, or earlier if the engine can tell that something
        arrived.
        """

    def close(self) -> None:
        """After a failure, give up everything that has begun and is not complete.

        From then on no buffer is written any more, or the transport keeps the buffers alive that
        may still be written. The process can end without waiting for other ranks, and `send` and
        `receive` raise TransportError.
        """
