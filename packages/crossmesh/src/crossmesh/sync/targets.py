"""`Targets`: a subscriber's tensors, what they need of published ones, and how they are written.

A tensor or an array of numpy is what this process has, so its view has its shape. Of a DTensor or
an array of JAX the view describes the whole, and each of its parts takes its box of that.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crossmesh.base.geometry import Box, n_elements
from crossmesh.errors import MissingExtraError, PlanError, ShardError
from crossmesh.sync.buffers import cell_of, common, copied_to
from crossmesh.sync.cells import Cell, Sent, Stream
from crossmesh.sync.convert import sent_as
from crossmesh.sync.session import Needs
from crossmesh.sync.states import (
    LocalParts,
    State,
    as_array,
    as_tensor,
    is_jax,
    parts_of,
    values_of,
)
from crossmesh.sync.views import Published, View

try:
    import torch
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None

WeightMap = Callable[[Published, Mapping[str, LocalParts]], Mapping[str, View]]
"""From the published tensors and the subscriber's own ones to a view for each of the latter."""


class _Piece(NamedTuple):
    """A part of a tensor of the subscriber, and what fills it."""

    part: Any
    view: View
    sent: tuple[Sent, ...]
    """For each read of the view, as what it is sent."""


class Targets:
    """The tensors of a subscriber."""

    def __init__(self, state: State, published: Published, weights: WeightMap | None) -> None:
        """Find out where everything comes from.

        Raises:
            ShardError: A value is no tensor or array.
            PlanError: A tensor is not published, or the map does not give its shape; or its element
                type cannot be had from the published one.
        """
        self._values = values_of(state)
        own = {name: parts_of(name, value) for name, value in self._values.items()}
        self._described = {name: parts.described for name, parts in own.items()}
        views = (
            {name: published[name] for name in own} if weights is None else weights(published, own)
        )
        if not isinstance(views, Mapping) or views.keys() != own.keys():
            given = set(views) if isinstance(views, Mapping) else set()
            raise PlanError(
                "a map gives a view for each tensor of the subscriber, and for no other; "
                f"it lacks {sorted(own.keys() - given)[:4]}, and gives "
                f"{sorted(given - own.keys())[:4]}, too"
            )
        self._pieces = {
            name: [*_pieces(name, parts, views[name], published)] for name, parts in own.items()
        }

    @property
    def needs(self) -> Needs:
        """The boxes of published tensors that are needed here, none twice."""
        boxes: defaultdict[Sent, dict[Box, None]] = defaultdict(dict)
        for pieces in self._pieces.values():
            for piece in pieces:
                for read, sent in zip(piece.view.reads, piece.sent, strict=True):
                    boxes[sent][read.at] = None
        return {sent: [*of_sent] for sent, of_sent in boxes.items()}

    def look_again(self, state: State) -> None:
        """Find the tensors of a state again, which may have got other memory.

        Arrays of JAX cannot be changed; the latest ones are those that `write` made.

        Raises:
            ShardError: A name, shape, type or layout differs, or an array of JAX was deleted.
        """
        values = values_of(state)
        if values.keys() != self._values.keys():
            raise ShardError(
                "a state keeps its names from version to version; got "
                f"{sorted(values.keys() ^ self._values.keys())[:4]} more or less; make another "
                "subscriber"
            )
        for name, value in values.items():
            kept = self._values[name] if is_jax(value) else value
            parts = parts_of(name, kept)
            if parts.described != self._described[name]:
                raise ShardError(
                    "a tensor keeps its shape, type and layout from version to version; "
                    f"got {parts} for {name!r}; make another subscriber"
                )
            for _, part in parts.parts:
                _check_writable(name, part)
            self._set(name, kept, parts)

    def _set(self, name: str, value: object, parts: LocalParts) -> None:
        self._values[name] = value
        self._pieces[name] = [
            piece._replace(part=part)
            for piece, (_, part) in zip(self._pieces[name], parts.parts, strict=True)
        ]

    def write(
        self,
        streams: Sequence[Stream],
        received: Mapping[int, npt.NDArray[np.uint8]],
        names: tuple[str, ...] | None,
    ) -> None:
        """Put what has arrived where it belongs: in place, or into new arrays of JAX.

        Args:
            streams: The streams of the round.
            received: The bytes of those that this process received, by number.
            names: The published tensors that were sent; None: all.
        """
        cells: defaultdict[Sent, list[tuple[Cell, torch.Tensor]]] = defaultdict(list)
        for number, content in received.items():
            buffer = torch.from_numpy(content)
            for cell in streams[number].cells:
                cells[cell.sent].append((cell, buffer))
        for name, pieces in self._pieces.items():
            if names is None or any(read.source in names for p in pieces for read in p.view.reads):
                value = _written(self._values[name], pieces, cells, names)
                self._set(name, value, parts_of(name, value))

    @property
    def values(self) -> dict[str, object]:
        """All tensors by name."""
        return dict(self._values)

    @property
    def n_bytes(self) -> int:
        """Bytes of all parts here."""
        return sum(as_tensor(p.part).nbytes for of in self._pieces.values() for p in of)


