"""The kernels of a step can run one after another, and move no more than single operators do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from autoshard import Accesses, Graph, Operator, Output, Phase, Rule, Value, elementwise
from frontends.jax.rules.xla import XLA
from frontends.jax.testing import Example, adamw, clipped, small_gpt, steps, tied
from frontends.jax.trace.trace import trace
from frontends.layers.collapse import without_repeats
from frontends.layers.layers import layer
from frontends.step.kernels import KernelMaker, Kernels, with_kernels
from hypothesis import given

ALONE = KernelMaker("one by one", views=frozenset())


def judge(graph: Graph, maker: KernelMaker) -> None:
    """Assert that the kernels compute every value before it is read, by running them in order."""
    kernels = Kernels(graph, maker)
    in_memory = set(graph.inputs)
    inside: dict[int, list[int]] = {}
    for index, of in enumerate(kernels.of):
        assert of or kernels.classes[index] == "view"
        for kernel in of:
            inside.setdefault(kernel, []).append(index)
    for kernel in sorted(inside):
        on_chip: set[str] = set()
        assert inside[kernel][-1] == kernel, "a kernel ends with the operator that it is called by"
        for index in inside[kernel]:
            op = graph.operators[index]
            assert {kernels.source(name) for name in op.inputs} <= in_memory | on_chip
            assert op.phase == graph.operators[kernel].phase
            on_chip.update(op.outputs)
        for index in inside[kernel]:
            if kernels.written[index]:
                in_memory.update(graph.operators[index].outputs)
    assert {kernels.source(output.value) for output in graph.outputs} <= in_memory


def moved(graph: Graph) -> float:
    """The bytes that a graph's operators read and write in one run of each."""
    total = 0.0
    for op in graph.operators:
        names = (*op.inputs, *op.outputs)
        accesses = op.accesses or Accesses((1.0,) * len(names))
        sizes = (graph.value(name).n_bytes for name in names)
        total += sum(n * times for n, times in zip(sizes, accesses.times, strict=True))
    return total


def launches(graph: Graph) -> float:
    return sum(op.accesses.launches for op in graph.operators if op.accesses is not None)


@given(steps(max_operations=8))
def test_kernels_of_random_steps_can_run(drawn: tuple[Any, tuple[Any, Any]]) -> None:
    step, arguments = drawn
    graph = trace(step, arguments, batch_argnums=(1,), microbatches=1).step.graph
    judge(graph, XLA)
    fused = with_kernels(graph, XLA)
    assert moved(fused) <= moved(graph)
    assert launches(fused) <= len(graph.operators)


@pytest.mark.parametrize("example", [adamw, clipped, tied, small_gpt])
def test_kernels_of_examples_can_run_and_move_less(example: Callable[[], Example]) -> None:
    graph = example().trace().step.graph
    judge(graph, XLA)
    assert moved(with_kernels(graph, XLA)) < 0.8 * moved(graph)


def test_operators_one_by_one_have_the_accesses_of_none() -> None:
    graph = small_gpt().trace().step.graph
    judge(graph, ALONE)
    for op in with_kernels(graph, ALONE).operators:
        names = dict.fromkeys(op.inputs)  # an operand that is given twice is read once
        assert op.accesses is not None
        assert op.accesses.launches == 1.0
        assert sum(op.accesses.times) == len(names) + len(op.outputs)


def graph_of(*lines: tuple[str, str, tuple[str, ...], tuple[int, ...]], left: str) -> Graph:
    """A graph of one phase: for each operator, kind, result, operands, and the result's shape."""
    values = {"x": Value("x", (4, 8), "float32", "batch")}
    operators = []
    for kind, name, operands, shape in lines:
        shapes = [values[operand].shape for operand in operands]
        values[name] = Value(name, shape, "float32")
        if kind == "reduce_sum":
            rule = Rule.parse("(a,b)->(a) {a=4, b=8 sum} linear {0}")
        elif kind == "broadcast_in_dim":
            rule = Rule.parse("(a)->(a,b) {a=4, b=8}")
        else:
            rule = elementwise(shapes, shape, ())
        operators.append(Operator(name, kind, operands, (name,), rule))
    return Graph(
        (Phase("forward"),), tuple(values.values()), tuple(operators), ("x",), (Output(left),)
    )


