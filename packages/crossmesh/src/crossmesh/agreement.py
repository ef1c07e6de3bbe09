"""`Agreement`: all ranks begin with the same plan, and end together or not at all.

Each rank says READY and what it is about to do, then DONE; or FAILED and why, at any time. Each
tells all others, so that whoever is missing is known by number, whoever else is gone.
"""

import numpy as np

from crossmesh.errors import MismatchError, RankError, TransportError
from crossmesh.transport import CONTROL, Bytes, Pending, Transport

READY, DONE, FAILED = 1, 2, 3

MESSAGE_BYTES = 256
"""Of what is said: one byte says what, the others are a digest or the beginning of a text.

Some eight times the SHA-256 digest, so that a reason fits.
"""


class Agreement:
    """What this rank told all others, and they told it, about one transfer."""

    def __init__(self, transport: Transport, digest: bytes) -> None:
        self._transport = transport
        self._digest = digest
        self._sent: list[tuple[Bytes, Pending]] = []
        peers = [rank for rank in range(transport.n_ranks) if rank != transport.rank]
        self.not_ready = set(peers)
        """Ranks that were not heard yet."""
        self.not_done = set(peers)
        """Ranks that may still need something."""
        self._receiving = {rank: self._listen(rank) for rank in peers}

    def say(self, what: int, content: bytes = b"") -> None:
        """Begin to tell all other ranks."""
        data = np.zeros(MESSAGE_BYTES, np.uint8)
        said = bytes([what]) + content[: MESSAGE_BYTES - 1]
        data[: len(said)] = np.frombuffer(said, np.uint8)
        for rank in self._receiving:
            self._sent.append((data, self._transport.send(rank, data, CONTROL)))

    def say_ready(self) -> None:
        """Begin to tell all other ranks that this one is, and the digest of what it will do."""
        self.say(READY, self._digest)

    def sent(self) -> bool:
        """Whether all that was said has left."""
        self._sent = [(data, pending) for data, pending in self._sent if not pending.test()]
        return not self._sent

    def hear(self) -> None:
        """Take note of what the others say.

        Raises:
            MismatchError: a rank is about to do something else.
            RankError: a rank failed.
            TransportError: a rank is gone, and none said why.
        """
        gone = None
        for rank in sorted(self.not_done):
            data, pending = self._receiving[rank]
            try:
                heard = pending.test()
            except TransportError as error:
                gone = error
                continue
            if heard:
                self._note(rank, data[0], data[1:].tobytes())
        if gone:
            raise gone

    def _note(self, rank: int, what: int, content: bytes) -> None:
        if what == FAILED:
            text = content.rstrip(b"\0").decode(errors="replace")
            error = RankError(f"all ranks complete a transfer, or none; rank {rank} failed: {text}")
            error.rank = rank
            raise error
        if what == DONE:
            self.not_done.remove(rank)
            return
        digest = content[: len(self._digest)]
        if digest != self._digest:
            raise MismatchError(
                "all ranks execute the same plan, with the same arguments; "
                f"rank {rank} has digest {digest.hex()[:16]}, rank {self._transport.rank} has "
                f"{self._digest.hex()[:16]}; make the plan from equal arguments everywhere, with "
                "equal versions of crossmesh"
            )
        self.not_ready.remove(rank)
        self._receiving[rank] = self._listen(rank)

    def _listen(self, rank: int) -> tuple[Bytes, Pending]:
        data = np.empty(MESSAGE_BYTES, np.uint8)
        return data, self._transport.receive(rank, data, CONTROL)
