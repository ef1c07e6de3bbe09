"""`Agreement`: all ranks begin with the same plan, and end together or not at all.

Ranks are the nodes of a binomial tree, and talk to their neighbours in it only. READY, with a
digest of what a rank is about to do, goes up to rank 0 as soon as all below are ready, and from
there down again: then all are. DONE goes the same way. That is 4 (n - 1) short messages, of which
few leave a host: ranks of a host mostly are neighbours by number, and so in the tree. FAILED and
why goes in all directions, at any time.

A rank that has waited for long says WAITING and whom it lacks, and so does whoever hears that. So
all know who is missing, whatever is between them; also where it is rank 0.

    n_ranks = 8     0 - 1
                    0 - 2 - 3
                    0 - 4 - 5
                        4 - 6 - 7

Reference:
    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
    IJHPCA 19(1), 2005: the tree of its short broadcasts.
"""

import contextlib

import numpy as np

from crossmesh.errors import MismatchError, RankError, TransportError
from crossmesh.transport import CONTROL, Bytes, Pending, Transport

READY, DONE, WAITING, FAILED = 1, 2, 3, 4

MESSAGE_BYTES = 256
"""Of what is said: one byte says what, the others are a digest, ranks, or the beginning of a text.

Some eight times the SHA-256 digest, so that a reason fits.
"""

_RANK_BYTES = 4
_MOST_RANKS = (MESSAGE_BYTES - 1) // _RANK_BYTES - 2
"""That a message names, behind their number and what they are not yet."""


def parent_of(rank: int) -> int:
    """Whom a rank other than 0 reports to: it has all bits of the rank but the lowest."""
    return rank & (rank - 1)


def children_of(rank: int, n_ranks: int) -> tuple[int, ...]:
    """Who reports to a rank; the one with most ranks below it first.

    Examples:
        >>> children_of(0, 8), children_of(4, 8)
        ((4, 2, 1), (6, 5))
    """
    bits = (rank & -rank or n_ranks).bit_length()
    children = (rank + (1 << bit) for bit in reversed(range(bits)))
    return tuple(child for child in children if child < n_ranks and parent_of(child) == rank)


