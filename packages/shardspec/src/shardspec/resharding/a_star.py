"""The cheapest sequence of collectives between two specs of whole axes: A* over specs.

This serves what `construct` does not: prices other than bytes, fewer kinds of collectives, or a
tighter limit on memory. A state is (dims, partial results left). An edge is one collective over
whole axes that are the minor-most of their dim. Its cost is the bytes received by the device that
receives most, then the number of steps, both in one integer; a price of the caller's replaces both.

Sizes are relative to the tensor: with M elements in total and N devices, they are counted in units
of M / N**2, in which each cost below is an integer. So the result depends on the shape only through
which splits are even, and one search serves all tensors that agree in that.

The estimate of the cost that is left (→ `_Search.estimate`) is what some device must still receive:
the part of its destination shard that it does not hold, or, as long as there are partial results to
reduce, what devices receive on average according to `lower_bound`. No collective brings a device
more than it receives, so this is never an overestimate. If the caller gives prices, the estimate is
0, as nothing is known of them but that they are not negative.

Three restrictions keep the search space small. An axis that neither spec uses stays unused. The
axes that a dim has in common in both specs, counted from the major end, stay where they are; this
loses nothing in the cases that the tests search exhaustively. And the only permutation tried is the
one that brings axes to where the destination has them.

There are too many specs of ten axes to visit them all. So after `_EXACT_STATES` states the search
hurries: it prefers states with fewer axes that are not where the goal has them, and the plan that
it finds need not be the cheapest. If more than `_FEW_AXES` axes could shard or be reduced in one
step, only some orders are tried (→ `_Search.arrangements`); several slices in a row make up the
other orders.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from shardspec.base.axis import index
from shardspec.base.partial import Partial, Reduction
from shardspec.layout.spec import Spec
from shardspec.resharding.construct import StepKind

Dims = tuple[tuple[int, ...], ...]
State = tuple[Dims, tuple[Partial, ...]]

_BYTE = 1 << 16
"""Weight of a unit of bytes against a step: no plan has this many steps."""
_MOST_PRICED_STATES = 1_000
"""Most states that a search with prices visits; takes under a second."""
_EXACT_STATES = 8_000
"""States that a search by bytes visits before it hurries; up to six whole axes need no more."""
_HURRIED_STATES = 400
"""Number of further states after which it hurries more."""
_MOST_STATES = 16_000
"""States that a search by bytes visits before it gives up."""
_FEW_AXES = 5
"""Most axes that are tried in all orders: 325 choices."""


class SpecMove(NamedTuple):
    """One collective: the fields of a `Step`, with the spec after it instead of the layouts."""

    kind: StepKind
    axes: tuple[int, ...]
    dim: int | None
    to_dim: int | None
    reduction: Reduction | None
    spec: Spec


Price = Callable[[Spec, SpecMove], float]
"""`price(spec, move)`: the cost of a move from `spec`."""


class _Edge(NamedTuple):
    """A move during the search; its end is made a `Spec`, which is checked, only when needed."""

    kind: StepKind
    axes: tuple[int, ...]
    dim: int | None
    to_dim: int | None
    end: State


class Task(NamedTuple):
    """Everything that the result of a search without prices depends on."""

    src: Spec
    """Where to start; divides `sizes` evenly."""
    dst: Spec
    """Where to end; divides `sizes` evenly. Its partial results are also in `src`; others of `src`
    can be reduced."""
    sizes: tuple[int, ...]
    """Sizes of the dims, or other numbers that the same products of mesh axes divide."""
    mesh_shape: tuple[int, ...]
    """Length of each axis."""
    kinds: frozenset[str]
    """Kinds of moves that are allowed."""
    min_shards: int
    """Least number of shards of the tensor at any time, which limits memory."""


@lru_cache(maxsize=1 << 16)
def fewest_bytes_moves(task: Task) -> tuple[SpecMove, ...] | None:
    """The moves with the fewest received bytes, then the fewest steps.

    If the search had to hurry, they may not be the best.

    Returns:
        None if no moves lead to the goal, or `_MOST_STATES` states were visited without any.
    """
    return _Search(task, None, math.inf).run()


def cheapest_moves(task: Task, price: Price, below: float) -> tuple[SpecMove, ...] | None:
    """The moves with the least sum of prices.

    Args:
        task: Start, goal and limits.
        price: Not negative; asked once for all moves of the same kind, axes, reduction and sizes.
        below: Cost of a known plan; only cheaper ones are of interest.

    Returns:
        None if nothing is cheaper, or `_MOST_PRICED_STATES` states were visited without success.
    """
    return _Search(task, price, below).run()


class _Search:
    def __init__(self, task: Task, price: Price | None, below: float) -> None:
        src, dst = task.src, task.dst
        self.start: State = (src.plain_dims, src.partial)
        self.goal: State = (dst.plain_dims, dst.partial)
        self.sizes = task.sizes
        self.mesh_shape = task.mesh_shape
        self.kinds = task.kinds
        self.min_shards = task.min_shards
        self.price = price
        self.prices: dict[object, float] = {}
        self.below = below
        self.hurry = 0
        self.whole = math.prod(task.mesh_shape) ** 2
        self.wanted = self.whole // self.length(dst.axes)
        self.kept = math.prod(task.mesh_shape) * self.length(dst.partial_axes)
        self.usable = tuple(sorted({*src.axes, *dst.axes, *src.partial_axes}))
        self.fixed = tuple(map(_common_prefix, src.plain_dims, dst.plain_dims))
        self.overlaps: dict[tuple[int, tuple[int, ...]], int] = {}

    def length(self, axes: tuple[int, ...]) -> int:
        return math.prod([self.mesh_shape[axis] for axis in axes])

    def run(self) -> tuple[SpecMove, ...] | None:
        best: dict[State, float] = {self.start: 0}
        came: dict[State, tuple[State, _Edge]] = {}
        done: set[State] = set()
        # Ties go to the state found last, so that the search runs deep, then are decided by spec.
        queue: list[tuple[float, int, State]] = [(self.estimate(self.start), 0, self.start)]
        patience = _EXACT_STATES
        for count in itertools.count(1):
            if not queue or len(done) > (_MOST_PRICED_STATES if self.price else _MOST_STATES):
                return None
            if len(done) == patience:
                patience += _HURRIED_STATES
                self.hurry = max(8 * self.hurry, 1)
                queue = [(best[end] + self.estimate(end), number, end) for *_, number, end in queue]
                heapq.heapify(queue)
            _, _, state = heapq.heappop(queue)
            if state == self.goal:
                break
            if state in done:
                continue
            done.add(state)
            spent = best[state]
            for weight, edge in self.edges(state):
                if edge.kind not in self.kinds or edge.end in done:
                    continue
                shards = self.length(tuple(itertools.chain(*edge.end[0])))
                if shards < self.min_shards:
                    continue
                price = self.price
                reached = spent + (self.priced(price, state, edge, shards) if price else weight)
                if reached < best.get(edge.end, self.below):
                    best[edge.end] = reached
                    came[edge.end] = (state, edge)
                    heapq.heappush(queue, (reached + self.estimate(edge.end), -count, edge.end))
        moves = []
        while state != self.start:
            state, edge = came[state]
            moves.append(_move(state, edge))
        return tuple(reversed(moves))

    def priced(self, price: Price, state: State, edge: _Edge, shards: int) -> float:
        """The caller's price of a move, which ends with `shards` shards; cached."""
        move = _move(state, edge)
        key = (*move[:2], move.reduction, self.length(tuple(itertools.chain(*state[0]))), shards)
        if key not in self.prices:
            self.prices[key] = price(Spec(*state), move)
        return self.prices[key]

    def estimate(self, state: State) -> int:
        """A lower bound on the cost from `state` to the goal; in a hurry, it may be higher."""
        if self.price:
            return 0
        dims, partial = state
        reduced = self.length(tuple(index(p.axis) for p in partial if p not in self.goal[1]))
        hurry = 0
        if self.hurry:
            common = sum(map(_common_prefix, dims, self.goal[0]))
            elsewhere = sum(map(len, (*dims, *self.goal[0]))) - 2 * common + len(partial)
            hurry = self.hurry * elsewhere * self.wanted * _BYTE
        if reduced > 1:
            return (self.wanted + (reduced - 2) * self.kept) * _BYTE + 1 + hurry
        shards = 1
        changed = 0
        for dim, axes in enumerate(dims):
            key = (dim, axes)
            parts = self.overlaps.get(key)
            if parts is None:
                parts = self.overlaps[key] = self.overlap(axes, self.goal[0][dim])
            shards *= parts
            changed += axes != self.goal[0][dim]
        missing = self.wanted - self.whole // shards if shards else self.wanted
        # A step changes at most two dims, a permutation any number.
        steps = min(changed, 1) if "collective_permute" in self.kinds else (changed + 1) // 2
        return missing * _BYTE + steps + hurry

    def overlap(self, held: tuple[int, ...], wanted: tuple[int, ...]) -> int:
        """One over the fraction of a dim that both shards of a device share; 0 if some share none.

        Along the axes in common, from the major end, the two shards are the same. At the first axis
        that differs, some device has the first chunk of one and the last chunk of the other.
        """
        held = tuple(axis for axis in held if self.mesh_shape[axis] > 1)
        wanted = tuple(axis for axis in wanted if self.mesh_shape[axis] > 1)
        if _common_prefix(held, wanted) < min(len(held), len(wanted)):
            return 0
        return max(self.length(held), self.length(wanted))

    def edges(self, state: State) -> Iterator[tuple[int, _Edge]]:
        """All collectives that can follow `state`, each with its cost."""
        dims, partial = state
        shards = [self.length(axes) for axes in dims]
        local = self.whole // math.prod(shards) * _BYTE

        def appended(dim: int, axes: tuple[int, ...], n: int, base: Dims) -> Dims | None:
            if self.sizes[dim] % (shards[dim] * n):
                return None
            return (*base[:dim], base[dim] + axes, *base[dim + 1 :])

        for dim, held in enumerate(dims):
            for cut in range(self.fixed[dim], len(held)):
                axes = held[cut:]
                n = self.length(axes)
                rest = (*dims[:dim], held[:cut], *dims[dim + 1 :])
                yield (n - 1) * local + 1, _Edge("all_gather", axes, dim, None, (rest, partial))
                for to_dim in range(len(dims)):
                    if to_dim != dim and (after := appended(to_dim, axes, n, rest)):
                        cost = (n - 1) * local // n + 1
                        yield cost, _Edge("all_to_all", axes, dim, to_dim, (after, partial))

        used = {axis for held in dims for axis in held}.union(index(p.axis) for p in partial)
        free = [axis for axis in self.usable if axis not in used]
        for axes in self.arrangements(free):
            n = self.length(axes)
            for dim in range(len(dims)):
                if after := appended(dim, axes, n, dims):
                    yield 1, _Edge("slice", axes, dim, None, (after, partial))

        reducible = self.reducible(partial)
        for axes in self.arrangements([index(p.axis) for p in reducible]):
            n = self.length(axes)
            reduced = tuple(p for p in partial if p.axis not in axes)
            cost = (n - 1) * local // n
            if axes == tuple(sorted(axes)):
                yield 2 * cost + 1, _Edge("all_reduce", axes, None, None, (dims, reduced))
            if reducible[0].kind == "sum":
                for dim in range(len(dims)):
                    if after := appended(dim, axes, n, dims):
                        yield cost + 1, _Edge("reduce_scatter", axes, dim, None, (after, reduced))

        if "collective_permute" in self.kinds and (after := self.permuted(state)):
            pairs = {
                (a, b)
                for old, new in zip(dims, after, strict=True)
                for a, b in zip(old, new, strict=True)
                if a != b
            }
            axes = tuple(sorted({axis for pair in pairs for axis in pair}))
            yield local + 1, _Edge("collective_permute", axes, None, None, (after, partial))

    def arrangements(self, axes: list[int]) -> Iterator[tuple[int, ...]]:
        """Ordered choices out of `axes`.

        Of at most `_FEW_AXES` all choices; of more, each axis alone, all together, and the runs of
        axes that shard a dim of the goal.
        """
        if len(axes) <= _FEW_AXES:
            for count in range(1, len(axes) + 1):
                yield from itertools.permutations(axes, count)
            return
        runs = [
            held[start:stop]
            for held in self.goal[0]
            for start, stop in itertools.combinations(range(len(held) + 1), 2)
            if set(axes).issuperset(held[start:stop])
        ]
        yield from dict.fromkeys([*((axis,) for axis in axes), tuple(axes), *runs])

    def permuted(self, state: State) -> Dims | None:
        """The dims with the goal's axes in place of others of the same length.

        An axis that gives way takes the place of the one that replaces it, or becomes free. None if
        nothing changes, or if an axis that holds partial results would move to a dim.
        """
        dims, partial = state
        to = {
            a: b
            for old, new in zip(dims, self.goal[0], strict=True)
            for a, b in zip(old, new, strict=False)
            if self.mesh_shape[a] == self.mesh_shape[b]
        }
        comes = {b: a for a, b in to.items()}
        for axis in {axis for held in dims for axis in held} - to.keys():
            end = axis
            while end in comes:
                end = comes[end]
            to[axis] = end
        partial_axes = {index(p.axis) for p in partial}
        if all(a == b for a, b in to.items()) or not partial_axes.isdisjoint(to.values()):
            return None
        return tuple(tuple(to[axis] for axis in held) for held in dims)

    def reducible(self, partial: tuple[Partial, ...]) -> list[Partial]:
        """The partial results that can be combined now, in axis order.

        Kinds do not commute, so these are the last ones that the goal does not keep, of one kind.
        """
        to_combine = [p for p in reversed(partial) if p not in self.goal[1]]
        return [*itertools.takewhile(lambda p: p.kind == to_combine[0].kind, to_combine)][::-1]


def _move(state: State, edge: _Edge) -> SpecMove:
    reduction = next((p.kind for p in state[1] if p not in edge.end[1]), None)
    return SpecMove(*edge[:4], reduction, Spec(*edge.end))


def _common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length
