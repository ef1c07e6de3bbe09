"""A Transformer layer's training step under different parallel strategies, as programs.

The layer is four matrix products: queries, keys and values (`qkv`), the projection back (`out`),
and the two of the MLP (`up`, `down`), with attention between the first two. Norms, activation
functions and the optimizer are left out: they communicate next to nothing.

A product has the loop indices `b` (sequences), `s` (positions), `k` (summed over) and `n` (columns
of the weight). A strategy says for every product which index each mesh axis splits; layouts follow,
forward and backward, by the rule that an index which is summed over leaves partial sums:

    forward            Y[bs, n] = X[bs, k] W[k, n]     partial along the axes of k
    gradient of X      X'[bs, k] = Y'[bs, n] W[k, n]   partial along the axes of n
    gradient of W      W'[k, n] = X[bs, k] Y'[bs, n]   partial along the axes of b and s

Between two products a tensor rests in a layout of the strategy's own, that of the residual stream,
of the attention or of the MLP's hidden layer, and is kept there for the backward pass. Changing a
layout is `shardspec.reshard`'s work, and each of its steps is a collective of the program.

Reference:
    AutoDDL, section 4 (split, broadcast and partial-sum states of every tensor).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardspec import Layout, Mesh, Partial, Spec, Step, reshard
from shardspec.resharding.reshard import WHOLE_AXES

from ranking.program import ITEMSIZE_BYTES, Collective, Matmul, Operation, Program, Task


@dataclass(frozen=True, slots=True)
class Layer:
    """Sizes of a Transformer layer and its batch."""

    sequences: int
    positions: int
    d_model: int
    heads: int


@dataclass(frozen=True, slots=True)
class Strategy:
    """Which index each axis of the mesh splits: a letter an axis, `-` for none."""

    name: str
    mesh: tuple[int, ...]
    qkv: str
    attention: str
    """`b`, or `n` for the heads."""
    out: str
    up: str
    down: str
    stream: str
    """Of the residual stream: `b`, `s`, or `n` for its features."""
    hidden: str
    """Of the MLP's hidden layer: `b`, `s` or `n`."""
    stored: str = ""
    """Indices, `k` or `n`, by which stored weights are cut beyond what their product uses: they are
    gathered in both passes, and their gradients scattered, as in ZeRO-3."""


_DATA = {"qkv": "b", "attention": "b", "out": "b", "up": "b", "down": "b", "stream": "b"}
_MEGATRON = {"qkv": "n", "attention": "n", "out": "k", "up": "n", "down": "k"}


def _both(first: dict[str, str], second: dict[str, str]) -> dict[str, str]:
    """One strategy along the first mesh axis and another along the second."""
    return {key: first[key] + second[key] for key in first}


_DATA_H = {**_DATA, "hidden": "b"}
_TENSOR = {**_MEGATRON, "stream": "-", "hidden": "n"}
_SEQUENCE = {**_MEGATRON, "stream": "s", "hidden": "n"}
_ULYSSES = {**dict.fromkeys(_DATA_H, "s"), "attention": "n"}
_SUMMED = {**dict.fromkeys(_DATA_H, "k"), "attention": "n", "stream": "-", "hidden": "n"}
_COLUMNS = {**dict.fromkeys(_DATA_H, "n")}

STRATEGIES: tuple[Strategy, ...] = (
    Strategy("data parallel", (4,), **_DATA_H),
    Strategy("ZeRO-3", (4,), **_DATA_H, stored="k"),
    Strategy("tensor parallel", (4,), **_TENSOR),
    Strategy("tensor and sequence parallel", (4,), **_SEQUENCE),
    Strategy("all-to-all sequence parallel", (4,), **_ULYSSES),
    Strategy("partial sums everywhere", (4,), **_SUMMED),
    Strategy("columns everywhere", (4,), **_COLUMNS),
    Strategy("data x tensor", (2, 2), **_both(_DATA_H, _TENSOR)),
    Strategy("ZeRO-3 x tensor", (2, 2), **_both(_DATA_H, _TENSOR), stored="k-"),
    Strategy("data x ZeRO-3", (2, 2), **_both(_DATA_H, _DATA_H), stored="-k"),
    Strategy("data x all-to-all", (2, 2), **_both(_DATA_H, _ULYSSES)),
    Strategy("data x partial sums", (2, 2), **_both(_DATA_H, _SUMMED)),
    Strategy(
        "two-dimensional",
        (2, 2),
        qkv="kn",
        attention="bn",
        out="nk",
        up="kn",
        down="nk",
        stream="n-",
        hidden="bn",
    ),
)


def tasks(layer: Layer) -> list[Task]:
    """The step of each strategy."""
    return [Task(one.name, one.mesh, program(one, layer)) for one in STRATEGIES]


def program(strategy: Strategy, layer: Layer) -> Program:
    """Forward and backward pass of one layer, with the gradients as the weights are stored."""
    return tuple(_Step(strategy, layer).operations())


