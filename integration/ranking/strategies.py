"""The training step of a Transformer layer with different parallel strategies, as programs.

The layer has four matrix products: queries, keys and values (`qkv`), the projection back (`out`),
and the two of the MLP (`up`, `down`), with attention between the first two. Norms, activation
functions and the optimizer are left out, because they communicate next to nothing.

A product has the loop indices `b` (sequences), `s` (positions), `k` (summed over) and `n` (columns
of the weight). For every product, a strategy says which index each mesh axis splits. The layouts in
forward and backward follow from this, because an index that is summed over leaves partial sums:

    forward            Y[bs, n] = X[bs, k] W[k, n]     partial along the axes of k
    gradient of X      X'[bs, k] = Y'[bs, n] W[k, n]   partial along the axes of n
    gradient of W      W'[k, n] = X[bs, k] Y'[bs, n]   partial along the axes of b and s

Between two products, a tensor has a layout that the strategy chooses: that of the residual stream,
of the attention or of the MLP's hidden layer. It is kept in this layout for the backward pass.
`shardspec.reshard` changes layouts, and each of its steps is a collective of the program.

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
    """The sizes of a Transformer layer and of its batch."""

    sequences: int
    positions: int
    d_model: int
    heads: int


@dataclass(frozen=True, slots=True)
class Strategy:
    """The index that each axis of the mesh splits: one letter for each axis, `-` for none."""

    name: str
    mesh: tuple[int, ...]
    qkv: str
    attention: str
    """`b`, or `n` for the heads."""
    out: str
    up: str
    down: str
    stream: str
    """For the residual stream: `b`, `s`, or `n` for its features."""
    hidden: str
    """For the MLP's hidden layer: `b`, `s` or `n`."""
    stored: str = ""
    """The indices, `k` or `n`, by which stored weights are sharded in addition to the split of
    their
    product: they are gathered in both passes, and their gradients are scattered, as in ZeRO-3."""


_DATA = {"qkv": "b", "attention": "b", "out": "b", "up": "b", "down": "b", "stream": "b"}
_MEGATRON = {"qkv": "n", "attention": "n", "out": "k", "up": "n", "down": "k"}


def _both(first: dict[str, str], second: dict[str, str]) -> dict[str, str]:
    """One strategy along the first mesh axis, and another one along the second."""
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
    """The step with each strategy."""
    return [Task(one.name, one.mesh, program(one, layer)) for one in STRATEGIES]


def program(strategy: Strategy, layer: Layer) -> Program:
    """The forward and backward pass of one layer; gradients end in the layout of stored weights."""
    return tuple(_Step(strategy, layer).operations())


@dataclass(frozen=True, slots=True)
class _Product:
    features: tuple[int, int]
    """The rows and columns of the weight."""
    split: str
    source: str
    """The layout of its input between products."""
    target: str
    """The layout of its output between products."""


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
        """The scores and the weighted sums of values; in backward, a product for each operand."""
        layer = self.layer
        split = self._ways(self.strategy.attention)
        head = layer.d_model // layer.heads
        batch = layer.sequences * layer.heads // (split["b"] * split["n"])
        for _ in range(n_products):
            yield Matmul(layer.positions, layer.positions, head, batch)

    def _matmul(self, rows: str, k: int, n: int, split: str) -> Matmul:
        """One of a product's three matrix products, which have the same FLOP with other indices."""
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
        """The layout in which the weight is stored, and the one in which its product uses it."""
        used = self._layout(product.features, _part(product.split, "kn"), "k", "n")
        extra = self.strategy.stored
        # The axes of storage are minor, so that gathering them takes one collective.
        dims = tuple(
            (*entries, *(axis for axis, letter in enumerate(extra) if letter == dim))
            for entries, dim in zip(used.spec.dims, "kn", strict=True)
        )
        return Layout(used.shape, used.mesh, Spec(dims)), used

    def _layout(self, shape: tuple[int, ...], split: str, *dims: str, partial: str = "") -> Layout:
        """A layout in which each dim is sharded along the axes whose letter is in `dims` for it."""
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