def _pieces(name: str, parts: LocalParts, view: View, published: Published) -> Iterator[_Piece]:
    if not isinstance(view, View):
        raise PlanError(f"a map gives views; got {type(view).__name__} for {name!r}")
    if view.shape != parts.shape:
        raise PlanError(
            "a tensor has the shape of its view; "
            f"got {parts.shape} for {name!r}, and a view of {view.shape}, which is {view}"
        )
    for read in view.reads:
        published[read.source]
    for box, part in parts.parts:
        _check_writable(name, part)
        of_part = view
        for dim, (start, stop) in enumerate(box):
            of_part = of_part.narrow(dim, start, stop - start)
        sent = (sent_as(read, published.dtypes[read.source], parts.dtype) for read in of_part.reads)
        yield _Piece(part, of_part, tuple(sent))


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether a longer stride does not pass all that the shorter ones reach."""
    reach = 0
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1:
            if stride <= reach:
                return True
            reach += stride * (length - 1)
    return False


def _check_writable(name: str, part: Any) -> None:
    reason = ""
    if isinstance(part, np.ndarray) and not part.flags.writeable:
        reason = "read-only memory"
    elif isinstance(part, np.ndarray | torch.Tensor) and _overlaps(as_tensor(part)):
        reason = "a view whose elements share their memory"
    if reason:
        raise ShardError(f"a new version is written in place; got {reason} for {name!r}; copy it")


def _written(
    value: object,
    pieces: Sequence[_Piece],
    cells: Mapping[Sent, Sequence[tuple[Cell, torch.Tensor]]],
    names: tuple[str, ...] | None,
) -> object:
    is_new = is_jax(value)
    contents = []
    for piece in pieces:
        target = as_tensor(piece.part)
        target = target.clone() if is_new else target
        with torch.inference_mode() if target.is_inference() else torch.no_grad():
            _fill(target, piece, cells, names)
        contents.append(target)
    return _jax_array(value, contents) if is_new else value


def _fill(
    target: torch.Tensor,
    piece: _Piece,
    cells: Mapping[Sent, Sequence[tuple[Cell, torch.Tensor]]],
    names: tuple[str, ...] | None,
) -> None:
    filled = sum(n_elements(read.to) for read in piece.view.reads)
    if names is None and filled < math.prod(piece.view.shape):
        target.zero_()  # the rest is padding
    for read, sent in zip(piece.view.reads, piece.sent, strict=True):
        for cell, buffer in cells.get(sent, ()):
            box = common(read.at, cell.box)
            if box is not None:
                within = tuple(
                    slice(start - first, stop - first)
                    for (start, stop), (first, _) in zip(box, cell.box, strict=True)
                )
                copied_to(target, read, cell_of(buffer, cell)[within], box)


def _jax_array(value: Any, contents: Sequence[torch.Tensor]) -> Any:
    import jax

    by_box: dict[str, int] = {}
    for shard in value.addressable_shards:
        by_box.setdefault(str(shard.index), len(by_box))
    arrays = [
        jax.device_put(
            as_array(contents[by_box[str(shard.index)]], np.dtype(value.dtype)), shard.device
        )
        for shard in value.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(value.shape, value.sharding, arrays)