@dataclass(frozen=True, slots=True)
class _Product:
    features: tuple[int, int]
    """Rows and columns of the weight."""
    split: str
    source: str
    """How its input rests."""
    target: str
    """How its output shall rest."""


@dataclass(frozen=True, slots=True)
class _Step:
    strategy: Strategy
    layer: Layer

    def operations(self) -> Iterator[Operation]:
        one, d = self.strategy, self.layer.d_model
        products = [
            _Product((d, 3 * d), one.qkv, one.stream, one.attention),
            _Product((d, d), one.out, one.attention, one.stream),
            _Product((d, 4 * d), one.up, one.stream, one.hidden),
            _Product((4 * d, d), one.down, one.hidden, one.stream),
        ]
        for product in products:
            yield from self._forward(product)
            if product is products[0]:
                yield from self._attention(2)
        for product in reversed(products):
            if product is products[0]:
                yield from self._attention(4)
            yield from self._backward(product)

    def _forward(self, product: _Product) -> Iterator[Operation]:
        (k, n), split = product.features, product.split
        yield from self._activation(k, product.source, _part(split, "bsk"))
        yield from self._weight(product)
        yield self._matmul("bs", k, n, split)
        yield from self._activation(n, _part(split, "bsn"), product.target, sums=_part(split, "k"))

    def _backward(self, product: _Product) -> Iterator[Operation]:
        (k, n), split = product.features, product.split
        yield from self._activation(n, product.target, _part(split, "bsn"))
        yield from self._weight(product)
        yield self._matmul("bs", k, n, split)
        yield from self._activation(k, _part(split, "bsk"), product.source, sums=_part(split, "n"))
        yield from self._activation(k, product.source, _part(split, "bsk"))
        yield self._matmul("bs", k, n, split)
        stored, used = self._weight_layouts(product)
        sums = Spec(used.spec.dims, _partial(_part(split, "bs")))
        yield from _collectives(Layout(used.shape, used.mesh, sums), stored)

    def _attention(self, n_products: int) -> Iterator[Operation]:
        """Scores and their sums of values; backward, a product for each operand of these."""
        layer = self.layer
        split = self._ways(self.strategy.attention)
        head = layer.d_model // layer.heads
        batch = layer.sequences * layer.heads // (split["b"] * split["n"])
        for _ in range(n_products):
            yield Matmul(layer.positions, layer.positions, head, batch)

    def _matmul(self, rows: str, k: int, n: int, split: str) -> Matmul:
        """One of a product's three: they compute equally much, in another order of the indices."""
        ways, layer = self._ways(split), self.layer
        m = layer.sequences // ways["b"] * (layer.positions // ways["s"])
        return Matmul(m, n // ways["n"], k // ways["k"])

    def _ways(self, split: str) -> dict[str, int]:
        ways = dict.fromkeys("bskn", 1)
        for letter, size in zip(split, self.strategy.mesh, strict=True):
            if letter != "-":
                ways[letter] *= size
        return ways

    def _activation(
        self, features: int, before: str, after: str, sums: str = ""
    ) -> Iterator[Collective]:
        shape = (self.layer.sequences, self.layer.positions, features)
        source = self._layout(shape, before, "b", "s", "kn", partial=sums)
        return _collectives(source, self._layout(shape, after, "b", "s", "kn"))

    def _weight(self, product: _Product) -> Iterator[Collective]:
        return _collectives(*self._weight_layouts(product))

    def _weight_layouts(self, product: _Product) -> tuple[Layout, Layout]:
        """As the weight is stored, and as its product uses it."""
        used = self._layout(product.features, _part(product.split, "kn"), "k", "n")
        extra = self.strategy.stored
        # The axes of storage are the minor ones, so that gathering them is one collective.
        dims = tuple(
            (*entries, *(axis for axis, letter in enumerate(extra) if letter == dim))
            for entries, dim in zip(used.spec.dims, "kn", strict=True)
        )
        return Layout(used.shape, used.mesh, Spec(dims)), used

    def _layout(self, shape: tuple[int, ...], split: str, *dims: str, partial: str = "") -> Layout:
        """Each dim is cut along the axes whose letter is among its own."""
        entries = tuple(tuple(a for a, c in enumerate(split) if c in dim) for dim in dims)
        names = tuple("xyz"[: len(self.strategy.mesh)])
        return Layout(shape, Mesh(self.strategy.mesh, names), Spec(entries, _partial(partial)))


def _part(split: str, letters: str) -> str:
    return "".join(c if c in letters else "-" for c in split)


def _partial(sums: str) -> tuple[Partial, ...]:
    return tuple(Partial(axis) for axis, letter in enumerate(sums) if letter != "-")


def _collectives(source: Layout, target: Layout) -> Iterator[Collective]:
    for step in reshard(source, target, collectives=WHOLE_AXES).steps:
        if not step.is_local:
            yield _collective(step)


def _collective(step: Step) -> Collective:
    layout = step.src if step.kind == "reduce_scatter" else step.dst
    return Collective(step.kind, layout.local_bytes(ITEMSIZE_BYTES), step.mesh_axes)  # type: ignore[arg-type]
