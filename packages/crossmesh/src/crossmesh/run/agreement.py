"""`Agreement`: all ranks begin with the same plan, and end together or not at all.

Ranks are the nodes of a binomial tree, and talk to their neighbours in it only. READY, with a
digest of what a rank is about to do, goes up to rank 0 as soon as all below are ready, and from
there down again: then all are. DONE goes the same way. That is 4 (n - 1) short messages, of which
few leave a host: ranks of a host mostly are neighbours by number, and so in the tree.

FAILED and why goes in all directions, at any time. A rank that leaves takes its connections along,
and with them, maybe, what others wait for: so none leaves before all know why. A rank says ALL_TOLD
to a neighbour once it knows itself and all its other neighbours have said it: then all know that
are not behind that neighbour. The leaves of the tree begin, and who heard it from all goes.

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

import numpy as np

from crossmesh.base.reasons import REASON_BYTES, error_of, reason_of
from crossmesh.errors import MismatchError, TransportError
from crossmesh.run.transport import CONTROL, Bytes, Pending, Transport

READY, DONE, WAITING, FAILED, ALL_TOLD = 1, 2, 3, 4, 5

MESSAGE_BYTES = 1 + REASON_BYTES
"""Of what is said: one byte says what, the others are a digest, ranks, or a reason."""

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
        self._reason = b""
        self._lost: TransportError | None = None
        self._failed: set[int] = set()  # neighbours that know of a failure
        self._told: set[int] = set()  # those behind which all know, or that are gone
        self._sent: list[tuple[Bytes, Pending]] = []
        self._receiving: dict[int, tuple[Bytes, Pending]] = {}
        for neighbour in neighbours:
            self._listen(neighbour)

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

    def say_failed(self, error: BaseException) -> None:
        """Begin to tell all other ranks that this one failed, or has heard of it, and why."""
        self._reason = reason_of(self._transport.rank, error)
        for rank in self._heard.keys() - self._told:
            if rank not in self._failed:
                self._send(rank, FAILED, self._reason)
            if rank not in self._receiving:  # it was done, and may fail all the same
                self._listen(rank)

    def told(self) -> bool:
        """Whether all ranks know that one failed, as far as there is a way to them.

        A rank that failed listens until then: what it is told may wait for that.
        """
        for rank in self._said.keys() - self._told:
            what, _ = self._hear_from(rank)
            if what == ALL_TOLD or rank not in self._receiving:
                self._told.add(rank)
            elif what:
                self._listen(rank)
        for rank, said in self._said.items():
            if said < ALL_TOLD and self._told.issuperset(self._said.keys() - {rank}):
                self._said[rank] = ALL_TOLD
                self._send(rank, ALL_TOLD, self._reason)
        return self._told.issuperset(self._said) and self._all_left()

    def sent(self) -> bool:
        """Whether all that was said has left.

        Raises:
            TransportError: a neighbour is gone.
        """
        left = self._all_left()
        if self._lost:
            raise self._lost
        return left

    def hear(self) -> None:
        """Take note of what neighbours say, and pass it on.

        Raises:
            MismatchError: a rank is about to do something else.
            RankError: a rank failed.
            TransportError: a neighbour is gone, and none has said why yet.
        """
        for rank in list(self._receiving):
            what, content = self._hear_from(rank)
            if what:
                self._note(rank, what, content)
        if self._lost:
            raise self._lost

    @property
    def is_alone(self) -> bool:
        """Whether all neighbours are gone, so that none can say anything any more."""
        return not self._receiving

    def _hear_from(self, rank: int) -> tuple[int, bytes]:
        """What a neighbour says now, and 0 if nothing; nobody listens to one that is gone."""
        try:
            data, pending = self._receiving[rank]
            if pending.test():
                return int(data[0]), data[1:].tobytes()
        except TransportError as error:
            del self._receiving[rank]
            self._lost = self._lost or error
        except KeyError:  # it was gone before
            pass
        return 0, b""

    def _note(self, rank: int, what: int, content: bytes) -> None:
        if what in (DONE, ALL_TOLD):
            del self._receiving[rank]  # it has nothing to say any more
        else:
            self._listen(rank)
        if what in (FAILED, ALL_TOLD):
            self._failed.add(rank)
            self._told.update([rank] if what == ALL_TOLD else [])
            raise error_of(content)
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
        try:
            self._sent.append((data, self._transport.send(rank, data, CONTROL)))
        except TransportError as error:  # it may have said why before it left
            self._lost = self._lost or error

    def _all_left(self) -> bool:
        """Whether all that was said has left, or is lost."""
        self._sent = [(data, pending) for data, pending in self._sent if not self._left(pending)]
        return not self._sent

    def _left(self, pending: Pending) -> bool:
        try:
            return pending.test()
        except TransportError as error:
            self._lost = self._lost or error
            return True

    def _listen(self, rank: int) -> None:
        self._receiving.pop(rank, None)
        data = np.empty(MESSAGE_BYTES, np.uint8)
        try:
            self._receiving[rank] = data, self._transport.receive(rank, data, CONTROL)
        except TransportError as error:
            self._lost = self._lost or error


def _message(what: int, content: bytes) -> Bytes:
    said = (bytes([what]) + content)[:MESSAGE_BYTES]
    return np.frombuffer(said.ljust(MESSAGE_BYTES, b"\0"), np.uint8).copy()


def _packed(wanted: int, lacking: tuple[int, ...]) -> bytes:
    return np.array([wanted, len(lacking), *lacking], f"<u{_RANK_BYTES}").tobytes()


def _unpacked(content: bytes) -> tuple[int, tuple[int, ...]]:
    wanted, count, *ranks = np.frombuffer(content, f"<u{_RANK_BYTES}", 2 + _MOST_RANKS).tolist()
    return wanted, tuple(ranks[:count])
