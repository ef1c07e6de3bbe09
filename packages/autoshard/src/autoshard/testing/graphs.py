"""Hypothesis strategies for small graphs, which are well-formed by construction."""

from __future__ import annotations

from hypothesis import strategies as st

from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Role
from autoshard.rules.builder import GraphBuilder

_SIZES = st.sampled_from([1, 2, 3, 4, 6, 8])
_NAMES = st.text(max_size=6)
"""The name of a value may be any text."""


@st.composite
def graphs(
    draw: st.DrawFn, *, max_operators: int = 6, strange_names: bool = False, updates: bool = True
) -> Graph:
    """Programs of elementwise operators, products, reductions and movement in up to two phases.

    Args:
        draw: Supplied by Hypothesis.
        max_operators: At least 1.
        strange_names: Whether names of values and phases may be any text.
        updates: Whether a second phase may store a value back into an input.
    """
    graph = GraphBuilder(dtype=draw(st.sampled_from(["float32", "bfloat16"])))
    used: set[str] = set()

    def name(default: str) -> str:
        chosen = default
        if strange_names:
            chosen = draw(_NAMES.filter(lambda text: text not in used))
        used.add(chosen)
        return chosen

    graph.phase(name("forward"), draw(st.sampled_from([1, 1, 2, 4])))
    values = []
    for index in range(draw(st.integers(1, 3))):
        shape = draw(st.lists(_SIZES, max_size=3))
        role: Role = draw(st.sampled_from(["batch", "parameter", "other"]))
        values.append(graph.input(name(f"x{index}"), *shape, role=role))
    for index in range(draw(st.integers(1, max_operators))):
        values.append(_operator(draw, graph, values, name(f"v{index}")))
    results = [value for value in values if value not in graph.inputs]
    parameters = [value for value in graph.inputs if len(graph.shape(value)) > 0]
    if updates and parameters and draw(st.booleans()):
        graph.phase(name("apply"))
        parameter = draw(st.sampled_from(parameters))
        new = graph.apply("adam", parameter, parameter, name=name("new"))
        graph.output(new, alias=parameter)
    for value in draw(st.lists(st.sampled_from(results), min_size=1, max_size=2, unique=True)):
        graph.output(value, whole=draw(st.booleans()))
    return graph.build()


def _operator(draw: st.DrawFn, graph: GraphBuilder, values: list[str], name: str) -> str:
    x = draw(st.sampled_from(values))
    shape = graph.shape(x)
    matrices = [value for value in values if len(graph.shape(value)) == 2]
    products = [
        (a, b) for a in matrices for b in matrices if graph.shape(a)[1] == graph.shape(b)[0]
    ]
    like = [value for value in values if graph.shape(value) == shape]
    kinds = ["unary", "binary", "reshape"]
    kinds += ["reduce", "reduce", "transpose", "whole"] if shape else []
    kinds += ["dot"] * 3 if products else []
    match draw(st.sampled_from(kinds)):
        case "unary":
            return graph.apply(draw(st.sampled_from(["tanh", "neg", "exp"])), x, name=name)
        case "binary":
            kind = draw(st.sampled_from(["add", "mul", "max"]))
            return graph.apply(kind, x, draw(st.sampled_from(like)), name=name)
        case "reshape":
            merged = (shape[0] * shape[1], *shape[2:]) if len(shape) > 1 else (1, *shape)
            return graph.reshape(x, *merged, name=name)
        case "reduce":
            kind = draw(st.sampled_from(["reduce_sum", "reduce_max"]))
            dim = draw(st.integers(0, len(shape) - 1))
            return graph.apply(
                kind, x, shape=shape[:dim] + shape[dim + 1 :], name=name, dims=(dim,)
            )
        case "transpose":
            order = draw(st.permutations(range(len(shape))))
            return graph.transpose(x, *order, name=name)
        case "whole":
            return graph.apply("no kind of the table", x, name=name)
        case _:
            return graph.dot(*draw(st.sampled_from(products)), name=name)
