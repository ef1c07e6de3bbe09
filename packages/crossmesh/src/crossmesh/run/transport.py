"""`Transport`: what an executor needs from an engine that moves bytes between processes."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
"""One dim, contiguous. What is sent may be read-only."""

CONTROL, DATA = 0, 1
"""The two tags: agreement between ranks, and shards. They never wait for each other."""


class Pending(Protocol):
    """A send or a receive that was begun; whoever began it keeps its buffer alive."""

    def test(self) -> bool:
        """Whether it is complete; once it is, it stays so. Never blocks.

        Raises:
            TransportError: it failed, such as when the other rank is gone, or a message came that
                has not exactly the bytes of the buffer; where an engine cannot tell, a message of
                another size is never complete.
        """


class Transport(Protocol):
    """Moves bytes between ranks without blocking: MPI, a torch process group, or a test's own.

    Messages with one tag from one rank to another arrive in the order in which they were sent, and
    receives complete in the order in which they were begun; no other order is relied on. A message
    has as many bytes as the receive that it meets, never none. A rank does not send to itself.
    """

    @property
    def rank(self) -> int:
        """Which rank this is, of 0 to `n_ranks` - 1."""

    @property
    def n_ranks(self) -> int:
        """How many there are."""

    @property
    def rank_of(self) -> Mapping[int, int]:
        """The rank of each device; a rank may have several, or none."""

    def send(self, rank: int, data: Bytes, tag: int) -> Pending:
        """Begin to send bytes; they do not change before it is complete."""

    def receive(self, rank: int, data: Bytes, tag: int) -> Pending:
        """Begin to receive into a buffer, whose content is undefined before it is complete."""

    def pause(self) -> None:
        """Called when nothing was complete: give the processor to others for a moment.

        It returns after at most some milliseconds, or earlier when it can tell that something
        arrived.
        """

    def close(self) -> None:
        """Give up everything that was begun and is not complete, after a failure.

        From then on no buffer is written any more, or the transport keeps those that may be; the
        process can end without waiting for other ranks; `send` and `receive` raise TransportError.
        """
