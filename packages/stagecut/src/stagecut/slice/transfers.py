"""Makes arcs of stages and their costs, with the time in which each stage receives its inputs."""

from collections.abc import Callable, Sequence

import numpy as np

from stagecut.base.checks import is_amount
from stagecut.base.edges import Boundary, check_values
from stagecut.base.types import Submesh
from stagecut.errors import InvalidInputError
from stagecut.slice.arcs import Arcs, Floats, Ints
from stagecut.slice.prices import PricedStages
from stagecut.slice.usable import Stages

TransferFunction = Callable[..., float]
"""Seconds to send a value from one submesh to another, and its gradient back.

Arguments: bytes of the value, the submesh that has it, and the submesh that needs it.
"""


def required_transfer(transfer_s: TransferFunction | None) -> TransferFunction:
    """`transfer_s`, where there are values between layers.

    Raises:
        InvalidInputError: It is None.
    """
    if transfer_s is None:
        raise InvalidInputError(
            "values between layers need a time to send them; got edges and transfer_s=None"
        )
    return transfer_s


class StageNetwork:
    """The arcs of one problem.

    A stage begins by receiving the values that it reads and did not produce, each once, from the
    stage that produced it. How long this takes depends on both submeshes. The node (arcs.py) tells
    the submesh of the previous stage. For a value that comes from farther away, the arc assumes the
    fastest sender, which gives a lower bound. `more_s` is the difference, when the stages are
    known.

    A value that is read after the next stage is held until then by the stage that produced it,
    spread over its devices, for each microbatch in flight. Arcs do not contain this memory:
    `held_bytes` computes it.
    """

    def __init__(
        self,
        n_layers: int,
        n_microbatches: int,
        shapes: Sequence[Submesh],
        boundary_s: Sequence[float],
        edges: Sequence[Boundary],
        transfer_s: TransferFunction | None,
    ) -> None:
        """Call `transfer_s` for all transfers that there can be.

        Args:
            n_layers: Layers of the model.
            n_microbatches: Microbatches of a step.
            shapes: The shapes that submeshes may have.
            boundary_s: For each layer, seconds to enter a stage that begins with it.
            edges: Values between layers.
            transfer_s: Seconds to send one of them.

        Raises:
            InvalidInputError: A time is negative or not finite, there are values but no
                `transfer_s`, or a value is not read after it is produced.
        """
        self.n_microbatches = n_microbatches
        self.n_layers, self.shapes, self.edges = n_layers, tuple(shapes), tuple(edges)
        self.sizes = np.array([n * m for n, m in shapes])
        for first, seconds in enumerate(boundary_s):
            if not is_amount(seconds):
                raise InvalidInputError(
                    "a boundary's time is finite and not negative; "
                    f"got boundary_s({first})={seconds!r}"
                )
        check_values(edges, n_layers, name="edges", among="layers")
        self.boundary_s = np.array(boundary_s)
        self.transfers_s: dict[int, Floats] = {}
        """For each number of bytes, the seconds from each submesh to each other one, an array of
        shape (n_shapes, n_shapes)."""
        for n_bytes in sorted({edge.n_bytes for edge in edges}):
            send_s = required_transfer(transfer_s)
            times = np.zeros((len(shapes), len(shapes)))
            for g, sender in enumerate(shapes):
                for h, receiver in enumerate(shapes):
                    seconds = send_s(n_bytes, sender, receiver)
                    if not is_amount(seconds):
                        raise InvalidInputError(
                            "a transfer's time is finite and not negative; "
                            f"got transfer_s({n_bytes}, {sender}, {receiver})={seconds!r}"
                        )
                    times[g, h] = seconds
            self.transfers_s[n_bytes] = times
        # For each value and layer, the first layer from there on that reads the value.
        self.readers = np.full((len(edges), n_layers + 1), n_layers)
        for v, edge in enumerate(edges):
            for reader in sorted(edge.consumers, reverse=True):
                self.readers[v, : reader + 1] = reader

    def arcs(self, stages: Stages, candidates: PricedStages) -> Arcs:
        """An arc for each option of each stage.

        If there are values between layers, it is one for each shape of the previous stage, too.
        """
        stage = candidates.stage
        first, last, shape = (
            stages.first[stage],
            stages.last[stage],
            stages.shape[stage],
        )
        row = np.arange(stage.size)
        tail, head, n_nodes = first, last + 1, self.n_layers + 1
        received_s = self.boundary_s[first]
        if self.edges:
            n_shapes = len(self.shapes)
            # An arc for each option and each shape g of the previous stage. The node of layer k
            # after shape g has the number 1 + (k - 1) n_shapes + g.
            before = np.tile(np.arange(n_shapes), stage.size)
            row = np.repeat(row, n_shapes)[keep := np.repeat(first > 0, n_shapes) | (before == 0)]
            before, first, last, shape = before[keep], first[row], last[row], shape[row]
            n_nodes = 2 + (self.n_layers - 1) * n_shapes
            tail = np.where(first == 0, 0, 1 + (first - 1) * n_shapes + before)
            is_end = last == self.n_layers - 1
            head = np.where(is_end, n_nodes - 1, 1 + last * n_shapes + shape)
            received_s = received_s[row] + self._received_s(first, last, before, shape)
            order = np.argsort(tail, kind="stable")
            row, tail, head, received_s = (
                row[order],
                tail[order],
                head[order],
                received_s[order],
            )
            shape = shape[order]
        time_s = candidates.time_s[row] + received_s
        return Arcs(
            n_nodes=n_nodes,
            tail=tail,
            head=head,
            shape=shape,
            size=self.sizes[shape],
            time_s=time_s,
            rest_s=(self.n_microbatches - 1) * time_s + candidates.once_s[row],
            base_bytes=candidates.base_bytes[row],
            activation_bytes=candidates.activation_bytes[row],
            row=row,
        )

    @property
    def has_skips(self) -> bool:
        """Whether a value may be received from a stage that is not the previous one."""
        return any(max(edge.consumers, default=0) > edge.producer + 1 for edge in self.edges)

    def more_s(self, arcs: Arcs, path: Sequence[int], leaving: slice) -> Floats:
        """Seconds by which receiving takes longer than the arcs say, for arcs that follow a path.

        Args:
            arcs: All arcs.
            path: The stages so far, as indices of arcs.
            leaving: The arcs that may follow.
        """
        more = np.zeros(leaving.stop - leaving.start)
        if not path:
            return more
        ends = self._layer(arcs.head[np.array(path)])
        first, shape = int(ends[-1]), arcs.shape[leaving]
        last = self._layer(arcs.head[leaving]) - 1
        for edge, reader in zip(self.edges, self.readers, strict=True):
            if edge.producer < first - 1:
                times = self.transfers_s[edge.n_bytes]
                sender = arcs.shape[path[int(np.searchsorted(ends, edge.producer, side="right"))]]
                longer = times[sender, shape] - times.min(axis=0)[shape]
                more += np.where(reader[first] <= last, longer, 0.0)
        return more

    def held_bytes(self, arcs: Arcs, arc: int, following: int) -> int:
        """Bytes of a microbatch that a device of a stage holds for stages after the next one.

        Args:
            arcs: All arcs.
            arc: The stage.
            following: The next stage.
        """
        first, end, next_end = (
            int(self._layer(node))
            for node in (arcs.tail[arc], arcs.head[arc], arcs.head[following])
        )
        return sum(
            -(-edge.n_bytes // int(arcs.size[arc]))
            for edge in self.edges
            if first <= edge.producer < end and max(edge.consumers, default=0) >= next_end
        )

    def _layer(self, nodes: Ints) -> Ints:
        """For each node, the layer that follows it."""
        if not self.edges:
            return nodes
        return (nodes + len(self.shapes) - 1) // len(self.shapes)

    def _received_s(self, first: Ints, last: Ints, before: Ints, shape: Ints) -> Floats:
        """Lower bounds of the seconds in which stages receive what they read.

        They are exact for values from the previous stage, whose shape is `before`.
        """
        seconds = np.zeros(first.size)
        for edge, reader in zip(self.edges, self.readers, strict=True):
            times = self.transfers_s[edge.n_bytes]
            known = np.flatnonzero((edge.producer == first - 1) & (reader[first] <= last))
            seconds[known] += times[before[known], shape[known]]
            unknown = np.flatnonzero((edge.producer < first - 1) & (reader[first] <= last))
            seconds[unknown] += times.min(axis=0)[shape[unknown]]
        return seconds
