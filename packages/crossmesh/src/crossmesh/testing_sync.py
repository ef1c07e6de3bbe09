"""Strategies for tests of the weight sync: views, and what numpy makes of the same calls."""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from crossmesh.sync.views import View, cat, stack

Array = npt.NDArray[np.int64]


@st.composite
def views(draw: st.DrawFn, sources: int = 3) -> tuple[dict[str, Array], View, Array]:
    """Some published arrays, a view of them, and the array that numpy makes in the same way."""
    arrays: dict[str, Array] = {}
    for i in range(draw(st.integers(1, sources))):
        shape = draw(st.lists(st.integers(1, 5), min_size=0, max_size=3))
        size = int(np.prod(shape, dtype=int))
        arrays[f"w{i}"] = np.arange(1 + 1000 * i, 1 + 1000 * i + size).reshape(shape)
    names = sorted(arrays)
    first = draw(st.sampled_from(names))
    view, array = View.whole(first, arrays[first].shape), arrays[first]
    for _ in range(draw(st.integers(0, 6))):
        view, array = draw(st.sampled_from(_STEPS))(draw, view, array)
    return arrays, view, array


def _narrow(draw: st.DrawFn, view: View, array: Array) -> tuple[View, Array]:
    if not array.ndim:
        return view, array
    dim = draw(st.integers(-array.ndim, array.ndim - 1))
    start = draw(st.integers(0, array.shape[dim]))
    length = draw(st.integers(0, array.shape[dim] - start))
    place = [slice(None)] * array.ndim
    place[dim] = slice(start, start + length)
    return view.narrow(dim, start, length), array[tuple(place)]


def _part(draw: st.DrawFn, view: View, array: Array) -> tuple[View, Array]:
    if not array.ndim:
        return view, array
    dim = draw(st.integers(0, array.ndim - 1))
    n = draw(st.sampled_from([n for n in range(1, 6) if array.shape[dim] % n == 0]))
    index = draw(st.integers(0, n - 1))
    return view.part(dim, index, n), np.split(array, n, dim)[index]


def _select(draw: st.DrawFn, view: View, array: Array) -> tuple[View, Array]:
    dims = [dim for dim, length in enumerate(array.shape) if length]
    if not dims:
        return view, array
    dim = draw(st.sampled_from(dims))
    index = draw(st.integers(0, array.shape[dim] - 1))
    return view.select(dim, index), array.take([index], dim).squeeze(dim)


def _permute(draw: st.DrawFn, view: View, array: Array) -> tuple[View, Array]:
    order = draw(st.permutations(range(array.ndim)))
    return view.permute(*order), array.transpose(order)


def _pad(draw: st.DrawFn, view: View, array: Array) -> tuple[View, Array]:
    if not array.ndim:
        return view, array
    dim, more = draw(st.integers(0, array.ndim - 1)), draw(st.integers(0, 3))
    widths = [(0, more if d == dim else 0) for d in range(array.ndim)]
    return view.pad(dim, array.shape[dim] + more), np.pad(array, widths)


def _cat(draw: st.DrawFn, view: View, array: Array) -> tuple[View, Array]:
    if not array.ndim:
        return view, array
    dim = draw(st.integers(0, array.ndim - 1))
    other, padded = _pad(draw, view, array) if draw(st.booleans()) else (view, array)
    if [n for d, n in enumerate(padded.shape) if d != dim] != [
        n for d, n in enumerate(array.shape) if d != dim
    ]:
        other, padded = view, array
    return cat([view, other], dim), np.concatenate([array, padded], dim)


def _stack(draw: st.DrawFn, view: View, array: Array) -> tuple[View, Array]:
    if array.ndim > 3 or array.size > 300:
        return view, array
    dim = draw(st.integers(0, array.ndim))
    return stack([view, view], dim), np.stack([array, array], dim)


_STEPS = (_narrow, _part, _select, _permute, _pad, _cat, _stack)
