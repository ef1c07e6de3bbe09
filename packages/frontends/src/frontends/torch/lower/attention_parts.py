"""Attention of devices that send each other halves of heads, or keys in a ring, while it runs.

`frontends.jax.trace.attention_parts` does the same in JAX, and says more. Here attention becomes
several nodes of a program: calls on what a device has at a time, and permutations between them. A
part of keys is sent on before the call that reads it, so that both go on at the same time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import torch
from autoshard import Permutation
from shardspec import Layout, Mesh, Spec

from frontends.base.opposite_halves import Half, half_of
from frontends.torch.base.calls import Call, Tensor
from frontends.torch.base.flat import Shape, TensorType
from frontends.torch.lower.attention_rows import BY_ROW, is_balanced
from frontends.torch.lower.local import Coordinates, Function, differing_axes, place_along
from frontends.torch.lower.nodes import Communicate, Compute, Node

_EXAMPLES, _HEADS, _ROWS = 0, 1, 2
"""Dims of queries, keys, values and results `(b, h, t, d)`, and of sums `(b, h, t)`."""


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """How devices share the rows and keys of attention, where they send each other some."""

    call: Call
    """The call on a device's part."""
    mesh: Mesh
    rows: tuple[int, ...]
    """The axes that split rows."""
    n_rows: int
    """How many rows a device has."""
    ring: tuple[int, ...]
    """The axes along which keys go round."""
    n_keys: int
    """How many keys a device has at a time."""
    half: Half | None
    """Of what half belongs to the opposite device's rows; None if all is for the device's own."""
    axes: tuple[int, ...]
    """The axes along which devices compute something different."""

    @classmethod
    def of(
        cls, call: Call, shapes: Sequence[Shape], specs: Sequence[Spec], mesh: Mesh
    ) -> AttentionParts | None:
        """Find it from a call, and from the local shapes and the specs of its operands.

        None if the call is no attention, or if nothing is sent while it runs.
        """
        if call.name not in BY_ROW:
            return None
        places = [call.argument(name).place for name in ("query", "key")]
        rows, ring = (specs[place].plain_dims[_ROWS] for place in places)
        queries, keys = (shapes[place] for place in places)
        n_rows, n_keys = queries[_ROWS], keys[_ROWS]
        whole = n_rows * mesh.axis_size(rows), n_keys * mesh.axis_size(ring)
        half = None
        if n_rows < whole[0] and is_balanced(call, *whole):
            half = half_of(queries[_EXAMPLES], queries[_HEADS], keys[_HEADS])
        if half is None and n_keys == whole[1]:
            return None
        axes = differing_axes(specs, rows)
        return cls(call, mesh, rows, n_rows, ring, n_keys, half, axes)

    @property
    def n_turns(self) -> int:
        """How many devices share the keys."""
        return self.mesh.axis_size(self.ring)

    @property
    def n_halves(self) -> int:
        """Of how many devices' rows a device computes some."""
        return 1 if self.half is None else 2

    @property
    def key(self) -> Hashable:
        """Equal for parts that compute the same from equal operands at equal coordinates."""
        where = self.rows, self.n_rows, self.ring, self.n_keys, self.half, self.mesh.shape
        return self.call.key, where

    def seen(self, half: int, turn: int, coordinates: Coordinates) -> int | None:
        """The number of a half's first row, counted from the first key of a turn.

        Keys before it are seen by all of these rows, as all keys are if the result is None.
        """
        if not self.call.argument("is_causal"):
            return None
        place, n = place_along(self.mesh, self.rows, coordinates), self.mesh.axis_size(self.rows)
        first = (n - 1 - place if half else place) * self.n_rows
        return first - self.first_key(turn, coordinates)

    def first_key(self, turn: int, coordinates: Coordinates) -> int:
        """The number of the first key that a device has in a turn."""
        index = place_along(self.mesh, self.ring, coordinates)
        return (index - turn) % self.n_turns * self.n_keys

    def of_keys(self, masks: Sequence[Tensor], first_key: int) -> list[Tensor]:
        """The columns of a mask that are those of the keys of a turn."""
        return [
            mask if mask.shape[-1] == 1 else mask.narrow(-1, first_key, self.n_keys)
            for mask in masks
        ]

    @property
    def dim(self) -> int:
        """The dim of which a half is computed for the opposite device."""
        return _EXAMPLES if self.half == "examples" else _HEADS

    def keys_of(self, half: int, arrays: Sequence[Tensor]) -> list[Tensor]:
        """The parts of keys and values that a half reads."""
        if self.half is None or self.half == "heads of one key":
            return list(arrays)
        return [array.chunk(2, self.dim)[half] for array in arrays]

    def added(self, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """The gradients of keys and values, of those of each half."""
        if self.half is None:
            return list(parts[0])
        if self.half != "heads of one key":
            return [torch.cat(both, self.dim) for both in zip(*parts, strict=True)]
        return [(_wide(a) + _wide(b)).to(a.dtype) for a, b in zip(*parts, strict=True)]

    def run(self, operands: Sequence[Tensor], first_row: int | None) -> list[Tensor]:
        """Run the call for some rows and keys."""
        if first_row is None:
            return self.call(operands)
        return BY_ROW[self.call.name](self.call, operands, first_row)


@dataclass(slots=True)
class AttentionLowering:
    """Builds the nodes of one attention.

    Args:
        parts: How devices share it.
        phase: The phase that it runs in.
        name: The operator's name.
        kinds: The type of each register; those of new registers are added.
    """

    parts: AttentionParts
    phase: int
    name: str
    kinds: list[TensorType]
    nodes: list[Node] = field(default_factory=list)

    def lower(
        self, read: Sequence[int], results: Sequence[int], unread: Sequence[bool]
    ) -> list[Node]:
        """The nodes that compute the results.

        Args:
            read: The registers of the call's operands.
            results: Those of its results.
            unread: For each result, whether nothing reads it, so that it need not be sent.
        """
        if self.parts.call.has("grad_out"):
            self._backward(read, results, unread)
        else:
            self._forward(read, results, unread)
        return self.nodes

    def _forward(self, read: Sequence[int], results: Sequence[int], unread: Sequence[bool]) -> None:
        parts, (queries, keys, values, *masks) = self.parts, read
        n, n_turns = parts.n_halves, parts.n_turns
        rows, state = self._halves([queries]), list[int]()
        types = [self._half_type(self.kinds[result]) for result in results] * n
        for turn in range(n_turns):
            is_last = turn == n_turns - 1
            ahead = () if is_last else self._passed_on([keys, values])

            def run(
                operands: Sequence[Tensor], coordinates: Coordinates, turn: int = turn
            ) -> list[Tensor]:
                of_rows, both = operands[:n], operands[n : n + 2]
                masked = operands[n + 2 : n + 2 + len(masks)]
                masked = parts.of_keys(masked, parts.first_key(turn, coordinates))
                before = operands[n + 2 + len(masks) :]
                made: list[Tensor] = []
                for half in range(n):
                    given = [of_rows[half], *parts.keys_of(half, both), *masked]
                    result, sums = parts.run(given, parts.seen(half, turn, coordinates))
                    if n_turns == 1:
                        made += [result, sums]
                        continue
                    so_far = before[3 * half : 3 * half + 3]
                    result, top, share = _joined(so_far, result, _of_seen(sums, masked))
                    if turn < n_turns - 1:
                        made += [result, top, share]
                    else:
                        sums = torch.where(top.isneginf(), 0.0, top + share.log())
                        made += [result, sums]
                if turn == n_turns - 1:
                    made = [x.to(kind.dtype) for x, kind in zip(made, types, strict=True)]
                return made

            of_result, of_sums = map(_wide_type, types[:2])
            made_types = types if is_last else [of_result, of_sums, of_sums] * n
            into = results if is_last and parts.half is None else ()
            read_now = [*(own for (own,) in rows), keys, values, *masks, *state]
            state = self._compute(("forward", turn), run, read_now, made_types, into)
            keys, values = ahead or (keys, values)
        if parts.half is not None:
            self._together(state[:2], state[2:], results, unread)

    def _backward(
        self, read: Sequence[int], results: Sequence[int], unread: Sequence[bool]
    ) -> None:
        parts, (gradient, queries, keys, values, result, sums, *masks) = self.parts, read
        n, n_turns = parts.n_halves, parts.n_turns
        rows = self._halves([gradient, queries, result, sums])
        state, totals = list[int](), list[int]()
        types = [self._half_type(self.kinds[results[0]])] * n
        of_keys = [self.kinds[register] for register in results[1:]]
        wide = [*map(_wide_type, [*types, *of_keys])]
        going = [place for place in range(2) if not unread[1 + place]]
        homes, at_home = [results[1 + i] for i in going], [of_keys[i] for i in going]
        for turn in range(n_turns):
            is_last = turn == n_turns - 1
            ahead = () if is_last else self._passed_on([keys, values])

            def run(
                operands: Sequence[Tensor], coordinates: Coordinates, turn: int = turn
            ) -> list[Tensor]:
                of_rows, others = operands[: 4 * n], operands[4 * n :]
                both, masked = others[:2], others[2 : 2 + len(masks)]
                masked = parts.of_keys(masked, parts.first_key(turn, coordinates))
                before = others[2 + len(masks) :]
                of_queries, of_both = list[Tensor](), list[list[Tensor]]()
                for half in range(n):
                    given, own, its_result, its_sums = of_rows[4 * half : 4 * half + 4]
                    some = [given, own, *parts.keys_of(half, both), its_result, its_sums, *masked]
                    first, *rest = parts.run(some, parts.seen(half, turn, coordinates))
                    of_queries.append(first)
                    of_both.append(rest)
                if n_turns == 1:
                    return [*of_queries, *parts.added(of_both)]
                if before:
                    pairs = zip(of_queries, before, strict=True)
                    of_queries = [total + one for one, total in pairs]
                kept = types if turn == n_turns - 1 else wide
                of_queries = [x.to(k.dtype) for x, k in zip(of_queries, kept, strict=False)]
                return [*of_queries, *map(_wide, parts.added(of_both))]

            sent = of_keys if n_turns == 1 else wide[n:]
            made_types = [*(types if is_last else wide[:n]), *sent]
            first = [results[0] if is_last and parts.half is None else None, *[None] * (n - 1)]
            into = [*first, *(results[1:] if n_turns == 1 else (None, None))]
            every = [register for half in rows for register in half]
            read_now = [*every, keys, values, *masks, *state]
            made = self._compute(("backward", turn), run, read_now, made_types, into)
            state, here = made[:n], [made[n + place] for place in going]
            if n_turns > 1 and going:
                # By itself, so that the call above need not wait for the totals to arrive.
                kept = [sent[place] for place in going]
                if totals:
                    here = self._compute(("added",), _added, [*here, *totals], kept)
                totals = self._passed_on(here, homes if is_last and kept == at_home else ())
            keys, values = ahead or (keys, values)
        if totals and totals != homes:
            self._compute(
                ("narrow",),
                lambda wide, _: [x.to(k.dtype) for x, k in zip(wide, at_home, strict=True)],
                totals,
                at_home,
                homes,
            )
        if parts.half is not None:
            self._together(state[:1], state[1:], results[:1], unread[:1])

    def _halves(self, registers: Sequence[int]) -> list[list[int]]:
        """By half, the registers of its rows; those of the second half come from the opposite."""
        if self.parts.half is None:
            return [list(registers)]
        types = [self._half_type(self.kinds[register]) for register in registers]
        dim = self.parts.dim

        def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
            # copies, as programs assume that such a call returns new tensors
            return [
                part.clone() for k in range(2) for x in operands for part in [x.chunk(2, dim)[k]]
            ]

        made = self._compute(("halves",), run, registers, types * 2)
        own, other = made[: len(types)], made[len(types) :]
        return [own, [self._send(register, to_opposite=True) for register in other]]

    def _together(
        self, own: Sequence[int], other: Sequence[int], into: Sequence[int], unread: Sequence[bool]
    ) -> None:
        """Make results of the device's own half and of the one that the opposite computed."""
        back = [
            register if is_unread else self._send(register, to_opposite=True)
            for register, is_unread in zip(other, unread, strict=True)
        ]
        dim, n = self.parts.dim, len(own)

        def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
            return [torch.cat([operands[i], operands[n + i]], dim) for i in range(n)]

        self._compute(("together",), run, [*own, *back], [self.kinds[r] for r in into], into)

    def _passed_on(self, registers: Sequence[int], into: Sequence[int] = ()) -> list[int]:
        """What the device before this one in the ring has."""
        if into:
            pairs = zip(registers, into, strict=True)
            return [self._send(one, to_opposite=False, into=target) for one, target in pairs]
        # Keys that are values, too, are sent once.
        sent = {one: self._send(one, to_opposite=False) for one in dict.fromkeys(registers)}
        return [sent[register] for register in registers]

    def _send(self, register: int, *, to_opposite: bool, into: int | None = None) -> int:
        kind, parts = self.kinds[register], self.parts
        layout = Layout(kind.shape, parts.mesh, Spec.replicated(len(kind.shape)))
        axes = parts.rows if to_opposite else parts.ring
        how = axes, None, None, None, layout, layout
        step = Permutation("collective_permute", *how, to_opposite=to_opposite)
        result = self._new(kind) if into is None else into
        self.nodes.append(Communicate(self.phase, step, (register,), (result,)))
        return result

    def _compute(
        self,
        what: Hashable,
        run: Function,
        operands: Sequence[int],
        types: Sequence[TensorType],
        into: Sequence[int | None] = (),
    ) -> list[int]:
        """Add a call; results for which `into` has no register get new ones of these types."""
        targets: Sequence[int | None] = into or [None] * len(types)
        results = [
            self._new(kind) if target is None else target
            for kind, target in zip(types, targets, strict=True)
        ]
        key = self.parts.key, what
        node = Compute(run, tuple(operands), tuple(results), self.parts.axes, None, self.name, key)
        self.nodes.append(node)
        return results

    def _new(self, kind: TensorType) -> int:
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def _half_type(self, kind: TensorType) -> TensorType:
        shape = list(kind.shape)
        if self.parts.half is not None:
            shape[self.parts.dim] //= 2
        return replace(kind, shape=tuple(shape))


def _of_seen(sums: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """The sums, minus infinity where a mask hides all keys; there the kernel returns zero."""
    for mask in masks:
        sums = sums.masked_fill(mask.isneginf().all(-1), -torch.inf)
    return sums


def _joined(before: Sequence[Tensor], result: Tensor, sums: Tensor) -> tuple[Tensor, ...]:
    """The results of two sets of keys together, and what the next set has to know.

    Args:
        before: Nothing, or what this returned for the first set.
        result: Of the second set.
        sums: The logarithms of its sums; minus infinity where there is no key.

    Returns:
        The result; the highest of the sums; and all of them as multiples of that, which the
        logarithm of a very small sum would lose.
    """
    result, sums = _wide(result), _wide(sums)
    if not before:
        return result, sums, torch.ones_like(sums)
    so_far, top, share = before
    highest = torch.maximum(top, sums)
    kept, added = (
        torch.where(part.isneginf(), 0.0, (part - highest).exp()) for part in (top, sums)
    )
    kept = kept * share
    total = kept + added
    weights = [(part / total.clamp(min=1e-37))[..., None] for part in (kept, added)]
    return so_far * weights[0] + result * weights[1], highest, total


def _added(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
    """The sums of the first half of the operands with the second."""
    n = len(operands) // 2
    return [a + b for a, b in zip(operands[:n], operands[n:], strict=True)]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _wide_type(kind: TensorType) -> TensorType:
    return replace(kind, dtype=torch.promote_types(kind.dtype, torch.float32))
