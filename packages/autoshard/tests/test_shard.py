"""Whole shardings: checked by running them on numpy arrays, and by recomputing their prices."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from autoshard import (
    BaselineError,
    Graph,
    GraphBuilder,
    InfeasibleError,
    Operator,
    Output,
    Phase,
    Value,
    baseline,
    collectives,
    einsum,
    elementwise,
    labelled,
    shard,
)
from autoshard.programs import StepBuilder, gpt_step, mlp_step
from autoshard.space.baseline import BASELINES
from autoshard.testing import check_results, check_sharding
from costmodel import Cluster, Device, Link
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Layout, Mesh, reshard_whole_axes

FLAT = Mesh((4,), ("x",))
SQUARE = Mesh((2, 2), ("x", "y"), (0, 1, 4, 5))


def cluster(latency_s=1e-6, bandwidth=1e9, flops=1e10):
    device = Device("d", (("float32", flops), ("int64", flops)), 2**30, 1e10, 1e-6)
    link = Link(latency_s, bandwidth)
    return Cluster.uniform("c", 2, 4, device, link, Link(10 * latency_s, bandwidth / 10))


def einsum_locally(rule, operands, shape):
    """The contraction of a rule on shards; dims of size 1 that have no factor are dropped."""
    letters, views = [], []
    for dims, array in zip(rule.operands, operands, strict=True):
        kept = [d for d, dim in enumerate(dims) if dim]
        letters.append("".join(chr(97 + f) for d in kept for f in dims[d]))
        views.append(array.reshape([array.shape[d] for d in kept]))
    result = "".join(chr(97 + f) for dim in rule.results[0] for f in dim)
    return np.einsum(",".join(letters) + "->" + result, *views).reshape(shape)


def run_operator(operator, operands, shapes):
    """Run an operator of `StepBuilder` on a device's shards, in whole numbers."""
    rule = operator.rule
    match operator.kind:
        case "einsum":
            return einsum_locally(rule, operands, shapes[0])
        case "add" | "add_any":
            return operands[0] + operands[1]
        case "mul":
            return operands[0] * operands[1]
        case "sub":
            return operands[0] - operands[1]
        case "mul_const":
            return 3 * operands[0]
        case "accumulate":
            return operands[0]
        case "ones_like":
            return np.ones_like(operands[0])
        case "gelu" | "rsqrt":
            return operands[0] ** 2 % 7
        case "derivative":
            return operands[0] * (operands[1] % 5)
        case "reduce_sum":
            held = {f for dim in rule.results[0] for f in dim}
            gone = tuple(d for d, dim in enumerate(rule.operands[0]) if not held & set(dim))
            return operands[0].sum(axis=gone).reshape(shapes[0])
        case "reshape":
            return operands[0].reshape(shapes[0])
        case "broadcast":
            return np.broadcast_to(operands[0], shapes[0])
    raise NotImplementedError(operator.kind)


def check(sharding):
    """Check everything about a sharding: its results, its numbers, and its price."""
    check_results(sharding, lambda *operation: [run_operator(*operation)])
    check_sharding(sharding)
    assert sharding.objective_s <= sharding.solution.objective * (1 + 1e-9)


