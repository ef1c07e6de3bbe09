"""From stages and their costs to arcs: what entering a stage takes, and what a step then takes."""

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
"""Of bytes, the submesh that has them and that which needs them: seconds there and back."""


class StageNetwork:
    """The arcs of one problem.

    A stage begins by receiving the values that it reads and did not make, each once, from the stage
    that made it. How long that takes depends on both submeshes. That of the stage before is known
    from the node (arcs.py). Where a value comes from farther away, the fastest sender is
    taken for a lower bound; `more_s` says by how much too little, once the stages are known.

    A value that is read in a stage after the following one is kept until then by the stage that
    made it, spread over its devices, for each microbatch in flight. No arc says so: `held_bytes`.
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
        """Ask for the time of all transfers.

        Args:
            n_layers: Of the model.
            n_microbatches: Of a step.
            shapes: Submeshes.
            boundary_s: Seconds to enter each layer from the one before.
            edges: Values between layers.
            transfer_s: Seconds for one.

        Raises:
            InvalidInputError: A time is negative or not finite, a value has no time, or it is not
                read after it is made.
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
        """By bytes: from each shape to each, shape (n_shapes, n_shapes)."""
        for n_bytes in sorted({edge.n_bytes for edge in edges}):
            if transfer_s is None:
                raise InvalidInputError(
                    "values between layers take a time to send; got edges and transfer_s=None"
                )
            times = np.zeros((len(shapes), len(shapes)))
            for g, sender in enumerate(shapes):
                for h, receiver in enumerate(shapes):
                    seconds = transfer_s(n_bytes, sender, receiver)
                    if not is_amount(seconds):
                        raise InvalidInputError(
                            "a transfer's time is finite and not negative; "
                            f"got transfer_s({n_bytes}, {sender}, {receiver})={seconds!r}"
                        )
                    times[g, h] = seconds
            self.transfers_s[n_bytes] = times
        # The first layer at or after each that reads the value.
        self.readers = np.full((len(edges), n_layers + 1), n_layers)
        for v, edge in enumerate(edges):
            for reader in sorted(edge.consumers, reverse=True):
                self.readers[v, : reader + 1] = reader

    def arcs(self, stages: Stages, candidates: PricedStages) -> Arcs:
        """A stage for each way to run it and each submesh that it may receive from."""
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
            # For each stage, and each shape before it; node k, g is 1 + (k - 1) n_shapes + g.
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
        """Whether a value may be received from a stage that is not the one before."""
        return any(max(edge.consumers, default=0) > edge.producer + 1 for edge in self.edges)

    def more_s(self, arcs: Arcs, path: Sequence[int], leaving: slice) -> Floats:
        """Seconds that stages receive longer than their arcs say, for those that follow a path."""
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
        """What a device of a stage keeps of a microbatch for stages after the following one."""
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
        """The layer that each node lies before."""
        if not self.edges:
            return nodes
        return (nodes + len(self.shapes) - 1) // len(self.shapes)

    def _received_s(self, first: Ints, last: Ints, before: Ints, shape: Ints) -> Floats:
        """Seconds to receive what stages read, from what is known about those before: a bound."""
        seconds = np.zeros(first.size)
        for edge, reader in zip(self.edges, self.readers, strict=True):
            times = self.transfers_s[edge.n_bytes]
            known = np.flatnonzero((edge.producer == first - 1) & (reader[first] <= last))
            seconds[known] += times[before[known], shape[known]]
            unknown = np.flatnonzero((edge.producer < first - 1) & (reader[first] <= last))
            seconds[unknown] += times.min(axis=0)[shape[unknown]]
        return seconds
