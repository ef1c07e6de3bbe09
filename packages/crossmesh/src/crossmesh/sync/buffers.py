"""The bytes of streams: packed from the parts that a publisher has, and read by a subscriber."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from crossmesh.base.geometry import Box
from crossmesh.errors import ChecksumError, MissingExtraError
from crossmesh.sync.cells import TRAILER_BYTES, Cell, Stream
from crossmesh.sync.convert import quantized
from crossmesh.sync.states import as_tensor
from crossmesh.sync.views import DROPPED, BoxRead, Encoding

try:
    import torch
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None

Bytes = npt.NDArray[np.uint8]


def pack(
    stream: Stream,
    parts: Mapping[str, Sequence[tuple[Box, Any]]],
    scales: Mapping[tuple[str, Encoding], torch.Tensor],
    version: int,
) -> Bytes:
    """The bytes of a stream, from the parts of tensors that this process has."""
    buffer = torch.zeros(stream.n_bytes, dtype=torch.uint8)
    for cell in stream.cells:
        source, encoding, _ = cell.sent
        if encoding.scales:
            of_tensor = scales[source, encoding._replace(scales=False)]
            content = of_tensor[tuple(slice(start, stop) for start, stop in cell.box)]
        else:
            around, part = next(p for p in parts[source] if _contains(p[0], cell.box))
            content = as_tensor(part)[_slices(cell.box, around)]
            if encoding.dtype:
                content = quantized(content, cell.box, scales[source, encoding], encoding)
        cell_of(buffer, cell).copy_(content)
    content_bytes: Bytes = buffer.numpy()
    end = stream.n_bytes - TRAILER_BYTES
    content_bytes[end : end + 8] = np.frombuffer(version.to_bytes(8, "little"), np.uint8)
    content_bytes[end + 8 :] = _checksum(content_bytes[: end + 8])
    return content_bytes


def check(stream: Stream, content: Bytes, version: int) -> None:
    """Refuse bytes that are not those that the first holder packed for this version.

    Raises:
        ChecksumError: They differ.
    """
    end = stream.n_bytes - TRAILER_BYTES
    arrived = int.from_bytes(content[end : end + 8].tobytes(), "little")
    if arrived != version or (content[end + 8 :] != _checksum(content[: end + 8])).any():
        raise ChecksumError(
            "what arrives is one version, as each of its publishers has it; got other bytes of "
            f"version {version} from the publisher ranks {list(stream.holders)}: a version was "
            "changed while it was sent, or their copies of the weights differ"
        )


def cell_of(buffer: torch.Tensor, cell: Cell) -> torch.Tensor:
    """The elements of a cell in the bytes of its stream."""
    elements = buffer[cell.start : cell.stop].view(getattr(torch, cell.sent.dtype))
    return elements.view([stop - start for start, stop in cell.box])


def copied_to(target: torch.Tensor, read: BoxRead, content: torch.Tensor, box: Box) -> None:
    """Write a box of what was sent where a read of a view puts it; the types may differ.

    Args:
        target: The whole tensor that the view describes.
        read: The read.
        content: The elements of `box`.
        box: A part of `read.at`.
    """
    place = list(read.to)
    kept: list[tuple[int, int]] = []  # dim of the view, dim of the content
    for dim, (became, (start, stop), (first, _)) in enumerate(
        zip(read.dims, box, read.at, strict=True)
    ):
        if became != DROPPED:
            low = read.to[became][0] + start - first
            place[became] = (low, low + stop - start)
            kept.append((became, dim))
    order = [dim for _, dim in sorted(kept)]
    dropped = [dim for dim, became in enumerate(read.dims) if became == DROPPED]
    arranged = content.permute([*order, *dropped]).reshape([stop - start for start, stop in place])
    target[tuple(slice(start, stop) for start, stop in place)].copy_(arranged)


def common(one: Box, other: Box) -> Box | None:
    """The box that two boxes have in common; None if there is none."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def _checksum(content: Bytes) -> Bytes:
    return np.frombuffer(zlib.crc32(content.data).to_bytes(4, "little"), np.uint8)


def _contains(around: Box, box: Box) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(around, box, strict=True))


def _slices(box: Box, around: Box) -> tuple[slice, ...]:
    return tuple(
        slice(start - first, stop - first)
        for (start, stop), (first, _) in zip(box, around, strict=True)
    )
