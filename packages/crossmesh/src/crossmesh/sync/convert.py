"""Element types on the way: what is sent in which type, and quantizing to scales and small types.

A tensor is converted where that sends fewer bytes: before it is sent if the subscriber's type is
the smaller one, and after it has arrived otherwise.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from crossmesh.base.geometry import Box
from crossmesh.base.tensor import item_bytes
from crossmesh.errors import MissingExtraError, PlanError
from crossmesh.sync.cells import Sent
from crossmesh.sync.views import LARGEST, BoxRead, Encoding

try:
    import torch
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None


def sent_as(read: BoxRead, published: str, wanted: str) -> Sent:
    """The encoding and the type in which a tensor is sent.

    Args:
        read: What a subscriber reads.
        published: The element type that the publishers have.
        wanted: The element type that the subscriber has.

    Raises:
        PlanError: It would be converted to or from a type in which it has another meaning.
    """
    encoding = read.encoding
    sent = "float32" if encoding.scales else encoding.dtype
    if encoding.dtype:
        if not is_float(published):
            raise PlanError(
                f"floating-point tensors are quantized; got {published} for {read.source!r}"
            )
        if wanted != sent:
            what = "scales" if encoding.scales else "quantized elements"
            raise PlanError(
                f"{what} are {sent}, as the map says; got a tensor of {wanted} for {read.source!r}"
            )
        return Sent(read.source, encoding, sent)
    if wanted == published:
        return Sent(read.source, encoding, published)
    if not (is_float(wanted) and is_float(published)) or wanted in LARGEST:
        raise PlanError(
            "floating-point types are converted to one another, and to float8 and int8 by "
            f"View.quantize, which has scales; got {published} as published and {wanted} at the "
            f"subscriber for {read.source!r}"
        )
    return Sent(read.source, encoding, min(published, wanted, key=item_bytes))


def is_float(name: str) -> bool:
    """Whether torch has a floating-point type of this name."""
    dtype = getattr(torch, name, None)
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point


def largest_of(
    shape: Sequence[int], block: Sequence[int], parts: Sequence[tuple[Box, torch.Tensor]]
) -> torch.Tensor:
    """The largest magnitude of each block, as far as parts of the tensor know; 0 if they do not."""
    counts = [-(-length // size) for length, size in zip(shape, block, strict=True)]
    largest = torch.zeros(counts, dtype=torch.float32)
    for box, part in parts:
        of_part = part.abs().to(torch.float32).nan_to_num(math.inf, math.inf)
        index = _blocks(box, block)
        for dim, blocks in enumerate(index):
            first = int(blocks[0])
            reduced = list(of_part.shape)
            reduced[dim] = int(blocks[-1]) - first + 1
            place = (blocks - first).reshape([-1 if d == dim else 1 for d in range(len(shape))])
            of_part = torch.zeros(reduced).scatter_reduce_(
                dim, place.expand(of_part.shape), of_part, "amax"
            )
        at = tuple(slice(int(blocks[0]), int(blocks[-1]) + 1) for blocks in index)
        largest[at] = torch.maximum(largest[at], of_part)
    return largest


def scales_of(largest: torch.Tensor, dtype: str) -> torch.Tensor:
    """The scale of each block from its largest magnitude; 1 for a block of zeros.

    It is infinite for a block with an infinite number or NaN, so that their products with the scale
    are NaN: nobody takes a model that has diverged for a healthy one.
    """
    least = torch.finfo(torch.float32).tiny
    return torch.where(largest > 0, (largest / LARGEST[dtype]).clamp_min(least), 1.0)


def quantized(
    part: torch.Tensor, box: Box, scales: torch.Tensor, encoding: Encoding
) -> torch.Tensor:
    """A box of a tensor over the scales of its blocks, in the small type."""
    most = LARGEST[encoding.dtype]
    spread = scales
    for dim, blocks in enumerate(_blocks(box, encoding.block)):
        spread = spread.index_select(dim, blocks)
    ratio = (part.to(torch.float32) / spread).clamp_(-most, most)
    if encoding.dtype == "int8":
        ratio = ratio.round_()
    converted: torch.Tensor = ratio.to(getattr(torch, encoding.dtype))
    return converted


def _blocks(box: Box, block: Sequence[int]) -> list[torch.Tensor]:
    """For each dim, the block of each index of a box."""
    return [
        torch.arange(start, stop) // size for (start, stop), size in zip(box, block, strict=True)
    ]


class Scales:
    """The largest magnitudes of all quantized tensors, as one vector that publishers combine."""

    def __init__(
        self, encodings: Sequence[tuple[str, Encoding]], shapes: Mapping[str, Sequence[int]]
    ):
        self._counts = {
            (source, encoding._replace(scales=False)): tuple(
                -(-length // size)
                for length, size in zip(shapes[source], encoding.block, strict=True)
            )
            for source, encoding in sorted(set(encodings))
        }
        self._shapes = shapes
        ends = itertools.accumulate(math.prod(counts) for counts in self._counts.values())
        self._starts = dict(zip(self._counts, [0, *ends], strict=False))

    def __bool__(self) -> bool:
        return bool(self._counts)

    def magnitudes(self, parts: Mapping[str, Sequence[tuple[Box, torch.Tensor]]]) -> torch.Tensor:
        """What the parts of this process know of them, one after the other."""
        return torch.cat(
            [
                largest_of(self._shapes[source], encoding.block, parts.get(source, ())).reshape(-1)
                for source, encoding in self._counts
            ]
        )

    def split(self, magnitudes: torch.Tensor) -> dict[tuple[str, Encoding], torch.Tensor]:
        """The scales of each tensor and encoding from the combined vector."""
        return {
            key: scales_of(
                magnitudes[start : start + math.prod(self._counts[key])], key[1].dtype
            ).reshape(self._counts[key])
            for key, start in self._starts.items()
        }
