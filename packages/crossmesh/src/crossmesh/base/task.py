"""`UnitTask`: which bytes go from which devices to which other devices, and along which path."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from shardspec import Reduction

from crossmesh.base.geometry import Box

TaskStrategy = Literal["broadcast", "send_recv", "local_allgather", "global_allgather", "signal"]
"""How bytes reach several receivers (Zhuang et al., MLSys 2023, section 3.1):

- `broadcast`: each receiver passes the bytes on to the next one, chunk by chunk.
- `send_recv`: each receiver has a task of its own.
- `local_allgather`: each receiving host has a task of its own; its devices get one part each and
  exchange the parts.
- `global_allgather`: all receivers get one part each and exchange the parts in a ring.
- `signal`: a broadcast of one byte that delivers nothing; it shows what communication costs at
  least.
"""


class Piece(NamedTuple):
    """A box of one tensor; its bytes are those of its elements, in the order of the tensor."""

    tensor: int
    """Index into the plan's tensors."""
    box: Box
    """Start and stop in each dim of the whole tensor."""


class Hop(NamedTuple):
    """All bytes that one device sends to another one for a task."""

    sender: int
    receiver: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class UnitTask:
    """Moves bytes from devices that hold them to devices that need them and lack them."""

    index: int
    """Position in the order of all tasks; every device takes up its tasks in this order."""
    pieces: tuple[Piece, ...]
    """The pieces that it moves, all with the same holders and receivers; their bytes are packed one
    after the other."""
    part: tuple[int, int]
    """The bytes of the packed pieces that this task moves: start and stop, between elements."""
    terms: tuple[tuple[int, ...], ...]
    """The devices that hold each term of a partial sum, sorted; a plain copy has one term."""
    reduction: tuple[tuple[Reduction, int], ...]
    """How the terms combine: levels of (kind, number of terms), major to minor; () for a plain
    copy."""
    receivers: tuple[int, ...]
    """The devices that get the result, sorted; none of them holds it before."""
    strategy: TaskStrategy
    """How the result reaches the receivers."""
    path: tuple[int, ...]
    """The devices that the bytes pass, in order: first one adder for each term, then the receivers.
    If the last adder is a receiver, it is not repeated. Devices of one host are adjacent."""
    n_chunks: int
    """The number of chunks into which the bytes are cut on their way."""
    tree: tuple[int, ...] = ()
    """One entry for each position on the path except that of the last adder. For another adder it
    is the position that it sends to, which comes later on the path; for a receiver it is the
    position that it gets the bytes from, which comes earlier. () means a chain: each device sends
    to the next one on the path."""

    @property
    def n_bytes(self) -> int:
        """The bytes that each receiver gets."""
        return self.part[1] - self.part[0]

    @property
    def adders(self) -> tuple[int, ...]:
        """The devices that contribute one term each, in the order in which they add.

        A plain copy has one, its sender.
        """
        return self.path[: len(self.terms)]

    @property
    def sender(self) -> int:
        """The last adder: the first device that has the result; the receivers get it from there."""
        return self.path[len(self.terms) - 1]

    @property
    def senders(self) -> tuple[int, ...]:
        """The device that was chosen to contribute each term, in the order of `terms`."""
        adders = set(self.adders)
        return tuple(next(d for d in term if d in adders) for term in self.terms)

    @property
    def followers(self) -> tuple[int, ...]:
        """The receivers in the order of the path, except the sender."""
        return self.path[len(self.terms) :]

    @property
    def hops(self) -> Iterator[Hop]:
        """All bytes that devices send each other.

        Terms of one kind are added on the way: each adder adds its term to what the adder before it
        sends. Terms of several kinds, such as a sum of maxima, cannot be combined one after the
        other: the sender gets all of them.
        """
        n_bytes = 1 if self.strategy == "signal" else self.n_bytes
        adding, passing = self.legs(in_a_row=len(self.reduction) < 2)
        yield from (Hop(a, b, n_bytes) for a, b in adding)
        if self.strategy in ("local_allgather", "global_allgather"):
            yield from self._scatter_and_gather()
        else:
            yield from (Hop(a, b, n_bytes) for a, b in passing)

    def legs(self, *, in_a_row: bool) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The messages that bring the terms together, and those that pass the result on.

        Args:
            in_a_row: Whether each adder combines its term with what it receives and sends the
                result on; otherwise all terms go to the last adder.

        Returns:
            Two lists of pairs (sending device, receiving device), in an order in which each sender
            has received all that it sends.
        """
        path, root = self.path, len(self.terms) - 1
        after = self.tree or (*range(1, root + 1), *range(root, len(path) - 1))
        adding = [(path[i], path[after[i] if in_a_row else root]) for i in range(root)]
        return adding, [(path[after[i - 1]], path[i]) for i in range(root + 1, len(path))]

    def shares(self) -> tuple[tuple[int, int], ...]:
        """The bytes that each follower gets from the sender in an all-gather: starts and stops."""
        n = len(self.followers)
        cuts = [self.part[0] + self.n_bytes * i // n for i in range(n + 1)] if n else []
        return tuple(itertools.pairwise(cuts))

    def _scatter_and_gather(self) -> Iterator[Hop]:
        followers, sizes = self.followers, [stop - start for start, stop in self.shares()]
        for follower, size in zip(followers, sizes, strict=True):
            yield Hop(self.sender, follower, size)
        # In the ring, each follower passes on all bytes except the share that the next follower
        # got from the sender.
        if len(followers) > 1:
            ring = (*followers, followers[0])
            for (a, b), size in zip(itertools.pairwise(ring), (*sizes[1:], sizes[0]), strict=True):
                yield Hop(a, b, self.n_bytes - size)

    def __str__(self) -> str:
        pieces = [f"{tensor}[{_text(box)}]" for tensor, box in self.pieces[:_SHOWN]]
        if len(self.pieces) > _SHOWN:
            pieces.append(f"and {len(self.pieces) - _SHOWN} more")
        start, stop = self.part
        reached = [self.sender] * (self.sender in self.receivers) + list(self.followers)
        return (
            f"{self.index}: {' '.join(pieces)} bytes {start}:{stop} "
            f"{' + '.join(map(str, self.adders))} -> {', '.join(map(str, reached))}"
        )


_SHOWN = 3
"""The most pieces of a task that are printed."""


class Copy(NamedTuple):
    """The pieces that a device of both meshes needs and already holds; it copies them locally."""

    device: int
    pieces: tuple[Piece, ...]


def _text(box: Box) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in box)
