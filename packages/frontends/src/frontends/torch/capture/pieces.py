"""Pieces of a value that are put together again, as in `torch.cat(torch.split(x, sizes))`.

Models cut the features of a batch into those of each image, and concatenate them. Each of the two
operators needs all examples at once, but together they do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from frontends.torch.base.flat import Line, TensorType
from frontends.torch.capture.flat_builder import FlatBuilder, Name


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A range of a value along a dim, perhaps in another shape."""

    source: str
    dim: int
    begin: int
    end: int
    is_reshaped: bool

    @classmethod
    def of(
        cls, name: str, line_of: Callable[[str], Line | None], kinds: Mapping[str, TensorType]
    ) -> TensorPiece | None:
        """Return the piece that a value is; None if it is none.

        Args:
            name: The value.
            line_of: Returns the line that computes a value, if there is one.
            kinds: Shape and type of every value.
        """
        line, is_reshaped = line_of(name), False
        while line is not None and line.call.name == "reshape":
            [before] = line.inputs
            name, line, is_reshaped = before, line_of(before), True
        if line is None or line.call.name not in ("split", "split_with_sizes", "unbind", *_ONE):
            return None
        [source] = line.inputs
        shape, call = kinds[source].shape, line.call
        dim = call.argument("dim") % len(shape)
        if call.name == "slice":
            if call.argument("step") != 1:
                return None
            begin, end, _ = slice(call.argument("start"), call.argument("end")).indices(shape[dim])
        elif call.name == "select":
            begin = call.argument("index") % shape[dim]
            end = begin + 1
        else:
            parts = [
                1 if call.name == "unbind" else kinds[part].shape[dim] for part in line.outputs
            ]
            at = line.outputs.index(name)
            begin, end = sum(parts[:at]), sum(parts[: at + 1])
        is_reshaped |= call.name in ("select", "unbind")
        return cls(source, dim, begin, end, is_reshaped)


_ONE = ("slice", "select")
"""Operators that take one piece."""


def put_together(
    build: FlatBuilder, parts: Sequence[Name], dim: int, shape: tuple[int, ...]
) -> Name | None:
    """Return the value of which parts are all pieces in order; None if they are anything else.

    Args:
        build: The program so far.
        parts: Values that are concatenated.
        dim: The dim along which they are.
        shape: The shape of the result.
    """
    pieces = [TensorPiece.of(part, build.line_of, build.kinds) for part in parts]
    first, at = pieces[0], 0
    if first is None:
        return None
    for piece in pieces:
        if piece is None or (piece.source, piece.dim, piece.begin) != (first.source, first.dim, at):
            return None
        at = piece.end
    whole = Name(first.source)
    if at != build.kinds[whole].shape[first.dim]:
        return None
    if not any(piece is not None and piece.is_reshaped for piece in pieces):
        return whole if dim == first.dim else None
    # pieces along the major dim are one after the other in memory, whatever their shapes are
    return build.reshaped(whole, shape) if dim == first.dim == 0 else None
