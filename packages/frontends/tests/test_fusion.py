from autoshard import Graph, Operator, Output, Phase, Value, elementwise
from frontends.jax.testing import adamw
from frontends.layers.layers import layer
from frontends.step.fusion import fused_in_apply, is_elementwise
from frontends.step.step import APPLY


def chain(phase: int) -> Graph:
    """`d = (a + a) * a`, element by element."""
    values = [Value("a", (4,), "float32", "parameter")]
    values += [Value(name, (4,), "float32") for name in "bd"]
    rule = elementwise(((4,), (4,)), (4,), ((0,), (1,)))
    operators = (
        Operator("add", "add", ("a", "a"), ("b",), rule, 4.0, phase),
        Operator("mul", "mul", ("b", "a"), ("d",), rule, 4.0, phase),
    )
    phases = tuple(Phase(name, 1) for name in ("forward", "backward", "apply"))
    return Graph(phases, tuple(values), operators, ("a",), (Output("d", alias="a"),))


def test_a_link_of_a_chain_in_apply_is_fused() -> None:
    assert fused_in_apply(chain(APPLY), ()) == {"b"}


def test_what_is_converted_or_leaves_or_is_not_of_apply_is_laid_out() -> None:
    assert fused_in_apply(chain(APPLY), ("b",)) == frozenset()
    assert fused_in_apply(chain(0), ()) == frozenset()


def test_an_optimizer_is_one_chain_for_each_parameter() -> None:
    graph = layer(adamw().trace().step, 4).step.graph
    fused = fused_in_apply(graph, ())
    for op in graph.operators:
        if op.phase == APPLY and graph.value(op.outputs[0]).shape:
            assert is_elementwise(op)
            is_result = any(output.value == op.outputs[0] for output in graph.outputs)
            assert (op.outputs[0] in fused) == (not is_result)


def test_sums_and_products_of_matrices_are_no_loops_over_elements() -> None:
    graph = adamw().trace().step.graph
    kinds = {op.kind for op in graph.operators if not is_elementwise(op)}
    assert {"dot_general", "reduce_sum", "transpose"} <= kinds
    assert not kinds & {"mul", "tanh", "sub"}