def test_a_chain_of_loops_is_one_kernel() -> None:
    whole = (4, 8)
    graph = graph_of(
        ("exp", "a", ("x",), whole),
        ("mul", "b", ("a", "x"), whole),
        ("neg", "c", ("b",), whole),
        left="c",
    )
    judge(graph, XLA)
    accesses = [op.accesses for op in with_kernels(graph, XLA).operators]
    assert accesses == [
        Accesses((1.0, 0.0), 0.0),
        Accesses((0.0, 0.0, 0.0), 0.0),  # x was read already
        Accesses((0.0, 1.0), 1.0),
    ]


def test_the_sum_of_a_softmax_is_computed_where_it_divides() -> None:
    """Rows are on the chip, so the exponentials are read by nobody else."""
    whole = (4, 8)
    graph = graph_of(
        ("exp", "a", ("x",), whole),
        ("reduce_sum", "s", ("a",), (4,)),
        ("broadcast_in_dim", "t", ("s",), whole),
        ("div", "y", ("a", "t"), whole),
        left="y",
    )
    judge(graph, XLA)
    assert moved(with_kernels(graph, XLA)) == 2 * 4 * 8 * 4
    assert launches(with_kernels(graph, XLA)) == 1


def test_a_reduction_of_a_number_in_the_program_is_a_kernel() -> None:
    values = (Value("x", (4,), "float32", "batch"), Value("s", (), "float32"))
    rules = Rule.parse("()->() {}"), elementwise(((4,), ()), (4,), ())
    operators = (
        Operator("s", "reduce_sum", (), ("s",), Rule(rules[0].factors, (), ((),))),
        Operator("y", "add", ("x", "s"), ("y",), rules[1]),
    )
    values = (*values, Value("y", (4,), "float32"))
    graph = Graph((Phase("forward"),), values, operators, ("x",), (Output("y"),))
    judge(graph, XLA)
    assert launches(with_kernels(graph, XLA)) == 2


@pytest.mark.parametrize("sums", [1, 2, 3])
def test_blocks_with_residuals_have_equal_kernels(sums: int) -> None:
    """A sum is not computed again for all sums that come after it, so that layers repeat."""

    def step(params: list[list[jax.Array]], x: jax.Array) -> tuple[Any, jax.Array]:
        def loss_of(params: list[list[jax.Array]]) -> jax.Array:
            h = x
            for block in params:
                for weights in block:
                    centred = h - jnp.mean(h, axis=-1, keepdims=True)
                    scale = jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
                    h = h + jax.nn.gelu((centred * scale) @ weights)
            return jnp.mean(h**2)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    params = [[jnp.ones((32, 32))] * sums] * 16
    traced = trace(step, (params, jnp.ones((64, 32))), batch_argnums=(1,), microbatches=1).step
    layered = layer(replace(traced, graph=with_kernels(traced.graph, XLA)))
    assert layered.n_layers >= 16
    assert without_repeats(layered).short.n_layers <= 7


def test_what_several_kernels_read_is_written_by_the_first() -> None:
    whole = (4, 8)
    graph = graph_of(
        ("neg", "half", ("x",), whole),
        ("add", "sum", ("x", "half"), whole),  # two operands: no less traffic in each kernel
        ("exp", "a", ("sum",), whole),
        ("sin", "b", ("sum",), whole),
        ("dot_general", "y", ("a", "b"), whole),
        left="y",
    )
    judge(graph, XLA)
    kernels = Kernels(graph, XLA)
    assert kernels.of[:4] == [{2}, {2}, {2}, {3}]
    assert kernels.written[:4] == [False, True, True, True]


def test_a_result_that_a_product_reads_is_written_once() -> None:
    graph = graph_of(
        ("exp", "a", ("x",), (4, 8)),
        ("dot_general", "b", ("a", "a"), (4, 8)),
        left="b",
    )
    judge(graph, XLA)
    assert launches(with_kernels(graph, XLA)) == 2


def test_a_sum_over_microbatches_is_read_and_written_too() -> None:
    graph = small_gpt().trace(2).step.graph
    summed = next(op.outputs[0] for op in graph.operators if op.phase == 1)
    times = {
        op.outputs[0]: op.accesses.times[-1]
        for op in with_kernels(graph, XLA, (summed,)).operators
        if op.accesses is not None
    }
    without = {
        op.outputs[0]: op.accesses.times[-1]
        for op in with_kernels(graph, XLA).operators
        if op.accesses is not None
    }
    assert {name for name in times if times[name] != without[name]} == {summed}
    assert times[summed] == without[summed] + 2.0
