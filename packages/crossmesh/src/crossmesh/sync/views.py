"""`View`: a tensor that is put together from boxes of published tensors.

An engine seldom has a parameter as the trainer has it: it fuses projections, stacks experts, holds
a part of a dim, transposes or pads. A view says where each of its elements comes from, without
any values; so the sync knows which boxes each process needs, and sends those alone.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeVar

from crossmesh.base.geometry import Box
from crossmesh.base.whole import whole_number
from crossmesh.errors import PlanError

T = TypeVar("T")

DROPPED = -1
"""The dim of a view that a dim of length 1 became which `View.select` removed."""


class Encoding(NamedTuple):
    """How a published tensor is sent: its elements, or quantized ones and their scales.

    `Encoding()` is the elements themselves. Of a quantized tensor, `block` is the shape of the
    parts that have a scale each, and `scales` says whether these are meant or the elements.
    """

    dtype: str = ""
    block: tuple[int, ...] = ()
    scales: bool = False


PLAIN = Encoding()


class BoxRead(NamedTuple):
    """A box of a published tensor, and the box of the view that it fills."""

    source: str
    """Name of the published tensor."""
    encoding: Encoding
    at: Box
    """The box of the published tensor, in the encoding that is sent."""
    to: Box
    """The box of the view."""
    dims: tuple[int, ...]
    """For each dim of the published tensor the dim of the view that it became, or `DROPPED`. Other
    dims of the view have the length 1 in `to`."""


@dataclass(frozen=True, slots=True)
class View:
    """A tensor whose elements come from published tensors; what nothing fills is 0.

    Examples:
        >>> q, k = View.whole("q", (4, 6)), View.whole("k", (2, 6))
        >>> fused = cat([q.part(0, 1, 2), k.part(0, 1, 2)])
        >>> print(fused)
        3x6: q[2:4, 0:6] at [0:2, 0:6], k[1:2, 0:6] at [2:3, 0:6]
        >>> print(fused.T[2:4])
        2x3: q[2:4, 2:4] at [0:2, 0:2], k[1:2, 2:4] at [0:2, 2:3]
    """

    shape: tuple[int, ...]
    reads: tuple[BoxRead, ...]

    @classmethod
    def whole(cls, source: str, shape: Sequence[int], encoding: Encoding = PLAIN) -> Self:
        """The whole of a published tensor; or, of a quantized one, its elements or its scales."""
        shape = tuple(shape)
        box = tuple((0, length) for length in shape)
        reads = (BoxRead(source, encoding, box, box, tuple(range(len(shape)))),) * all(shape)
        return cls(shape, reads)

    def narrow(self, dim: int, start: int, length: int) -> "View":
        """A range of a dim, as `torch.narrow` takes it.

        Raises:
            PlanError: There is no such dim, or the range is not within it.
        """
        dim = self._dim(dim)
        start, length = whole_number("a start", start), whole_number("a length", length)
        stop = start + length
        if not 0 <= start <= stop <= self.shape[dim]:
            raise PlanError(
                f"a range lies within its dim; got {start}:{stop} of dim {dim} of {_x(self.shape)}"
            )
        reads = []
        for read in self.reads:
            low, high = read.to[dim]
            begin, end = max(low, start), min(high, stop)
            if begin < end:
                at = [
                    (a + begin - low, a + end - low) if became == dim else (a, b)
                    for (a, b), became in zip(read.at, read.dims, strict=True)
                ]
                to = _with(read.to, dim, (begin - start, end - start))
                reads.append(read._replace(at=tuple(at), to=to))
        return View(_with(self.shape, dim, length), tuple(reads))

    def part(self, dim: int, index: int, n: int) -> "View":
        """Part `index` of a dim that is cut into `n` equal parts.

        Raises:
            PlanError: There is no such dim or part, or the parts would not be equal.
        """
        dim = self._dim(dim)
        index, n = whole_number("a part", index), whole_number("the number of parts", n)
        if not 0 <= index < n:
            raise PlanError(f"{n} parts have the numbers from 0 to {n - 1}; got {index}")
        if self.shape[dim] % n:
            raise PlanError(
                f"parts are equal; got dim {dim} of {_x(self.shape)} for {n} parts; pad it first"
            )
        length = self.shape[dim] // n
        return self.narrow(dim, index * length, length)

    def select(self, dim: int, index: int) -> "View":
        """One index of a dim, without that dim, as `torch.select` takes it."""
        dim = self._dim(dim)
        one = self.narrow(dim, index, 1)
        reads = tuple(
            read._replace(
                to=read.to[:dim] + read.to[dim + 1 :],
                dims=tuple(
                    DROPPED if became == dim else became - (became > dim) for became in read.dims
                ),
            )
            for read in one.reads
        )
        return View(one.shape[:dim] + one.shape[dim + 1 :], reads)

    def __getitem__(self, index: int | slice) -> "View":
        """One index or a range of the first dim, as of an array."""
        self._dim(0)
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step != 1:
                raise PlanError(f"a range of a view has the step 1; got the step {step}")
            return self.narrow(0, start, max(stop - start, 0))
        return self.select(0, index if index >= 0 else index + self.shape[0])

    def permute(self, *dims: int) -> "View":
        """The dims in another order, as `torch.permute` gives it."""
        order = [self._dim(dim) for dim in dims]
        if sorted(order) != list(range(len(self.shape))):
            raise PlanError(
                f"an order has every dim once; got {dims} for the shape {_x(self.shape)}"
            )
        to_new = {old: new for new, old in enumerate(order)} | {DROPPED: DROPPED}
        reads = tuple(
            read._replace(
                to=tuple(read.to[old] for old in order),
                dims=tuple(to_new[became] for became in read.dims),
            )
            for read in self.reads
        )
        return View(tuple(self.shape[old] for old in order), reads)

    @property
    def T(self) -> "View":  # noqa: N802 (as of arrays)
        """The last two dims exchanged."""
        n = len(self.shape)
        if n < 2:
            raise PlanError(f"only a view of two dims or more is transposed; got {_x(self.shape)}")
        return self.permute(*range(n - 2), n - 1, n - 2)

    def pad(self, dim: int, length: int) -> "View":
        """Zeros behind the end of a dim, until it has this length."""
        dim = self._dim(dim)
        length = whole_number("a length", length)
        if length < self.shape[dim]:
            raise PlanError(
                f"padding makes a dim longer; got {length} for dim {dim} of {_x(self.shape)}"
            )
        return replace(self, shape=_with(self.shape, dim, length))

    def unsqueeze(self, dim: int) -> "View":
        """A new dim of length 1, before dim `dim`."""
        if not 0 <= dim <= len(self.shape):
            raise PlanError(f"a new dim is from 0 to {len(self.shape)}; got {dim}")
        reads = tuple(
            read._replace(
                to=(*read.to[:dim], (0, 1), *read.to[dim:]),
                dims=tuple(became + (became >= dim) for became in read.dims),
            )
            for read in self.reads
        )
        return View((*self.shape[:dim], 1, *self.shape[dim:]), reads)

    def quantize(self, dtype: str, block: Sequence[int] | None = None) -> tuple["View", "View"]:
        """The quantized elements of a whole published tensor, and their scales.

        A scale is the largest magnitude of its block over the largest number of `dtype`; an element
        is its value over the scale of its block, rounded to even. So the value is the product.

        Args:
            dtype: "int8", or a float8 of torch such as "float8_e4m3fn".
            block: The shape of the parts that have a scale each: `(1, 4096)` is a scale for each
                row of 4,096 elements, and `(128, 128)` what DeepSeek-V3 has (DeepSeek-AI, 2024,
                arXiv 2412.19437, section 3.3.2). None: one scale for the tensor.

        Returns:
            The elements, and the scales in float32: one for each block, in as many dims.

        Raises:
            PlanError: It is not a whole published tensor, the dtype is none of these, or the block
                does not fit the shape.
        """
        read = self.reads[0] if len(self.reads) == 1 else None
        if read is None or self != View.whole(read.source, self.shape):
            raise PlanError(
                "a published tensor is quantized as a whole, so that its scales are those of the "
                "tensor, whoever holds which part; quantize it before anything else is done with it"
            )
        if dtype not in LARGEST:
            raise PlanError(f"elements are quantized to one of {[*LARGEST]}; got {dtype!r}")
        sizes = self.shape if block is None else tuple(block)
        if len(sizes) != len(self.shape) or not all(
            1 <= whole_number("a block", size) <= length
            for size, length in zip(sizes, self.shape, strict=True)
        ):
            raise PlanError(
                "a block has as many dims as its tensor, and at most its lengths; "
                f"got {block} for {_x(self.shape)}"
            )
        counts = tuple(-(-n // size) for n, size in zip(self.shape, sizes, strict=True))
        return (
            View.whole(read.source, self.shape, Encoding(dtype, sizes)),
            View.whole(read.source, counts, Encoding(dtype, sizes, scales=True)),
        )

    def _dim(self, dim: int) -> int:
        dim = whole_number("a dim", dim)
        n = len(self.shape)
        if not -n <= dim < n:
            raise PlanError(f"a view of the shape {_x(self.shape)} has {n} dims; got dim {dim}")
        return dim % n

    def __str__(self) -> str:
        reads = (f"{read.source}[{_text(read.at)}] at [{_text(read.to)}]" for read in self.reads)
        return f"{_x(self.shape)}: {', '.join(reads) or 'zeros'}"


LARGEST = {
    "int8": 127.0,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2fnuz": 57344.0,
}
"""The largest number of each type that elements are quantized to [torch 2.13, `torch.finfo`]; int8
leaves out -128, so that the range is symmetric."""


def cat(views: Sequence[View], dim: int = 0) -> View:
    """Views one after the other along a dim, as `torch.cat` puts tensors.

    Raises:
        PlanError: There are none, or their shapes differ in other dims.
    """
    if not views:
        raise PlanError("one view or more is put together; got none")
    dim = views[0]._dim(dim)
    shapes = {_with(view.shape, dim, 0) if len(view.shape) > dim else () for view in views}
    if len(shapes) > 1:
        raise PlanError(
            f"views that are put together along dim {dim} have the same other dims; "
            f"got {', '.join(_x(view.shape) for view in views)}"
        )
    starts = [0, *itertools.accumulate(view.shape[dim] for view in views)]
    reads = [
        read._replace(to=_with(read.to, dim, (read.to[dim][0] + start, read.to[dim][1] + start)))
        for view, start in zip(views, starts, strict=False)
        for read in view.reads
    ]
    return View(_with(views[0].shape, dim, starts[-1]), tuple(reads))


def stack(views: Sequence[View], dim: int = 0) -> View:
    """Views of one shape along a new dim, as `torch.stack` puts tensors."""
    return cat([view.unsqueeze(dim) for view in views], dim)


class Published(Mapping[str, View]):
    """The published tensors by name, each as a view of the whole."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]) -> None:
        self._views = {name: View.whole(name, shape) for name, shape in shapes.items()}
        self.dtypes = dict(dtypes)
        """The name of the element type of each."""

    def __getitem__(self, name: str) -> View:
        try:
            return self._views[name]
        except KeyError:
            raise UnknownTensorError(name, self._views) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        n = sum(math.prod(view.shape) for view in self._views.values())
        return f"<{len(self)} published tensors of {n} elements>"


class UnknownTensorError(PlanError, KeyError):
    """A map or a name asks for a tensor that is not published."""

    def __init__(self, name: str, published: Mapping[str, object]) -> None:
        tail = name.rpartition(".")[2]
        close = [other for other in published if other.rpartition(".")[2] == tail][:3]
        some = close or [*published][:3]
        super().__init__(
            "a tensor of an engine comes from a published one, by its name or a map; "
            f"got {name!r}; published are {', '.join(some) or 'none'}"
            f"{' and others' if len(published) > len(some) else ''}"
        )

    __str__ = Exception.__str__


def _with(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _text(box: Box) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in box)
