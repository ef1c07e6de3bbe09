"""Megatron-like grids of data and model parallelism, collective by collective, by hand."""

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
    """A tensor that is brought from one layout to another, in each step of the program."""

    shape: tuple[int, ...]
    src: Spec
    dst: Spec
    times: int = 1


@dataclass(frozen=True)
class Grid:
    """What a grid communicates in a step."""

    data: int
    model: int
    seconds: float


def price(sent: list[Sent], mesh: Mesh, cluster: Cluster) -> float:
    """Seconds of all that is sent in float32, each the fastest way that our own plans know."""
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
    """The all-reduce of partial sums of a tensor whose dims are split as `split` says."""
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
    """Convolutions run data parallel on all devices, the dense layers on the grid.

    The first dense layer is split by columns and the second by rows, as Megatron splits an MLP. The
    third is small: every device along the model axes does the same, and so sends nothing.

    Args:
        kernels: Of the convolutions.
        widths: Of what the dense layers read and make.
        batch: Images.
        data: The axes of the grid's data dimension.
        model: The axes of its model dimension.
    """
    everywhere = data + model
    x = (batch, widths[0])
    rows, parts = {0: data}, tuple(Partial(axis) for axis in model)
    sent = [sums(kernel, everywhere, {}) for kernel in kernels]
    sent += [
        Sent(x, Spec((everywhere, ())), Spec((data, ()))),  # from the convolutions
        sums((batch, widths[2]), model, rows),  # the second layer's sums
        Sent(x, Spec((data, ()), parts), Spec((everywhere, ()))),  # gradients, back to them
        sums(widths[:2], data, {1: model}),
        sums(widths[1:3], data, {0: model}),
        sums(widths[2:], data, {}),
    ]
    return [one for one in sent if one.src != one.dst]


def transformer(
    n_layers: int, tokens: int, width: int, microbatches: int, data: Axes, model: Axes
) -> list[Sent]:
    """Two all-reduces of activations a layer forward and two backward, of which the first has one.

    Args:
        n_layers: Attention and an MLP four times as wide each; their input needs no gradient.
        tokens: Of a microbatch.
        width: Of the model.
        microbatches: In a step, after which the gradients are summed once.
        data: The axes of the grid's data dimension.
        model: The axes of its model dimension.
    """
    activations = sums((tokens, width), model, {0: data}, times=(4 * n_layers - 1) * microbatches)
    weights = [((width, width), 1)] * 3 + [((width, width), 0)]
    weights += [((width, 4 * width), 1), ((4 * width, width), 0)]
    gradients = [sums(shape, data, {dim: model}, times=n_layers) for shape, dim in weights]
    return [one for one in [activations, *gradients] if one.src != one.dst]
