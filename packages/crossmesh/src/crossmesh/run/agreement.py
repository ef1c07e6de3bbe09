"""`Agreement`: all ranks begin with the same plan, and either all complete it or none does.

The ranks form a binomial tree, and each rank communicates with its neighbours in the tree only.

READY carries a digest of what a rank is about to do. A rank sends it to its parent as soon as it
and all ranks below it are ready; when it has reached rank 0, all are ready, and READY goes down the
tree again. DONE goes the same way. Together these are 4 (n - 1) short messages, few of which leave
a host: the ranks of a host mostly have adjacent numbers, and so are neighbours in the tree.

FAILED carries the reason of a failure, in all directions and at any time. A rank that leaves closes
its connections, and perhaps takes along messages that others wait for. So no rank leaves before all
know the reason. A rank sends ALL_TOLD to a neighbour once it knows the reason itself and all its
other neighbours have sent it ALL_TOLD: then every rank knows, except those behind that neighbour.
The leaves of the tree send it first, and a rank that has received it from all neighbours may leave.

WAITING carries the ranks that are missing, and those of them that are silent. A rank that has
waited for long sends it, and so does each rank that receives it. So all ranks know which are
missing, however far away those are in the tree, also if rank 0 is one of them. A rank that has
waited for long also asks its neighbours by ALIVE every now and then, and each answers. A neighbour
from which nothing comes for several times as long is silent: it was stopped, or is not there. Ranks
that wait for it in vain are not silent.

    n_ranks = 8     0 - 1
                    0 - 2 - 3
                    0 - 4 - 5
                        4 - 6 - 7

Reference:
    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
    IJHPCA 19(1), 2005: the tree of its broadcast for short messages.
"""

import numpy as np

from crossmesh.base.reasons import REASON_BYTES, error_of, reason_of, silent_of
from crossmesh.errors import MismatchError, TransportError
from crossmesh.run.transport import CONTROL, Bytes, Pending, Transport

READY, DONE, WAITING, FAILED, ALL_TOLD, ALIVE = 1, 2, 3, 4, 5, 6

_ASKS = b"?"
"""The content of an ALIVE that asks for an ALIVE, which has no content."""

BEATS = 4
"""A neighbour from which nothing comes for this many intervals between two questions is silent."""

MESSAGE_BYTES = 1 + REASON_BYTES
"""Bytes of each message: one for its kind; the others are a digest, ranks, or a reason."""

