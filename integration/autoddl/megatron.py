"""The collectives of Megatron-like grids of data and model parallelism, written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations

from autoshard import Value
from autoshard.space.conversion import converter_of, spec_set
from costmodel import Cluster
from shardspec import Mesh, Partial, Spec

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Sent:
    """A change of a tensor's layout, and how often it happens in a step."""

    shape: tuple[int, ...]
    src: Spec
    dst: Spec
    times: int = 1


@dataclass(frozen=True)
class Grid:
    """A grid, with the seconds that it communicates in a step."""

    data: int
    model: int
    seconds: float


def price(sent: list[Sent], mesh: Mesh, cluster: Cluster) -> float:
    """The seconds of all changes of layout in float32, each in the fastest way of our own plans."""
    converter = converter_of(mesh.shape, cluster.links(mesh))
    return sum(
        one.times
        * float(
            converter.seconds(
                Value("sent", one.shape, "float32"), spec_set((one.src,)), spec_set((one.dst,))
            )[0, 0]
        )
        for one in sent
    )


def sums(shape: tuple[int, ...], over: Axes, split: dict[int, Axes], times: int = 1) -> Sent:
    """The all-reduce of the partial sums of a tensor whose dims are sharded by `split`."""
    dims = tuple(split.get(dim, ()) for dim in range(len(shape)))
    return Sent(shape, Spec(dims, tuple(Partial(axis) for axis in over)), Spec(dims), times)


def splits(mesh: Mesh) -> Iterator[tuple[Axes, Axes]]:
    """Every way to use some axes for data and the others for the model."""
    axes = range(mesh.ndim)
    for data in chain.from_iterable(combinations(axes, n) for n in range(mesh.ndim + 1)):
        yield data, tuple(axis for axis in axes if axis not in data)


def vgg(
    kernels: list[tuple[int, ...]], widths: tuple[int, ...], batch: int, data: Axes, model: Axes
) -> list[Sent]:
    """VGG with data-parallel convolutions on all devices, and dense layers on the grid.

    The first dense layer is split by columns and the second by rows, as Megatron splits an MLP. The
    third one is small: all devices along the model axes compute the same, and so send nothing.

    Args:
        kernels: The shapes of the kernels of the convolutions.
        widths: The width of the input of the dense layers, and of the output of each.
        batch: The number of images.
        data: The axes of the grid's data dimension.
        model: The axes of its model dimension.
    """
    everywhere = data + model
    x = (batch, widths[0])
    rows, parts = {0: data}, tuple(Partial(axis) for axis in model)
    sent = [sums(kernel, everywhere, {}) for kernel in kernels]
    sent += [
        Sent(x, Spec((everywhere, ())), Spec((data, ()))),  # from the convolutions
        sums((batch, widths[2]), model, rows),  # the sums of the second layer
        Sent(x, Spec((data, ()), parts), Spec((everywhere, ()))),  # gradients, to the convolutions
        sums(widths[:2], data, {1: model}),
        sums(widths[1:3], data, {0: model}),
        sums(widths[2:], data, {}),
    ]
    return [one for one in sent if one.src != one.dst]


def transformer(
    n_layers: int, tokens: int, width: int, microbatches: int, data: Axes, model: Axes
) -> list[Sent]:
    """Transformer layers with two all-reduces of activations in forward and two in backward.

    The first layer has only one all-reduce in backward, because its input needs no gradient.

    Args:
        n_layers: The number of layers, each with attention and an MLP four times as wide.
        tokens: The tokens of a microbatch.
        width: The width of the model.
        microbatches: The microbatches of a step; after them, the gradients are summed once.
        data: The axes of the grid's data dimension.
        model: The axes of its model dimension.
    """
    activations = sums((tokens, width), model, {0: data}, times=(4 * n_layers - 1) * microbatches)
    weights = [((width, width), 1)] * 3 + [((width, width), 0)]
    weights += [((width, 4 * width), 1), ((4 * width, width), 0)]
    gradients = [sums(shape, data, {dim: model}, times=n_layers) for shape, dim in weights]
    return [one for one in [activations, *gradients] if one.src != one.dst]