@settings(max_examples=settings().max_examples // 4)
@given(
    st.sampled_from([FLAT, SQUARE, Mesh((1, 2), ("x", "y"))]),
    st.sampled_from([1e-8, 1e-6, 1e-3]),
    st.sampled_from([1e7, 1e9]),
    st.sampled_from([4, 12, 64]),
    st.sampled_from([1, 3]),
)
def test_shardings_compute_what_the_program_does(mesh, latency_s, bandwidth, batch, microbatches):
    graph = mlp_step(batch=batch, width=8, hidden=16, microbatches=microbatches)
    check(shard(graph, mesh, cluster(latency_s, bandwidth), compare=False))


@st.composite
def programs(draw):
    """A forward program of random operators on matrices, with the gradients of its parameters."""
    p = StepBuilder(microbatches=draw(st.sampled_from([1, 2])))
    n = draw(st.sampled_from([2, 4, 6]))
    pool = [p.input("x", n, n), p.parameter("w0", n, n), p.parameter("w1", n, n)]
    pick = st.integers(0, 99)
    for _ in range(draw(st.integers(1, 5))):
        a, b = pool[draw(pick) % len(pool)], pool[draw(pick) % len(pool)]
        kind = draw(st.sampled_from(["einsum", "outer", "add", "mul", "gelu", "norm", "reshape"]))
        match kind:
            case "einsum":
                made = p.einsum("ik,kj->ij", a, b)
            case "outer":
                made = p.einsum("ki,kj->ij", a, b)
            case "add":
                made = p.add(a, b)
            case "mul":
                made = p.mul(a, b)
            case "gelu":
                made = p.unary("gelu", a)
            case "norm":
                made = p.add(a, p.reduce(b, 1))
            case _:
                made = p.add(a, p.reshape(p.reshape(b, n * n), n, n))
        pool.append(made)
    last = p.add(p.add(pool[-1], "w0"), "w1")
    return p.finish(p.reduce(p.reduce(last, 0), 1))


@settings(max_examples=settings().max_examples // 2)
@given(programs(), st.sampled_from([FLAT, SQUARE]), st.sampled_from([1e-9, 1e-6]))
def test_shardings_of_random_programs_are_right_and_no_worse_than_baselines(graph, mesh, latency_s):
    prices = cluster(latency_s, bandwidth=1e6, flops=1e7)
    sharding = shard(graph, mesh, prices)
    check(sharding)
    for name in BASELINES:
        try:
            other = baseline(graph, mesh, prices, name)
        except BaselineError:
            continue
        check(other)
        assert sharding.objective_s <= other.objective_s * (1 + 1e-9)


def forward_mlp(batch, width, hidden):
    rules = [
        einsum("bd,dh->bh", (batch, width), (width, hidden)),
        elementwise(((batch, hidden),), (batch, hidden)),
        einsum("bh,hd->bd", (batch, hidden), (hidden, width)),
    ]
    shapes = {"x": (batch, width), "w1": (width, hidden), "w2": (hidden, width)}
    shapes |= {"a": (batch, hidden), "g": (batch, hidden), "y": (batch, width)}
    roles = {"x": "batch", "w1": "parameter", "w2": "parameter"}
    flops = 2.0 * batch * width * hidden
    return Graph(
        (Phase("forward"),),
        tuple(Value(n, s, "float32", roles.get(n, "intermediate")) for n, s in shapes.items()),
        (
            Operator("up", "einsum", ("x", "w1"), ("a",), rules[0], flops),
            Operator("act", "gelu", ("a",), ("g",), rules[1], float(batch * hidden)),
            Operator("down", "einsum", ("g", "w2"), ("y",), rules[2], flops),
        ),
        ("x", "w1", "w2"),
        (Output("y", whole=True),),
    )


def test_an_mlp_that_must_be_split_is_megatrons_with_one_all_reduce():
    graph = forward_mlp(batch=1, width=256, hidden=1024)
    parameters = 2 * 256 * 1024 * 4
    prices = cluster()
    sharding = shard(graph, FLAT, prices, memory_bytes=parameters // 2)
    check(sharding)
    assert {name: str(s) for name, s in sharding.input_specs}["w1"] == "RS0"
    assert {name: str(s) for name, s in sharding.input_specs}["w2"] == "S0R"
    sent = collectives(graph, sharding)
    assert [(c.step.kind, c.value) for c in sent] == [("all_reduce", "y")]


def test_data_parallel_is_found_where_it_is_best():
    graph = mlp_step(batch=4096, width=64, hidden=64)
    prices = cluster()
    sharding = shard(graph, FLAT, prices)
    assert dict(sharding.input_specs)["x"].dims[0] == (0,)
    assert all(s.operand_specs[0].dims[0] == (0,) for s in sharding.strategies[:4])
    # only the loss and ZeRO's collectives: a parameter is gathered where it is computed or read
    sent = [(c.step.kind, c.value) for c in collectives(graph, sharding)]
    loss = [value for kind, value in sent if kind == "all_reduce"]
    assert len(loss) == 1
    assert math.prod(graph.value(loss[0]).shape) == 1
    assert sorted(kind for kind, _ in sent if kind != "all_reduce") == (
        ["all_gather"] * 2 + ["reduce_scatter"] * 2
    )


def two_products():
    """`dot(x, y) + dot(x, y)`, where only the contracted dim can be split."""
    n = 10**6
    dot = einsum("ik,kj->ij", (1, n), (n, 1))
    add = elementwise(((1, 1), (1, 1)), (1, 1), linear=((0, 1),))
    shapes = {"x": (1, n), "y": (n, 1), "a": (1, 1), "b": (1, 1), "c": (1, 1)}
    return Graph(
        (Phase("forward"),),
        tuple(Value(name, shape, "float32") for name, shape in shapes.items()),
        (
            Operator("d1", "einsum", ("x", "y"), ("a",), dot, 2.0 * n),
            Operator("d2", "einsum", ("x", "y"), ("b",), dot, 2.0 * n),
            Operator("sum", "add", ("a", "b"), ("c",), add, 1.0),
        ),
        ("x", "y"),
        (Output("c", whole=True),),
    )


def test_a_sum_of_two_partial_products_is_reduced_once():
    graph = two_products()
    prices = cluster()
    sharding = shard(graph, FLAT, prices)
    check(sharding)
    assert [(c.step.kind, c.value) for c in collectives(graph, sharding)] == [("all_reduce", "c")]


def shared(n_readers):
    """One product whose sum several nonlinear operators read."""
    p = StepBuilder()
    x, y = p.input("x", 1, 10**6), p.input("y", 10**6, 1)  # only the contracted dim can be split
    product = p.einsum("ik,kj->ij", x, y)
    for _ in range(n_readers):
        p.outputs.append(Output(p.unary("gelu", product), whole=True))
    return p.graph()


@pytest.mark.parametrize("n_readers", [1, 2, 4])
@pytest.mark.parametrize("mesh", [FLAT, SQUARE])
def test_a_conversion_that_readers_share_is_paid_once(n_readers, mesh):
    graph = shared(n_readers)
    prices = cluster()
    sharding = shard(graph, mesh, prices)
    check(sharding)
    assert len({(c.phase, c.value, c.dst) for c in sharding.conversions}) == len(
        sharding.conversions
    )
    reduced = [c for c in collectives(graph, sharding) if c.step.kind == "all_reduce"]
    assert {c.value for c in reduced} == {"einsum_0"}
    assert len(reduced) == len({c.step.axes for c in reduced})
    # the model's own price agrees: nothing is paid twice
    assert sharding.solution.objective == pytest.approx(sharding.objective_s)


def test_collectives_are_the_steps_of_the_conversions():
    graph = mlp_step(batch=16, width=8, hidden=16, microbatches=2)
    sharding = shard(graph, SQUARE, cluster(), compare=False)
    steps = []
    for c in sharding.conversions:
        shape = graph.value(c.value).shape
        plan = reshard_whole_axes(*(Layout(shape, SQUARE, spec) for spec in (c.src, c.dst)))
        steps += [(c.phase, c.value, step) for step in plan.steps if step.kind != "slice"]
    found = collectives(graph, sharding)
    assert [(c.phase, c.value, c.step) for c in found] == steps
    assert {c.repeats for c in found if c.phase == 2} <= {1}
    assert {c.repeats for c in found if c.phase < 2} <= {2}
    assert all(c.n_bytes == c.step.received_bytes(4) for c in found)


def test_gradients_are_reduced_once_a_step_not_once_a_microbatch():
    graph = mlp_step(batch=256, width=16, hidden=16, microbatches=8)
    sharding = baseline(graph, FLAT, cluster(), "data_parallel")
    reducing = [
        c for c in collectives(graph, sharding) if c.step.kind in ("all_reduce", "reduce_scatter")
    ]
    assert sum(c.repeats for c in reducing if c.phase == 2) == 2  # w1 and w2
    assert not any(c.phase == 1 for c in reducing)


def smallest_limit(graph, prices):
    with pytest.raises(InfeasibleError) as caught:
        shard(graph, FLAT, prices, memory_bytes=0, compare=False)
    return int(caught.value.smallest_usage)


def test_the_smallest_limit_that_an_error_names_would_do():
    graph = mlp_step(batch=16, width=32, hidden=64)
    smallest = smallest_limit(graph, cluster())
    assert (
        shard(graph, FLAT, cluster(), memory_bytes=smallest, compare=False).peak_bytes == smallest
    )
    with pytest.raises(InfeasibleError):
        shard(graph, FLAT, cluster(), memory_bytes=smallest - 1, compare=False)


@settings(max_examples=settings().max_examples // 25)
@given(st.integers(0, 10))
def test_the_memory_limit_is_kept(tenths):
    graph = mlp_step(batch=16, width=32, hidden=64)
    prices = cluster()
    free = shard(graph, FLAT, prices, compare=False)
    limit = int(free.peak_bytes * tenths / 10)
    smallest = smallest_limit(graph, prices)
    if limit < smallest:
        with pytest.raises(InfeasibleError, match=f"smallest peak found is {smallest} bytes"):
            shard(graph, FLAT, prices, memory_bytes=limit, compare=False)
        return
    sharding = shard(graph, FLAT, prices, memory_bytes=limit, compare=False)
    check(sharding)
    assert sharding.peak_bytes <= limit
    assert sharding.objective_s >= free.objective_s - 1e-12


def test_microbatches_in_flight_multiply_saved_activations_only():
    graph = mlp_step(batch=64, width=16, hidden=32, microbatches=4)
    one = baseline(graph, FLAT, cluster(), "data_parallel", in_flight=1)
    four = baseline(graph, FLAT, cluster(), "data_parallel", in_flight=4)
    assert one.activation_bytes == four.activation_bytes > 0
    stored = sum(
        Layout(graph.value(name).shape, FLAT, spec).local_bytes(4)
        for name, spec in one.input_specs
        if graph.value(name).role != "batch"
    )
    assert four.peak_bytes >= stored + 4 * four.activation_bytes
    assert four.peak_bytes <= one.peak_bytes + 4 * one.activation_bytes


def test_a_gpt_on_a_square_mesh_is_no_worse_than_baselines():
    graph = gpt_step(n_layers=1, batch=4, length=8, width=16, heads=2, vocabulary=32)
    prices = cluster()
    sharding = shard(graph, SQUARE, prices)
    check_sharding(sharding)
    for name in BASELINES:
        assert sharding.objective_s <= baseline(graph, SQUARE, prices, name).objective_s


def test_the_same_graph_has_the_same_sharding():
    graph = mlp_step(batch=16, width=8, hidden=16)
    first, again = (shard(graph, SQUARE, cluster(), compare=False) for _ in range(2))
    fields = ("input_specs", "strategies", "conversions", "output_specs", "objective_s")
    assert [getattr(first, f) for f in fields] == [getattr(again, f) for f in fields]


@pytest.mark.parametrize(
    "ids", list(itertools.islice(itertools.permutations((0, 1, 2, 3)), 0, 24, 7))
)
def test_which_devices_of_a_host_does_not_matter(ids):
    graph = mlp_step(batch=16, width=8, hidden=16)
    here = shard(graph, replace(FLAT, device_ids=ids), cluster(), compare=False)
    assert here.objective_s == shard(graph, FLAT, cluster(), compare=False).objective_s


def test_constants_are_never_sent():
    """Every device computes the part of a mask that it needs, whatever that costs."""
    wide = (64, 64)
    mask = Operator("mask", "iota", (), ("mask",), labelled("->ij", (), (wide,)), 2.0**22)
    inputs = (Value("x", wide, "float32", "batch"), Value("w", wide, "float32", "parameter"))
    left = Operator("y", "einsum", ("x", "mask"), ("y",), einsum("ij,jk->ik", wide, wide), 2.0**19)
    right = Operator("z", "einsum", ("mask", "w"), ("z",), einsum("ij,jk->ik", wide, wide), 2.0**19)
    made = tuple(Value(name, wide, "float32") for name in ("mask", "y", "z"))
    graph = Graph(
        (Phase("run"),),
        (*inputs, *made),
        (mask, left, right),
        ("x", "w"),
        (Output("y"), Output("z")),
    )
    found = shard(graph, SQUARE, cluster(flops=1e7))  # slow, so that splitting the mask would pay
    assert "mask" not in {collective.value for collective in collectives(graph, found)}


def test_every_conversion_is_one_step_made_once():
    for mesh in (FLAT, SQUARE):
        program = mlp_step(batch=8, width=16, hidden=32, microbatches=2)
        found = shard(program, mesh, cluster(), compare=False)
        made = [(c.phase, c.value, c.dst) for c in found.conversions]
        assert len(set(made)) == len(made)
        for conversion in found.conversions:
            shape = program.value(conversion.value).shape
            layouts = (Layout(shape, mesh, spec) for spec in (conversion.src, conversion.dst))
            assert len(reshard_whole_axes(*layouts).steps) == 1


@pytest.mark.parametrize("shape", [(0, 4, 4), (4, 0, 4), (4, 4, 0), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("options", [{}, {"uneven": True}, {"strided": True}])
def test_a_dim_may_be_empty(shape, options):
    rows, inner, columns = shape
    graph = GraphBuilder()
    x, w = graph.input("x", rows, inner), graph.parameter("w", inner, columns)
    graph.output(graph.apply("gelu", graph.dot(x, w)), whole=True)
    found = shard(graph.build(), SQUARE, cluster(), **options)
    check_sharding(found)
    assert found.objective_s == pytest.approx(found.lower_bound_s)


def test_baselines_are_compared_with_what_takes_no_time():
    graph = Graph(
        (Phase("step"),),
        (Value("x", (4,), "float32", "batch"),),
        (),
        ("x",),
        (Output("x", whole=True),),
    )
    found = shard(graph, FLAT, cluster())
    assert found.objective_s == 0.0
    reasons = {other.name: other.reason for other in found.alternatives}
    assert reasons["zero"].endswith(" us slower")
    assert reasons["zero"] in str(found)


@pytest.mark.parametrize("mesh", [Mesh((1,), ("x",)), Mesh((1, 1), ("x", "y")), Mesh((), ())])
def test_one_device_sends_nothing(mesh):
    graph = mlp_step(batch=4, width=8, hidden=16)
    found = shard(graph, mesh, cluster())
    assert found.conversions == ()
    assert found.objective_s == pytest.approx(found.lower_bound_s)
    assert found.objective_s == pytest.approx(sum(found.compute_s))
