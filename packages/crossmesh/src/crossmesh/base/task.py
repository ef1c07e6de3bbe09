"""`UnitTask`: which bytes pass from which devices to which, along which path."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from shardspec import Reduction

from crossmesh.base.geometry import Box

TaskStrategy = Literal["broadcast", "send_recv", "local_allgather", "global_allgather", "signal"]
"""How bytes reach several receivers (Zhuang et al., MLSys 2023, section 3.1):

- `broadcast`: each receiver passes them on to the next, chunk by chunk.
- `send_recv`: a task for each receiver.
- `local_allgather`: a task for each receiving host, whose devices get a part each and exchange
  them.
- `global_allgather`: all receivers get a part each and exchange them in a ring.
- `signal`: a broadcast of one byte, which delivers nothing: what communication costs at least.
"""


class Piece(NamedTuple):
    """A box of one tensor. Its bytes are those of its elements in the tensor's order."""

    tensor: int
    """Index into the plan's tensors."""
    box: Box
    """Start and stop in each dim of the whole tensor."""


class Hop(NamedTuple):
    """Bytes that pass from one device to another, all the while that their task takes."""

    sender: int
    receiver: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class UnitTask:
    """Bytes on their way from devices that hold them to devices that need and lack them."""

    index: int
    """Position in the one order in which all devices take up their tasks."""
    pieces: tuple[Piece, ...]
    """What is equal in holders and receivers, packed one after the other."""
    part: tuple[int, int]
    """The bytes of the packed pieces that this task moves: start and stop, between elements."""
    terms: tuple[tuple[int, ...], ...]
    """The devices that hold each addend, sorted; one term is a plain copy."""
    reduction: tuple[tuple[Reduction, int], ...]
    """How terms combine: kinds and numbers of terms, major to minor; () for a plain copy."""
    receivers: tuple[int, ...]
    """Devices that get the result, sorted; none of them holds it."""
    strategy: TaskStrategy
    """How it reaches them."""
    path: tuple[int, ...]
    """The devices in the order in which the bytes pass: one adder for each term, then the
    receivers, without the last adder if it is one. Neighbours on one host are together."""
    n_chunks: int
    """Into how many chunks the bytes are cut on the way."""
    tree: tuple[int, ...] = ()
    """For each place on the path but that of the last adder: the place that it sends to, if it
    adds, or gets the bytes from; later than an adder's, earlier than a receiver's. () is a chain:
    each passes them to the next."""

    @property
    def n_bytes(self) -> int:
        """Bytes that each receiver gets."""
        return self.part[1] - self.part[0]

    @property
    def adders(self) -> tuple[int, ...]:
        """Devices that hold a term each, in the order in which they add; of a copy, its sender."""
        return self.path[: len(self.terms)]

    @property
    def sender(self) -> int:
        """The last adder: where the result is first, and from where the receivers get it."""
        return self.path[len(self.terms) - 1]

    @property
    def senders(self) -> tuple[int, ...]:
        """The chosen device of each term."""
        adders = set(self.adders)
        return tuple(next(d for d in term if d in adders) for term in self.terms)

    @property
    def followers(self) -> tuple[int, ...]:
        """The receivers in the order of the path, without the sender."""
        return self.path[len(self.terms) :]

    @property
    def hops(self) -> Iterator[Hop]:
        """All bytes that pass between devices.

        Terms of one kind are added on the way, each adder to what the one before it sends. Terms of
        several kinds, such as a sum of maxima, do not combine in a row: the sender gets all.
        """
        n_bytes = 1 if self.strategy == "signal" else self.n_bytes
        adding, passing = self.legs(in_a_row=len(self.reduction) < 2)
        yield from (Hop(a, b, n_bytes) for a, b in adding)
        if self.strategy in ("local_allgather", "global_allgather"):
            yield from self._scatter_and_gather()
        else:
            yield from (Hop(a, b, n_bytes) for a, b in passing)

    def legs(self, *, in_a_row: bool) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """From which device to which the terms come together, and the result passes on.

        Args:
            in_a_row: Whether an adder combines its term with what it gets and sends the result on;
                else all terms go to the last one.

        Returns:
            Pairs of devices, in an order in which each has all that it sends on.
        """
        path, root = self.path, len(self.terms) - 1
        after = self.tree or (*range(1, root + 1), *range(root, len(path) - 1))
        adding = [(path[i], path[after[i] if in_a_row else root]) for i in range(root)]
        return adding, [(path[after[i - 1]], path[i]) for i in range(root + 1, len(path))]

    def shares(self) -> tuple[tuple[int, int], ...]:
        """What each follower gets of an all-gather's bytes from the sender: starts and stops."""
        n = len(self.followers)
        cuts = [self.part[0] + self.n_bytes * i // n for i in range(n + 1)] if n else []
        return tuple(itertools.pairwise(cuts))

    def _scatter_and_gather(self) -> Iterator[Hop]:
        followers, sizes = self.followers, [stop - start for start, stop in self.shares()]
        for follower, size in zip(followers, sizes, strict=True):
            yield Hop(self.sender, follower, size)
        # In a ring of all, each passes on everything but what the next one got from the sender.
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
"""Pieces of a task that are printed."""


class Copy(NamedTuple):
    """What a device of both meshes holds already, and keeps."""

    device: int
    pieces: tuple[Piece, ...]


def _text(box: Box) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in box)
