"""Random plans, to test that any plan a planner may choose runs correctly, prints and draws.

`random_plan` makes plans of a step that can run; `plans` is a Hypothesis strategy of plans with any
names and numbers, which need not be able to run. `rearrangements` are losses whose examples move
from dim to dim.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import autoshard
import pipesched
import shardspec
from autoshard import Graph, Operator, Strategy
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec
from shardspec.testing import meshes, specs

from frontends.answer.plan import Plan
from frontends.layers.layers import LayeredStep
from frontends.layers.replicas import with_copies
from frontends.plan.plan_fields import (
    Alternative,
    Collective,
    Conversion,
    ShardedOperator,
    Stage,
    Stored,
    Transfer,
)

_NAMES = ("params['blocks'][0]['up']", "params['head']", "opt_state[0].count", "batch[0]", "add.7")
_KINDS = ("all_gather", "all_to_all", "reduce_scatter", "all_reduce", "collective_permute")
_SECONDS = st.floats(0, 1e4)
_BYTES = st.integers(0, 1 << 45)
_ASCII = st.characters(min_codepoint=32, max_codepoint=126)
_TEXTS = st.sampled_from(("sort", "[red]many[/red]", "a<b>&'\"c")) | st.text(_ASCII, max_size=9)


@st.composite
def plans(draw: st.DrawFn, max_stages: int = 3) -> Plan:
    """Plans as data, of at most `max_stages`: of no step, but they print, draw and compare."""
    planned = tuple(draw(_stages(i)) for i in range(draw(st.integers(1, max_stages))))
    index = st.integers(0, len(planned) - 1)
    transfer = st.builds(
        Transfer,
        value=st.sampled_from(_NAMES),
        phase=st.sampled_from(("state", "forward", "backward", "apply")),
        source=index,
        destination=index,
        src_spec=st.just(Spec.parse("S0RR")),
        dst_spec=st.just(Spec.parse("RS01R")),
        n_bytes=_BYTES,
        time_s=_SECONDS,
    )
    other = st.builds(
        Alternative, _TEXTS, st.none() | _SECONDS, st.none() | st.integers(0, 1 << 45), _TEXTS
    )
    limits = draw(st.just(()) | st.tuples(*[_BYTES] * len(planned)))
    return Plan(
        step="fingerprint",
        cluster=draw(_TEXTS),
        memory_limit_bytes=max(limits) if limits else draw(_BYTES),
        memory_limits=limits,
        microbatches=draw(st.integers(1, 64)),
        schedule=draw(st.sampled_from(("1f1b", "gpipe", "eager-1f1b"))),
        stages=planned,
        transfers=tuple(draw(st.lists(transfer, max_size=9))),
        step_s=draw(_SECONDS),
        lower_bound_s=draw(_SECONDS),
        unsharded=tuple(draw(st.lists(_TEXTS, max_size=2, unique=True))),
        alternatives=tuple(draw(st.lists(other, max_size=3))),
    )


@st.composite
def _stages(draw: st.DrawFn, layer: int) -> Stage:
    mesh = draw(meshes(max_ndim=2))
    axes = st.sets(st.integers(0, mesh.ndim - 1), min_size=1).map(lambda s: tuple(sorted(s)))
    spec = st.integers(0, 3).flatmap(lambda rank: specs(mesh, rank))
    some = st.lists(spec, max_size=2).map(tuple)
    placement = st.builds(ShardedOperator, _TEXTS, st.integers(0, 2), some, some)
    collective = st.builds(
        Collective,
        phase=st.integers(0, 2),
        value=st.sampled_from(_NAMES),
        kind=st.sampled_from(_KINDS),
        axes=axes,
        group_size=st.just(2),
        n_bytes=_BYTES,
        sent_bytes=_BYTES,
        repeats=st.integers(1, 64),
        time_s=_SECONDS,
    )
    return Stage(
        first_layer=layer,
        last_layer=layer + draw(st.integers(0, 3)),
        mesh=mesh,
        inputs=tuple(Stored(name, draw(spec)) for name in _NAMES),
        outputs=(),
        placements=tuple(draw(st.lists(placement, max_size=5))),
        conversions=(),
        collectives=tuple(draw(st.lists(collective, max_size=4))),
        forward_s=draw(_SECONDS),
        backward_s=draw(_SECONDS),
        apply_s=draw(_SECONDS),
        memory_bytes=draw(_BYTES),
    )


def random_plan(
    layered: LayeredStep, meshes: Sequence[Mesh], rng: random.Random, schedule: str = "1f1b"
) -> Plan:
    """A plan that can run, with random choices and without prices.

    Args:
        layered: The step; it needs at least one layer for each stage.
        meshes: One mesh for each stage. Replicas of stages are on them in the opposite order.
        rng: Chooses where layers are cut, and the layouts of all values that are stored, computed
            and sent.
        schedule: Name of a pipesched schedule, or its text.

    Returns:
        The plan; if the schedule has replicas of stages, it is for `with_copies` of the step.
    """
    size, n_stages = layered.n_layers, len(meshes)
    cuts = sorted(rng.sample(range(1, size), n_stages - 1))
    spans = [*zip([0, *cuts], [*cuts, size], strict=True)]
    is_known = pipesched.is_schedule(schedule)
    n_copies = pipesched.schedule_entry(schedule).copies_of_stages if is_known else 1
    copied = with_copies(layered, n_copies).layered
    stages = tuple(
        _random_stage(copied.stage(begin + first, begin + end - 1), first, end - 1, mesh, rng)
        for begin in range(0, copied.n_layers, size)
        for (first, end), mesh in zip(spans, meshes[:: 1 if begin == 0 else -1], strict=True)
    )
    return Plan(
        step=layered.step.fingerprint,
        cluster="none",
        memory_limit_bytes=0,
        microbatches=layered.step.microbatches,
        schedule=schedule,
        stages=stages,
        transfers=_transfers(copied, stages, size),
        step_s=0.0,
        lower_bound_s=0.0,
        unsharded=(),
        alternatives=(),
    )


def _random_stage(graph: Graph, first: int, last: int, mesh: Mesh, rng: random.Random) -> Stage:
    home: dict[str, Spec] = {}
    for name in graph.inputs:
        home[name] = rng.choice(autoshard.stored_specs(graph.value(name).shape, mesh.shape))
    conversions: dict[tuple[int, str, Spec], Conversion] = {}

    def reachable(name: str, spec: Spec) -> bool:
        shape = graph.value(name).shape
        return _is_reachable(Layout(shape, mesh, home[name]), Layout(shape, mesh, spec))

    def need(phase: int, name: str, spec: Spec) -> None:
        if spec != home[name]:
            conversions[phase, name, spec] = Conversion(phase, name, home[name], spec)

    placements = []
    for op in graph.operators:
        possible = [
            strategy
            for strategy in autoshard.enumerate_strategies(op.rule, mesh.shape)
            if all(map(reachable, op.inputs, strategy.operand_specs))
        ]
        if rng.random() < 0.8:  # mostly few conversions, as each one has to be compiled
            counts = [_conversions(op, strategy, home) for strategy in possible]
            possible = [s for s, n in zip(possible, counts, strict=True) if n == min(counts)]
        chosen = rng.choice(possible)
        for name, spec in zip(op.inputs, chosen.operand_specs, strict=True):
            need(op.phase, name, spec)
        home.update(zip(op.outputs, chosen.result_specs, strict=True))
        placements.append(
            ShardedOperator(op.name, op.phase, chosen.operand_specs, chosen.result_specs)
        )
    outputs = []
    for output in graph.outputs:
        shape = graph.value(output.value).shape
        if output.alias is not None:
            spec = home[output.alias]
        elif output.whole:
            spec = Spec.replicated(len(shape))
        else:
            spec = rng.choice(autoshard.stored_specs(shape, mesh.shape))
        need(graph.phase_of_output(output), output.value, spec)
        outputs.append(Stored(output.value, spec))
    return Stage(
        first_layer=first,
        last_layer=last,
        mesh=mesh,
        inputs=tuple(Stored(name, home[name]) for name in graph.inputs),
        outputs=tuple(outputs),
        placements=tuple(placements),
        conversions=tuple(conversions.values()),
        collectives=(),
        forward_s=0.0,
        backward_s=0.0,
        apply_s=0.0,
        memory_bytes=0,
    )


@cache
def _is_reachable(src: Layout, dst: Layout) -> bool:
    try:
        shardspec.reshard_whole_axes(src, dst)
    except shardspec.ReshardError:
        return False
    return True


def _conversions(op: Operator, strategy: Strategy, home: Mapping[str, Spec]) -> int:
    return sum(home[n] != s for n, s in zip(op.inputs, strategy.operand_specs, strict=True))


def _transfers(layered: LayeredStep, stages: Sequence[Stage], size: int) -> tuple[Transfer, ...]:
    begins = [stage.first_layer == 0 for stage in stages]
    before = [size * (sum(begins[: index + 1]) - 1) for index in range(len(stages))]
    spans = [(s.first_layer + n, s.last_layer + n) for s, n in zip(stages, before, strict=True)]
    return tuple(
        Transfer(
            name,
            phase,
            source,
            to,
            stages[source].leaving(name, phase),
            stages[to].entering(name),
            n_bytes=0,
            time_s=0.0,
        )
        for name, phase, source, to in layered.exchanges(spans)
    )


Rearrangement = tuple[tuple[str, int], ...]
"""What happens to an array, one after the other: a name in `rearranged`, and a dim."""

_SIZES = {"examples": 4, "tokens": 3, "numbers": 4, "copies": 2}


@st.composite
def rearrangements(draw: st.DrawFn, max_moves: int = 8) -> Rearrangement:
    """What can happen to an array of shape (4 examples, 3 tokens, 4 numbers) without mixing them.

    Its dims are transposed, made flat, taken apart, concatenated and halved, so that most of these
    arrays interleave the examples.
    """
    dims = [["examples"], ["tokens"]]  # the numbers are a dim of their own, which stays the last
    moves: list[tuple[str, int]] = []
    for _ in range(draw(st.integers(1, max_moves))):
        d = draw(st.integers(0, len(dims) - 1))
        possible = ["product", "tanh", "norm", "dropout"]
        if not any("copies" in dim for dim in dims):
            possible += ["double", "tile"]
        if len(dims) > 1 and d + 1 < len(dims):
            possible += ["merge", "swap"]
        if len(dims) > 1 and "examples" not in dims[d]:
            possible += ["sum"]
        if len(dims[d]) > 1:
            possible += ["part"] + ["halve"] * 2 * (dims[d][0] == "copies")
        move = draw(st.sampled_from(possible))
        moves.append((move, d))
        if move in ("double", "tile"):
            dims[d] = ["copies", *dims[d]]
        elif move == "halve":
            dims[d] = dims[d][1:]
        elif move == "merge":
            dims[d : d + 2] = [dims[d] + dims[d + 1]]
        elif move == "swap":
            dims[d : d + 2] = dims[d + 1], dims[d]
        elif move == "sum":
            del dims[d]
        elif move == "part":
            moves[-1] = (f"part {_SIZES[dims[d][0]]}", d)
            dims[d : d + 1] = [dims[d][:1], dims[d][1:]]
    return tuple(moves)


def rearranged(
    moves: Rearrangement, x: Any, w: Any, library: Any, keep: Callable[[tuple[int, ...]], Any]
) -> Any:
    """Let moves happen to an array of JAX or a tensor of PyTorch.

    Args:
        moves: What happens to it.
        x: The array, of shape (4, 3, 4), or with other multiples of examples.
        w: Weights, of shape (4, 4).
        library: `jax.numpy` or `torch`.
        keep: Draws the mask of a dropout, given its shape.
    """
    for move, d in moves:
        shape = tuple(x.shape)
        if move == "product":
            x = x @ w
        elif move == "tanh":
            x = library.tanh(x)
        elif move == "norm":
            x = (x - x.mean(-1)[..., None]) * 1.5
        elif move == "dropout":
            x = library.where(keep(shape), x, 0.5 * x)
        elif move == "double":
            x = library.concatenate([x, library.sin(x)], d)
        elif move == "tile":
            x = library.tile(x, (*[1] * d, 2, *[1] * (len(shape) - d - 1)))
        elif move == "halve":
            n, before = shape[d] // 2, (slice(None),) * d
            x = x[(*before, slice(0, n))] - 0.5 * x[(*before, slice(n, None))]
        elif move == "merge":
            x = x.reshape(*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
        elif move == "swap":
            x = x.swapaxes(d, d + 1)
        elif move == "sum":
            x = x.sum(d)
        else:
            n = int(move.removeprefix("part "))
            x = x.reshape(*shape[:d], n, shape[d] // n, *shape[d + 1 :])
    return x


Routing = tuple[tuple[str, int, int], ...]
"""What happens to rows, one after the other: a name in `routed`, rows, and other rows or places."""

_MIXING = (
    "center",
    "total",
    "flip",
    "keep some",
    "scale",
    "take any",
    "product by others",
    "halve",
    "take next",
    "scale in turn",
    "numbers",
)


@st.composite
def routings(draw: st.DrawFn, max_moves: int = 10) -> Routing:
    """What can happen to rows that are sorted by expert; half of these mix rows of examples."""
    rows = ["batch"]  # the order of each
    places = [("sorted 0", "batch")]  # their own order, and the one in which they are numbered
    moves: list[tuple[str, int, int]] = []

    def move(name: str, i: int, j: int, made: list[Any], value: Any) -> None:
        moves.append((name, i, j))
        made.append(value)

    mixes_at = draw(st.integers(0, 2 * max_moves))
    for k in range(draw(st.integers(1, max_moves))):
        i, j = draw(st.integers(0, len(rows) - 1)), draw(st.integers(0, len(places) - 1))
        order, (own, numbered) = rows[i], places[j]
        if k == mixes_at:
            name = draw(st.sampled_from(_MIXING))
            in_order = [n for n, orders in enumerate(places) if order == orders["take" in name]]
            j = draw(st.sampled_from(in_order)) if in_order else j
            move(name, i, j, rows, own if name == "numbers" else "mixed")
            continue
        possible = ["tanh", "weights", "inverse"]
        possible += ["take"] * 3 * (order == numbered) + ["add", "put"] * 2 * (order == own)
        possible += ["product"] * 3 * order.startswith("sorted") + ["sort"] * (numbered == "batch")
        possible += ["take next"] * (order == numbered == "batch")
        possible += ["scale in turn"] * (order == own and numbered == "batch")
        pairs = [n for n, other in enumerate(rows) if other == order]
        possible += ["times", "plus"] * (len(pairs) > 1)
        name = draw(st.sampled_from(possible))
        if name == "inverse":
            move(name, i, j, places, (numbered, own))
        elif name == "sort":
            move(name, i, j, places, (f"sorted {k + 1}", own))
        elif name in ("times", "plus"):
            move(name, i, draw(st.sampled_from(pairs)), rows, order)
        else:
            after = {"take": own, "take next": own, "add": numbered, "put": numbered}.get(
                name, order
            )
            move(name, i, j, rows, after)
    return tuple(moves)


class RowLibrary(Protocol):
    """What `routed` needs of JAX or of PyTorch; `rows` and `places` are of the same length."""

    def argsort(self, keys: Any) -> Any:
        """Return the places of keys in ascending order."""

    def arange(self, n: int) -> Any:
        """Return the numbers from 0."""

    def widened(self, places: Any, width: int) -> Any:
        """Return places in as many columns."""

    def add(self, rows: Any, places: Any) -> Any:
        """Return zeros to which rows are added at places."""

    def put(self, rows: Any, places: Any) -> Any:
        """Return rows at places."""

    def product(self, rows: Any, experts: Any, keys: Any) -> Any:
        """Multiply groups of rows with their matrix; groups have the sizes of the keys' groups."""