_RANK_BYTES = 4
_MOST_RANKS = ((MESSAGE_BYTES - 1) // _RANK_BYTES - 3) // 2
"""The most ranks that a WAITING names of either kind, after the state that they lack and the number
of each kind."""


def parent_of(rank: int) -> int:
    """The parent of a rank other than 0: the rank without its lowest set bit."""
    return rank & (rank - 1)


def children_of(rank: int, n_ranks: int) -> tuple[int, ...]:
    """The children of a rank; the one with the most ranks below it first.

    Examples:
        >>> children_of(0, 8), children_of(4, 8)
        ((4, 2, 1), (6, 5))
    """
    bits = (rank & -rank or n_ranks).bit_length()
    children = (rank + (1 << bit) for bit in reversed(range(bits)))
    return tuple(child for child in children if child < n_ranks and parent_of(child) == rank)


Ranks = tuple[int, ...]


class Agreement:
    """The state of one transfer's agreement: what this rank and its neighbours told each other."""

    def __init__(self, transport: Transport, digest: bytes) -> None:
        self._transport = transport
        self._digest = digest
        rank = transport.rank
        self._children = children_of(rank, transport.n_ranks)
        self._parent = parent_of(rank) if rank else None
        neighbours = [*self._children, *([] if self._parent is None else [self._parent])]
        self._own = 0
        # READY or DONE: from a child, for all ranks of its subtree; from the parent, for all ranks.
        self._said = dict.fromkeys(neighbours, 0)
        self._heard = dict.fromkeys(neighbours, 0)
        self._waiting = False
        self._said_lacking: dict[tuple[int, int], tuple[Ranks, Ranks]] = {}
        self._heard_lacking: dict[tuple[int, int], tuple[Ranks, Ranks]] = {}
        self._heard_at_s: dict[int, float] = {}  # when each neighbour was heard; {} before beats
        self._heard_now: set[int] = set()  # neighbours that were heard since the last beat
        self._next_beat_s = 0.0
        self._silent_here: Ranks = ()  # neighbours
        self._reason = b""
        self._lost: TransportError | None = None
        self._failed: set[int] = set()  # neighbours that know of a failure
        self._unreachable: set[int] = set()  # neighbours to which nothing comes, after a failure
        self._told: set[int] = set()  # neighbours behind which all know of it, or that are gone
        self._sent: list[tuple[int, Bytes, Pending]] = []  # with the neighbour
        self._receiving: dict[int, tuple[Bytes, Pending]] = {}
        for neighbour in neighbours:
            self._listen(neighbour)

    @property
    def reached(self) -> int:
        """The state that all ranks have reached, as far as this one knows: READY, DONE, or 0."""
        return self._below if self._parent is None else self._heard[self._parent]

    @property
    def _below(self) -> int:
        """The state that this rank and all ranks below it have reached."""
        return min([self._own, *(self._heard[child] for child in self._children)])

    @property
    def lacking(self) -> tuple[int, ...]:
        """The other ranks that have not reached the next state, as far as this one knows.

        A neighbour that has not reported READY or DONE counts as one of them, until it says which
        ranks it waits for itself. Once all are done: those that do not take this rank's messages.
        """
        if self.reached >= DONE:
            return tuple(sorted(self._awaited))
        others = set(self._lacking_beyond(None)) - {self._transport.rank}
        return tuple(sorted(others)) or tuple(rank for rank in self._heard if rank == self._parent)

    @property
    def silent(self) -> tuple[int, ...]:
        """The ranks that are silent, as far as this one knows."""
        return self._silent_beyond(None)

    @property
    def _awaited(self) -> set[int]:
        """The neighbours that this rank waits for: to reach the next state, or to take messages."""
        if self.reached < DONE:
            return {rank for rank, heard in self._heard.items() if heard <= self.reached}
        return {rank for rank, _, _ in self._sent}

    def beat(self, now_s: float, every_s: float) -> None:
        """Ask all neighbours if the last time is this long ago, and note which of them are silent.

        Call it right after `hear`, so that what has arrived is known.

        Args:
            now_s: The time; from the first call on, neighbours may be silent.
            every_s: The interval between two questions.
        """
        if not self._heard_at_s:
            self._heard_at_s = dict.fromkeys(self._heard, now_s)
        self._heard_at_s.update(dict.fromkeys(self._heard_now, now_s))
        self._heard_now.clear()
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + every_s
            for rank, said in self._said.items():
                if said < DONE:  # a neighbour that got DONE listens no more
                    self._send(rank, ALIVE, _ASKS)
        silent = tuple(
            rank
            for rank in sorted(self._awaited)
            if now_s - self._heard_at_s[rank] > BEATS * every_s
        )
        if silent != self._silent_here:
            self._silent_here, self._waiting = silent, True
            self._pass_on()

    def say(self, what: int) -> None:
        """Report that this rank is READY for what the digest describes; or, later, DONE."""
        self._own = what
        self._pass_on()

    def say_waiting(self) -> None:
        """Report which ranks this one waits for, now and whenever that changes."""
        self._waiting = True
        self._pass_on()

    def say_failed(self, error: BaseException) -> None:
        """Begin to tell all other ranks why this one failed, or why it heard that another did."""
        self._reason = reason_of(self._transport.rank, error)
        for rank in self._heard.keys() - self._told:
            if rank not in self._failed:
                self._send(rank, FAILED, self._reason)
            if rank not in self._receiving:  # it was done, but may still fail
                self._listen(rank)
        self._unreachable = self._said.keys() & set(silent_of(error))
        self._told |= self._unreachable  # they would be waited for in vain

    def told(self) -> bool:
        """Whether all ranks know of the failure, as far as messages can reach them.

        A rank that failed calls this until it is true, because it also receives messages: the
        sends of other ranks may not complete before this rank has received them.
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
        """Whether all messages of this rank have left.

        Raises:
            TransportError: A neighbour is gone.
        """
        left = self._all_left()
        if self._lost:
            raise self._lost
        return left

    def hear(self) -> None:
        """Receive messages of the neighbours, and pass on what is new.

        Raises:
            MismatchError: A rank is about to do something else.
            RankError: A rank failed.
            TransportError: A neighbour is gone, and no rank has sent the reason yet.
        """
        for rank in list(self._receiving):
            what, content = self._hear_from(rank)
            if what:
                self._note(rank, what, content)
        if self._lost:
            raise self._lost

    @property
    def is_alone(self) -> bool:
        """Whether all neighbours are gone, so that no message can arrive any more."""
        return not self._receiving

    def _hear_from(self, rank: int) -> tuple[int, bytes]:
        """The kind and content of a neighbour's new message; 0 if there is none, or it is gone."""
        try:
            data, pending = self._receiving[rank]
            if pending.test():
                return int(data[0]), data[1:].tobytes()
        except TransportError as error:
            del self._receiving[rank]
            self._lost = self._lost or error
        except KeyError:  # it was already gone
            pass
        return 0, b""

    def _note(self, rank: int, what: int, content: bytes) -> None:
        self._heard_now.add(rank)
        if what in (DONE, ALL_TOLD):
            del self._receiving[rank]  # this was its last message
        else:
            self._listen(rank)
        if what in (FAILED, ALL_TOLD):
            self._failed.add(rank)
            self._told.update([rank] if what == ALL_TOLD else [])
            raise error_of(content)
        if what == WAITING:
            self._waiting = True
            wanted, *ranks = _unpacked(content)
            self._heard_lacking[rank, wanted] = ranks[0], ranks[1]
        elif what == ALIVE:
            if content.startswith(_ASKS) and self._said[rank] < DONE:
                self._send(rank, ALIVE, b"")
        else:
            if what == READY and rank != self._parent:
                self._compare(rank, content[: len(self._digest)])
            self._heard[rank] = what
        self._pass_on()

    def _compare(self, rank: int, digest: bytes) -> None:
        if digest != self._digest:
            error = MismatchError(
                "all ranks execute the same plan, with the same arguments; "
                f"rank {rank} has digest {digest.hex()[:16]}, rank {self._transport.rank} has "
                f"{self._digest.hex()[:16]}; make the plan from equal arguments everywhere, with "
                "the same version of crossmesh"
            )
            error.culprits = tuple(sorted((rank, self._transport.rank)))
            raise error

    def _pass_on(self) -> None:
        """Send the neighbours what is new to them."""
        for rank, said in self._said.items():
            what = self._below if rank == self._parent else self.reached
            if what > said:
                self._said[rank] = what
                self._send(rank, what, self._digest if what == READY else b"")
            if self._waiting and what < DONE:  # a neighbour that got DONE listens no more
                wanted = self.reached + 1
                said_ = self._lacking_beyond(rank), self._silent_beyond(rank)
                if self._said_lacking.get((rank, wanted)) != said_:
                    self._said_lacking[rank, wanted] = said_
                    self._send(rank, WAITING, _packed(wanted, *said_))

    def _lacking_beyond(self, neighbour: int | None) -> tuple[int, ...]:
        """The ranks on this rank's side of a neighbour that have not reached the next state.

        This rank counts too. None: the ranks on all sides.
        """
        wanted = self.reached + 1
        lacking = set() if self._own >= wanted else {self._transport.rank}
        for rank, heard in self._heard.items():
            if rank != neighbour and heard < wanted:
                beyond, _ = self._heard_lacking.get((rank, wanted), ((rank,), ()))
                lacking.update(beyond)
        return tuple(sorted(lacking)[:_MOST_RANKS])

    def _silent_beyond(self, neighbour: int | None) -> tuple[int, ...]:
        """The ranks on this rank's side of a neighbour that are silent, as `_lacking_beyond`."""
        wanted = self.reached + 1
        silent = {rank for rank in self._silent_here if rank != neighbour}
        for (rank, lacked), (_, beyond) in self._heard_lacking.items():
            if rank != neighbour and lacked == wanted and rank not in self._silent_here:
                silent.update(beyond)
        return tuple(sorted(silent - {self._transport.rank})[:_MOST_RANKS])

    def _send(self, rank: int, what: int, content: bytes) -> None:
        data = _message(what, content)
        try:
            self._sent.append((rank, data, self._transport.send(rank, data, CONTROL)))
        except TransportError as error:  # the neighbour may have sent the reason before it left
            self._lost = self._lost or error

    def _all_left(self) -> bool:
        """Whether all messages have left or are lost, but for those to silent ranks."""
        self._sent = [sent for sent in self._sent if not self._left(sent[2])]
        return all(rank in self._unreachable for rank, _, _ in self._sent)

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


def _packed(wanted: int, lacking: Ranks, silent: Ranks) -> bytes:
    numbers = [wanted, len(lacking), len(silent), *lacking, *silent]
    return np.array(numbers, f"<u{_RANK_BYTES}").tobytes()


def _unpacked(content: bytes) -> tuple[int, Ranks, Ranks]:
    wanted, n_lacking, n_silent, *ranks = np.frombuffer(
        content, f"<u{_RANK_BYTES}", 3 + 2 * _MOST_RANKS
    ).tolist()
    return wanted, tuple(ranks[:n_lacking]), tuple(ranks[n_lacking : n_lacking + n_silent])