class Agreement:
    """What this rank told its neighbours, and they told it, about one transfer."""

    def __init__(self, transport: Transport, digest: bytes) -> None:
        self._transport = transport
        self._digest = digest
        rank = transport.rank
        self._children = children_of(rank, transport.n_ranks)
        self._parent = parent_of(rank) if rank else None
        neighbours = [*self._children, *([] if self._parent is None else [self._parent])]
        self._own = 0
        # READY or DONE: a child says it of all ranks below it, the parent of all there are.
        self._said = dict.fromkeys(neighbours, 0)
        self._heard = dict.fromkeys(neighbours, 0)
        self._waiting = False
        self._said_lacking: dict[tuple[int, int], tuple[int, ...]] = {}
        self._heard_lacking: dict[tuple[int, int], tuple[int, ...]] = {}
        self._failure: bytes | None = None
        self._failed: set[int] = set()
        self._sent: list[tuple[Bytes, Pending]] = []
        self._untold: dict[int, tuple[Bytes, Pending]] = {}
        self._receiving = {rank: self._listen(rank) for rank in neighbours}

    @property
    def reached(self) -> int:
        """What all ranks are, as far as this one knows: READY, DONE, or 0."""
        return self._below if self._parent is None else self._heard[self._parent]

    @property
    def _below(self) -> int:
        """What this rank and all below it are."""
        return min([self._own, *(self._heard[child] for child in self._children)])

    @property
    def lacking(self) -> tuple[int, ...]:
        """The ranks that keep the others from the next thing to be, without this one.

        It is those who say so, until they say whom they lack themselves.
        """
        found = set(self._lacking_beyond(None)) - {self._transport.rank}
        return tuple(sorted(found)) or tuple(rank for rank in self._heard if rank == self._parent)

    def say(self, what: int) -> None:
        """Begin to say that this rank is READY, to do what the digest is of; or, later, DONE."""
        self._own = what
        self._pass_on()

    def say_waiting(self) -> None:
        """Begin to say whom this rank lacks, and to say it again whenever that changes."""
        self._waiting = True
        self._pass_on()

    def say_failed(self, reason: str) -> None:
        """Begin to tell all neighbours that have not failed themselves, and are not gone."""
        own = self._transport.rank.to_bytes(_RANK_BYTES, "little") + reason.encode()
        data = _message(FAILED, self._failure or own)
        for rank in self._heard.keys() - self._failed:
            with contextlib.suppress(TransportError):
                self._untold[rank] = data, self._transport.send(rank, data, CONTROL)
                if rank not in self._receiving:
                    self._receiving[rank] = self._listen(rank)

    def told(self) -> bool:
        """Whether all neighbours took note that this rank failed, failed too, or are gone.

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
        """Take note of what neighbours say, and pass it on.

        Raises:
            MismatchError: a rank is about to do something else.
            RankError: a rank failed.
            TransportError: a neighbour is gone, and none said why.
        """
        gone = None
        for rank, (data, pending) in list(self._receiving.items()):
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
            self._failure = content
            raise _rank_error(content)
        if what == DONE:
            del self._receiving[rank]  # it has nothing to say any more
        else:
            self._receiving[rank] = self._listen(rank)
        if what == WAITING:
            self._waiting = True
            wanted, lacking = _unpacked(content)
            self._heard_lacking[rank, wanted] = lacking
        else:
            if what == READY and rank != self._parent:
                self._compare(rank, content[: len(self._digest)])
            self._heard[rank] = what
        self._pass_on()

    def _compare(self, rank: int, digest: bytes) -> None:
        if digest != self._digest:
            raise MismatchError(
                "all ranks execute the same plan, with the same arguments; "
                f"rank {rank} has digest {digest.hex()[:16]}, rank {self._transport.rank} has "
                f"{self._digest.hex()[:16]}; make the plan from equal arguments everywhere, with "
                "equal versions of crossmesh"
            )

    def _pass_on(self) -> None:
        """Tell neighbours what is news to them."""
        for rank, said in self._said.items():
            what = self._below if rank == self._parent else self.reached
            if what > said:
                self._said[rank] = what
                self._send(rank, what, self._digest if what == READY else b"")
            if self._waiting and what < DONE:  # who was told DONE does not listen any more
                wanted, lacking = self.reached + 1, self._lacking_beyond(rank)
                if self._said_lacking.get((rank, wanted)) != lacking:
                    self._said_lacking[rank, wanted] = lacking
                    self._send(rank, WAITING, _packed(wanted, lacking))

    def _lacking_beyond(self, neighbour: int | None) -> tuple[int, ...]:
        """Whom a neighbour lacks on this side of it, this rank among them; None: on all sides."""
        wanted = self.reached + 1
        lacking = set() if self._own >= wanted else {self._transport.rank}
        for rank, heard in self._heard.items():
            if rank != neighbour and heard < wanted:
                lacking.update(self._heard_lacking.get((rank, wanted), (rank,)))
        return tuple(sorted(lacking)[:_MOST_RANKS])

    def _send(self, rank: int, what: int, content: bytes) -> None:
        data = _message(what, content)
        self._sent.append((data, self._transport.send(rank, data, CONTROL)))

    def _listen(self, rank: int) -> tuple[Bytes, Pending]:
        data = np.empty(MESSAGE_BYTES, np.uint8)
        return data, self._transport.receive(rank, data, CONTROL)


def _message(what: int, content: bytes) -> Bytes:
    said = (bytes([what]) + content)[:MESSAGE_BYTES]
    return np.frombuffer(said.ljust(MESSAGE_BYTES, b"\0"), np.uint8).copy()


def _packed(wanted: int, lacking: tuple[int, ...]) -> bytes:
    return np.array([wanted, len(lacking), *lacking], f"<u{_RANK_BYTES}").tobytes()


def _unpacked(content: bytes) -> tuple[int, tuple[int, ...]]:
    wanted, count, *ranks = np.frombuffer(content, f"<u{_RANK_BYTES}", 2 + _MOST_RANKS).tolist()
    return wanted, tuple(ranks[:count])


def _rank_error(content: bytes) -> RankError:
    rank = int.from_bytes(content[:_RANK_BYTES], "little")
    text = content[_RANK_BYTES:].rstrip(b"\0").decode(errors="replace")
    error = RankError(f"all ranks complete a transfer, or none; rank {rank} failed: {text}")
    error.rank = rank
    return error