def routed(moves: Routing, x: Any, experts: Any, keys: Any, library: RowLibrary) -> tuple[Any, ...]:
    """Let moves happen to rows of JAX or PyTorch; return the last of these.

    Args:
        moves: What happens.
        x: The rows, of shape (n, k).
        experts: A matrix for each expert, of shape (experts, k, k).
        keys: The expert of each row, of shape (n,).
        library: The library.
    """
    rows, places = [x], [library.argsort(keys)]
    for move, i, j in moves:
        if move == "inverse":
            places.append(library.argsort(places[j]))
        elif move == "sort":
            places.append(library.argsort(keys[places[j]]))
        else:
            other = rows[j] if move in ("times", "plus") else None
            rows.append(
                _routed(move, rows[i], other, places[j % len(places)], experts, keys, library)
            )
    return tuple(rows[-3:])


def _routed(
    move: str, row: Any, other: Any, place: Any, experts: Any, keys: Any, library: RowLibrary
) -> Any:
    n = len(row)
    k = n // _SIZES["examples"]
    results: dict[str, Callable[[], Any]] = {
        "take": lambda: row[place],
        "take any": lambda: row[(place + 1) % n],
        "take next": lambda: row[place // k * k + (place + 1) % k],
        "scale": lambda: row * (place[:, None] + 1) / n,
        "scale in turn": lambda: row * (place[:, None] % k + 1) / k,
        "halve": lambda: row[place // 2],
        "numbers": lambda: library.widened(place, row.shape[1]) / n,
        "add": lambda: library.add(row, place),
        "put": lambda: library.put(row, place),
        "product": lambda: library.product(row, experts, keys),
        "product by others": lambda: library.product(row, experts, keys[place]),
        "tanh": lambda: row / (1 + row * row),
        "times": lambda: row * other,
        "plus": lambda: row + other,
        "weights": lambda: row @ experts[0],
        "center": lambda: row - row.mean(0),
        "total": lambda: row.cumsum(0) / n,
        "flip": lambda: row[n - 1 - library.arange(n)],
        "keep some": lambda: row * (library.arange(n)[:, None] < n // 2),
    }
    return results[move]()
