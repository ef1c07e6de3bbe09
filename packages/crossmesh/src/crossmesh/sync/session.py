"""`Session`: the processes that take part in some rounds, connected by gloo, and their plans."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crossmesh.base.geometry import Box
from crossmesh.errors import MissingExtraError, PlanError, TransferError, TransportError
from crossmesh.run.executor import Execution
from crossmesh.sync.board import Board, own_client
from crossmesh.sync.cells import Sent, Stream, name_of, plan_of, streams_of
from crossmesh.sync.convert import Scales
from crossmesh.sync.views import Encoding, Published
from crossmesh.transfer.plan import TransferPlan

try:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, ProcessGroupGloo, ReduceOp
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None

from crossmesh.engines.torch_transport import TorchTransport

WINDOW = 4
"""Streams that a process has open at a time, as in `execute`."""


class Member(NamedTuple):
    """A replica of the engine that takes part."""

    replica: str
    token: str
    """The run of its job."""
    size: int

    @property
    def key(self) -> str:
        """Its place among the keys of the board."""
        return f"{self.replica}/{self.token}"


class Holds(NamedTuple):
    """What the publishers of a run have."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    boxes: dict[str, dict[int, list[Box]]]
    """For each tensor the boxes of each rank."""
    hosts: list[str]
    tied: list[list[str]]
    """The names of tensors that lie in the same memory on some rank."""

    @property
    def published(self) -> Published:
        """The tensors as maps see them."""
        return Published(self.shapes, self.dtypes)

    def of(self, sent: Sent) -> dict[int, Sequence[Box]]:
        """The boxes that each rank has of a tensor in the encoding in which it is sent."""
        boxes = self.boxes.get(sent.source, {})
        if not sent.encoding.scales:
            return dict(boxes)
        counts = zip(self.shapes[sent.source], sent.encoding.block, strict=True)
        whole = tuple((0, -(-length // size)) for length, size in counts)
        return {rank: [whole] for rank, of_rank in boxes.items() if of_rank}


def read_holds(board: Board, run: str, size: int) -> Holds:
    """What the publishers have written of their tensors; a rank need not have all of them.

    Raises:
        PlanError: Ranks have tensors of one name that differ in shape or type.
    """
    holds = Holds({}, {}, defaultdict(dict), [], [])
    for rank in range(size):
        record = board.read(f"{run}/holds/{rank}")
        holds.hosts.append(record["host"])
        holds.tied.extend(record["tied"])
        for name, (shape, dtype, boxes) in record["tensors"].items():
            what = tuple(shape), dtype
            known = holds.shapes.setdefault(name, what[0]), holds.dtypes.setdefault(name, dtype)
            if what != known:
                raise PlanError(
                    "a published tensor has one shape and type on all ranks; "
                    f"got {dtype} of {what[0]} on rank {rank}, {known[1]} of {known[0]} before, "
                    f"for {name!r}"
                )
            holds.boxes[name][rank] = [_box(box) for box in boxes]
    return holds


Needs = dict[Sent, list[Box]]
"""The boxes that a subscriber needs of tensors as they are sent."""


def needs_to_json(needs: Needs) -> list[Any]:
    """Needs as JSON can express them; `needs_of_json` reads them."""
    return [[*sent, boxes] for sent, boxes in needs.items()]


def needs_of_json(content: list[Any]) -> Needs:
    """The needs that `needs_to_json` wrote."""
    return {
        Sent(source, Encoding(encoding[0], tuple(encoding[1]), encoding[2]), dtype): [
            _box(box) for box in boxes
        ]
        for source, encoding, dtype, boxes in content
    }


class Round(NamedTuple):
    """One version for some replicas, as the leader writes it to the log."""

    run: str
    number: int
    version: int
    epoch: int
    members: tuple[Member, ...]
    names: tuple[str, ...] | None
    """The published tensors that are sent; None: all."""

    @property
    def broken(self) -> str:
        """The key that says that somebody failed, so that its session is over."""
        return f"{self.run}/broken/{self.epoch}"

    def to_json(self) -> dict[str, Any]:
        """The entry of the log."""
        return {"kind": "round", **self._asdict()}

    @classmethod
    def of(cls, entry: dict[str, Any], run: str) -> "Round":
        """The round of an entry of the log of a run."""
        members = tuple(Member(*member) for member in entry["members"])
        names = None if entry["names"] is None else tuple(entry["names"])
        return cls(run, entry["number"], entry["version"], entry["epoch"], members, names)


class Session:
    """The publishers and some replicas, as ranks of one group: the publishers first.

    A session lives as long as the same replicas take part and none fails.
    """

    def __init__(self, board: Board, first: Round, holds: Holds) -> None:
        self.epoch = first.epoch
        self.holds = holds
        self._board = board
        self._run = first.run
        self._broken = first.broken
        self._n_publishers = len(holds.hosts)
        self._hosts = list(holds.hosts)
        self._needs: list[Needs] = []
        for member in first.members:
            for rank in range(member.size):
                record = board.read(f"{self._run}/needs/{member.key}/{rank}")
                self._hosts.append(record["host"])
                self._needs.append(needs_of_json(record["needs"]))
        self._routes: dict[tuple[str, ...] | None, RoundPlan] = {}
        self._transport: TorchTransport | None = None
        self._publishers: dist.ProcessGroup | None = None
        self.rank = -1

    def first_rank(self, members: Sequence[Member], key: str) -> int:
        """The rank of a replica's first process."""
        index = [member.key for member in members].index(key)
        return self._n_publishers + sum(member.size for member in members[:index])

    def connect(self, rank: int, deadline_s: float) -> None:
        """Meet the other processes, the first time; all of them do so.

        Raises:
            TransportError: Not all came; or one gave up already, so that it is of no use to wait.
        """
        if self._board.has(self._broken):
            raise TransportError("another process of a round gave up before this one came")
        if self._transport is None:
            self.rank = rank
            group = self._group("all", rank, len(self._hosts), deadline_s)
            ranks = {device: device for device in range(len(self._hosts))}
            self._transport = TorchTransport(group, ranks)

    def route(self, names: tuple[str, ...] | None) -> "RoundPlan":
        """Streams and plan for some of the tensors."""
        if names not in self._routes:
            needed: defaultdict[Sent, dict[int, list[Box]]] = defaultdict(dict)
            for i, needs in enumerate(self._needs):
                for sent, boxes in needs.items():
                    if names is None or sent.source in names:
                        needed[sent][self._n_publishers + i] = boxes
            streams = streams_of({sent: self.holds.of(sent) for sent in needed}, needed)
            known = sorted(set(self._hosts))
            hosts = [known.index(host) for host in self._hosts]
            encodings = {(sent.source, sent.encoding) for sent in needed if sent.encoding.dtype}
            self._routes[names] = RoundPlan(
                streams,
                plan_of(streams, hosts),
                Scales([*encodings], self.holds.shapes),
            )
        return self._routes[names]

    def move(
        self,
        route: "RoundPlan",
        packed: dict[int, npt.NDArray[np.uint8]],
        out: dict[int, npt.NDArray[np.uint8]],
        deadline_s: float,
        over: Callable[[], str],
    ) -> None:
        """Send and receive streams, by their number; all processes of the session do so.

        Args:
            route: What moves.
            packed: The streams that this process holds.
            out: The memory for those that it receives.
            deadline_s: Seconds from now.
            over: Asked all the time; says why it is of no use to go on, or "".

        Raises:
            TransferError: As for `execute`; or it is of no use to go on.
        """
        if route.plan is not None and self._transport is not None:
            sides = (
                {
                    name_of(i): {self.rank: content[i]} if i in content else {}
                    for i in range(len(route.streams))
                }
                for content in (packed, out)
            )
            sources, destinations = sides
            transport = self._transport
            execution = Execution(
                route.plan,
                sources,
                transport,
                window=WINDOW,
                deadline_s=deadline_s,
                out=destinations,
            )
            try:
                while not execution.done:
                    if reason := over():
                        raise TransferError(f"a round ended before its end: {reason}")
                    if not execution.step():
                        transport.pause()
            except BaseException:
                transport.close()
                raise

    def combine(self, magnitudes: torch.Tensor, deadline_s: float) -> torch.Tensor:
        """The largest of all publishers' magnitudes; only they call it, and all of them.

        Raises:
            TransportError: One of them does not.
        """
        if self._n_publishers > 1:
            if self._publishers is None:
                self._publishers = self._group(
                    "publishers", self.rank, self._n_publishers, deadline_s
                )
            options = AllreduceOptions()
            options.reduceOp = ReduceOp(ReduceOp.MAX)
            options.timeout = timedelta(seconds=deadline_s)
            try:
                self._publishers.allreduce([magnitudes], options).wait()
            except RuntimeError as error:
                raise TransportError(
                    "publishers combine the scales of quantized tensors; waited for the others: "
                    f"{str(error).splitlines()[0]}"
                ) from error
        return magnitudes

    def close(self) -> None:
        """Give up all messages; the other processes of the session get an error."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _group(self, who: str, rank: int, size: int, deadline_s: float) -> dist.ProcessGroup:
        """A process group of gloo that torch's default group knows nothing of."""
        own = own_client(self._board.store)  # gloo waits by it
        store = PrefixStore(f"{self._run}/groups/{self.epoch}/{who}", own)
        timeout = timedelta(seconds=deadline_s)
        try:
            gloo = ProcessGroupGloo(store, rank, size, timeout)
        except RuntimeError as error:
            raise TransportError(
                f"the {size} processes of a round meet within {deadline_s:g} s; gloo says: "
                f"{str(error).splitlines()[0]}"
            ) from error
        group = dist.ProcessGroup(store, rank, size)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        return group


class RoundPlan(NamedTuple):
    """What moves in a round, and how."""

    streams: tuple[Stream, ...]
    plan: TransferPlan | None
    scales: Scales


def _box(content: Sequence[Sequence[int]]) -> Box:
    return tuple((start, stop) for start, stop in content)
