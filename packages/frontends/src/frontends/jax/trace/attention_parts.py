"""Attention of a device that has some of the rows of a sequence, and all or some of its keys.

Two things are sent while it runs; `autoshard.space.permutations` says when, and prices them:

- Under a causal mask, the last rows see the most keys. So a device computes half of its examples or
  heads for the rows of the opposite device, the last one instead of the first. Then all devices
  have as many pairs of rows and keys. What belongs to these rows is sent there and back.
- If the axes that split rows split keys as well, the parts of the keys go round in a ring (Liu et
  al., "Ring Attention", arXiv 2310.01889). Results are put together by the sums that each returns;
  backward, the gradients of keys and values go round with them, in float32 at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from shardspec import Mesh, Spec

from frontends.base.opposite_halves import Half, half_of
from frontends.jax.base.attention import Attention
from frontends.jax.rules import attention

Array = Any
_EXAMPLES, _ROWS, _HEADS = 0, 1, 2
"""Dims of queries, keys, values and results `(B, T, N, H)`."""

_HEADS_OF_SUMS = 1
"""The dim of heads in statistics `(B, N, T)`."""


def run_forward(
    operands: Sequence[Array], how: Attention, specs: Sequence[Spec | None], mesh: Mesh
) -> list[Array]:
    """A device's part of what `attention.forward` returns.

    Args:
        operands: The device's parts of the operands.
        how: What to compute.
        specs: The layouts of the operands.
        mesh: The mesh of these.
    """
    queries, keys, values, *others = operands
    place = _Place.of(operands, how, specs, mesh)
    rows = place.sent([queries], [_HEADS])
    made: list[list[Array]] = [[] for _ in rows]
    for turn in range(place.n_turns):
        for half, (of_rows,) in enumerate(rows):
            read = [of_rows, *place.keys_of(half, [keys, values]), *place.of_examples(half, others)]
            one = attention.forward(read, how, place.first_row(half, turn))
            made[half] = _joined(made[half], one) if place.n_turns > 1 else one
        if turn < place.n_turns - 1:
            keys, values = place.passed_on([keys, values])
    results = [[result.astype(values.dtype), sums] for result, sums in made]
    return place.returned(results, [_HEADS, _HEADS_OF_SUMS])


def run_backward(
    operands: Sequence[Array], how: Attention, specs: Sequence[Spec | None], mesh: Mesh
) -> list[Array]:
    """A device's part of what `attention.backward` returns; see `run_forward`."""
    place = _Place.of(operands, how, specs, mesh)
    if place.half is not None or place.n_turns > 1:
        # Otherwise XLA finds that forward sent the same, and holds it in memory until backward.
        once = {id(operand): operand for operand in operands}
        once = dict(zip(once, lax.optimization_barrier(list(once.values())), strict=True))
        operands = [once[id(operand)] for operand in operands]
    queries, keys, values, *others, sums, result, gradient = operands
    rows = place.sent([queries, sums, result, gradient], [_HEADS, _HEADS_OF_SUMS, _HEADS, _HEADS])
    of_queries: list[Array] = [0.0 for _ in rows]
    of_keys: list[Array] = [0.0, 0.0]
    of_bias: list[Array] = []
    for turn in range(place.n_turns):
        made = []
        for half, (own, *given) in enumerate(rows):
            read = [own, *place.keys_of(half, [keys, values]), *place.of_examples(half, others)]
            of_rows, *rest = attention.backward([*read, *given], how, place.first_row(half, turn))
            of_queries[half] = of_rows if place.n_turns == 1 else of_queries[half] + _wide(of_rows)
            made.append(rest[:2])
            of_bias = rest[2:]  # there are no halves where there is a bias
        both = place.added(made)
        if place.n_turns == 1:
            of_keys = both
            continue
        of_keys = place.passed_on([a + _wide(b) for a, b in zip(of_keys, both, strict=True)])
        if turn < place.n_turns - 1:
            keys, values = place.passed_on([keys, values])
    (all_queries,) = place.returned([[x.astype(queries.dtype)] for x in of_queries], [_HEADS])
    of_keys = [x.astype(y.dtype) for x, y in zip(of_keys, (keys, values), strict=True)]
    return [all_queries, *of_keys, *of_bias]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a device is among those that share the rows and keys of a sequence."""

    rows: tuple[str, ...]
    """Names of the axes that split rows."""
    n: int
    """How many devices share the rows."""
    n_rows: int
    """How many rows a device has."""
    ring: tuple[str, ...]
    """Names of the axes along which keys go round."""
    n_turns: int
    """How many devices share the keys."""
    n_keys: int
    """How many keys a device has at a time."""
    is_by_place: bool
    """Whether it matters which rows these are."""
    half: Half | None
    """Of what half belongs to the opposite device's rows; None if all is for the device's own."""

    @classmethod
    def of(
        cls, operands: Sequence[Array], how: Attention, specs: Sequence[Spec | None], mesh: Mesh
    ) -> _Place:
        """Find it from the parts and layouts of queries and keys."""
        queries, keys = operands[:2]
        split = [() if spec is None else spec.plain_dims[_ROWS] for spec in specs[:2]]
        (rows, ring), (n, n_turns) = split, map(mesh.axis_size, split)
        n_rows, n_keys = queries.shape[_ROWS], keys.shape[_ROWS]
        half = None
        if n > 1 and attention.is_balanced(how, n_rows * n, n_keys * n_turns):
            half = half_of(queries.shape[_EXAMPLES], queries.shape[_HEADS], keys.shape[_HEADS])
        return cls(
            *(tuple(mesh.axis_names[axis] for axis in rows), n, n_rows),
            *(tuple(mesh.axis_names[axis] for axis in ring), n_turns, n_keys),
            how.is_by_place,
            half,
        )

    def first_row(self, half: int, turn: int) -> Array | None:
        """The number of the first row of a half, counted from the first key of this turn."""
        if not self.is_by_place or not self.rows:
            return None
        index = lax.axis_index(self.rows)
        first = (self.n - 1 - index if half else index) * self.n_rows
        if self.n_turns == 1:
            return first
        return first - (lax.axis_index(self.ring) - turn) % self.n_turns * self.n_keys

    def sent(self, arrays: Sequence[Array], heads: Sequence[int]) -> list[list[Array]]:
        """By half, the arrays of its rows; `heads` are the dims of their heads."""
        if self.half is None:
            return [list(arrays)]
        halves = [jnp.split(x, 2, self._dim(dim)) for x, dim in zip(arrays, heads, strict=True)]
        return [[x for x, _ in halves], [self._to_opposite(x) for _, x in halves]]

    def returned(self, parts: Sequence[Sequence[Array]], heads: Sequence[int]) -> list[Array]:
        """The device's own arrays, of those of each half."""
        if self.half is None:
            return list(parts[0])
        return [
            jnp.concatenate([own, self._to_opposite(other)], self._dim(dim))
            for own, other, dim in zip(*parts, heads, strict=True)
        ]

    def keys_of(self, half: int, arrays: Sequence[Array]) -> list[Array]:
        """The parts of keys and values that a half reads."""
        if self.half is None or self.half == "heads of one key":
            return list(arrays)
        return [jnp.split(x, 2, self._dim(_HEADS))[half] for x in arrays]

    def of_examples(self, half: int, arrays: Sequence[Array]) -> list[Array]:
        """The parts of arrays by example, or of a bias, that a half reads."""
        if self.half != "examples":
            return list(arrays)
        return [jnp.split(x, 2)[half] for x in arrays]

    def added(self, parts: Sequence[Sequence[Array]]) -> list[Array]:
        """The gradients of keys and values, of those of each half."""
        if self.half is None:
            return list(parts[0])
        if self.half != "heads of one key":
            dim = self._dim(_HEADS)
            return [jnp.concatenate(both, dim) for both in zip(*parts, strict=True)]
        return [(_wide(a) + _wide(b)).astype(a.dtype) for a, b in zip(*parts, strict=True)]

    def passed_on(self, arrays: Sequence[Array]) -> list[Array]:
        """What the device before this one in the ring has."""
        pairs = [(i, (i + 1) % self.n_turns) for i in range(self.n_turns)]
        once = {id(x): x for x in arrays}  # keys that are values, too, are sent once
        sent = {key: lax.ppermute(x, self.ring, pairs) for key, x in once.items()}
        return [sent[id(x)] for x in arrays]

    def _to_opposite(self, array: Array) -> Array:
        return lax.ppermute(array, self.rows, [(i, self.n - 1 - i) for i in range(self.n)])

    def _dim(self, heads: int) -> int:
        return _EXAMPLES if self.half == "examples" else heads


def _joined(total: Sequence[Array], one: Sequence[Array]) -> list[Array]:
    """The results and sums of two sets of keys together; of no keys, the sum is minus infinity."""
    result, sums = one
    if not total:
        return [_wide(result), sums]
    both = jnp.logaddexp(total[1], sums)
    shares = [jnp.where(jnp.isneginf(part), 0.0, jnp.exp(part - both)) for part in (total[1], sums)]
    kept, added = (jnp.swapaxes(part, 1, 2)[..., None] for part in shares)
    return [total[0] * kept + _wide(result) * added, both]


def _wide(array: Array) -> Array:
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))
