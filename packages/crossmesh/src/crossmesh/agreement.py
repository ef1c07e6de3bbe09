"""`Agreement`: all ranks begin with the same plan, and end together or not at all.

Each rank says READY and what it is about to do, then DONE; or FAILED and why, at any time. Each
tells all others, so that whoever is missing is known by number, whoever else is gone.
"""

import contextlib

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
        self._untold: dict[int, tuple[Bytes, Pending]] = {}
        self._failed: set[int] = set()
        peers = [rank for rank in range(transport.n_ranks) if rank != transport.rank]
        self.not_ready = set(peers)
        """Ranks that were not heard yet."""
        self.not_done = set(peers)
        """Ranks that may still need something."""
        self._receiving = {rank: self._listen(rank) for rank in peers}

    def say_ready(self) -> None:
        """Begin to tell all other ranks that this one is, and the digest of what it will do."""
        self._say(READY, self._digest)

    def say_done(self) -> None:
        """Begin to tell all other ranks that this one needs nothing more."""
        self._say(DONE)

    def say_failed(self, reason: str) -> None:
        """Begin to tell all other ranks that have not failed themselves, and are not gone."""
        data = _message(FAILED, reason.encode())
        for rank in self._receiving.keys() - self._failed:
            with contextlib.suppress(TransportError):
                self._untold[rank] = data, self._transport.send(rank, data, CONTROL)

    def told(self) -> bool:
        """Whether all others took note that this rank failed, failed too, or are gone.

        A rank that failed listens until then: what it is told may wait for that.
        """
        for rank, (_, sent) in list(self._untold.items()):
            data, pending = self._receiving[rank]
            try:
                told = sent.test()
                if not told and pending.test():
                    told = data[0] == FAILED
                    if not told:
                        self._receiving[rank] = self._listen(rank)
            except TransportError:
                told = True
            if told:
                del self._untold[rank]
        return not self._untold

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
            self._failed.add(rank)
            text = content.rstrip(b"\0").decode(errors="replace")
            error = RankError(f"all ranks complete a transfer, or none; rank {rank} failed: {text}")
            error.rank = rank
            raise error
        if what == DONE:
            self.not_done.remove(rank)
            return
        self._receiving[rank] = self._listen(rank)
        digest = content[: len(self._digest)]
        if digest != self._digest:
            raise MismatchError(
                "all ranks execute the same plan, with the same arguments; "
                f"rank {rank} has digest {digest.hex()[:16]}, rank {self._transport.rank} has "
                f"{self._digest.hex()[:16]}; make the plan from equal arguments everywhere, with "
                "equal versions of crossmesh"
            )
        self.not_ready.remove(rank)

    def _say(self, what: int, content: bytes = b"") -> None:
        data = _message(what, content)
        for rank in self._receiving:
            self._sent.append((data, self._transport.send(rank, data, CONTROL)))

    def _listen(self, rank: int) -> tuple[Bytes, Pending]:
        data = np.empty(MESSAGE_BYTES, np.uint8)
        return data, self._transport.receive(rank, data, CONTROL)


def _message(what: int, content: bytes) -> Bytes:
    said = (bytes([what]) + content)[:MESSAGE_BYTES]
    return np.frombuffer(said.ljust(MESSAGE_BYTES, b"\0"), np.uint8).copy()
