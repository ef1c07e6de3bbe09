"""Rings, and halves over opposite parts: what they send, what they take, and that they balance."""

import math
from dataclasses import replace

import numpy as np
import pytest
from autoshard import (
    Factor,
    Graph,
    Operator,
    Output,
    Phase,
    Rule,
    RuleError,
    Sharding,
    Value,
    collectives,
    enumerate_strategies,
    shard,
)
from autoshard.answer.costs import entries
from autoshard.answer.judge import operator_seconds, sent_seconds
from autoshard.rules import Factors
from autoshard.space.options import Options
from autoshard.space.permutations import halved_factor
from autoshard.space.strategy_tables import compute_seconds, table_of, work_share
from autoshard.space.strategy_tables import sent_seconds as sent_of_table
from autoshard.testing import check_sharding, least_seconds, toy_cluster
from costmodel import Cluster
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

PAIR = Mesh((2,), ("x",))
H100 = Cluster.preset("h100-sxm").resized(n_hosts=1)
FORWARD = (
    "(a,b,cd,e)(a,f,c,e)(a,f,c,e)->(a,b,cd,e)(a,cd,b) "
    "{a=2 halves, b=16 rises, c=2 halves, d=4 halves, e=8 whole, f=16 whole} rings {b,f}"
)


@st.composite
def attentions(draw: st.DrawFn) -> Graph:
    """Forward and backward of attention, of random sizes, with or without rings and halves."""
    batch, group, head = (draw(st.sampled_from([1, 2, 3, 4])) for _ in range(3))
    length, width = draw(st.sampled_from([8, 12, 16])), draw(st.sampled_from([1, 4]))
    dtype = draw(st.sampled_from(["bfloat16", "float32"]))
    rises, ring = draw(st.booleans()), draw(st.booleans())
    heads = group * head
    long, short = (batch, length, heads, width), (batch, length, group, width)
    q, dq, y, dy = (Value(n, long, dtype) for n in ("q", "dq", "y", "dy"))
    k, v, dk, dv = (Value(n, short, dtype) for n in ("k", "v", "dk", "dv"))
    logs = Value("logs", (batch, heads, length), "float32")
    read = [replace(value, role="activation") for value in (q, k, v, dy)]

    def rule(*, is_gradient: bool) -> Rule:
        factors = Factors()
        b, g = (factors.parallel(n, halves=rises) for n in (batch, group))
        make = factors.reduced if is_gradient else factors.parallel
        h, t = make(head, halves=rises), make(length, rises=rises)
        s, w = factors.whole(length), factors.whole(width)
        of_rows, of_keys, of_logs = (b, t, g + h, w), (b, s, g, w), (b, g + h, t)
        rings = [(t, s)] * ring
        operands = [of_rows, of_keys, of_keys]
        if not is_gradient:
            return factors.rule(operands, [of_rows, of_logs], rings=rings)
        operands += [of_logs, of_rows, of_rows]
        return factors.rule(operands, [of_rows, of_keys, of_keys], ((5,),), rings)

    flops = 4.0 * batch * heads * length**2 * width
    return Graph(
        (Phase("forward", 2), Phase("backward", 2)),
        (*read, y, logs, dq, dk, dv),
        (
            Operator("f", "f", ("q", "k", "v"), ("y", "logs"), rule(is_gradient=False), flops),
            Operator(
                "g",
                "g",
                ("q", "k", "v", "logs", "y", "dy"),
                ("dq", "dk", "dv"),
                rule(is_gradient=True),
                2.5 * flops,
                1,
            ),
        ),
        ("q", "k", "v", "dy"),
        tuple(map(Output, ("dq", "dk", "dv"))),
    )


@given(attentions(), st.sampled_from([(2,), (4,), (2, 2), (2, 3)]))
def test_every_strategy_has_the_seconds_that_the_judge_finds(
    graph: Graph, shape: tuple[int, ...]
) -> None:
    mesh = Mesh(shape, ("x", "y")[: len(shape)])
    device, links = H100.slowest(mesh), H100.links(mesh)
    for op in graph.operators:
        table = table_of(graph, op, shape, Options())
        values = [[graph.value(n) for n in names] for names in (op.inputs, op.outputs)]
        seconds = compute_seconds(op, *values, device, table)
        expected = [operator_seconds(graph, op, s, mesh, device) for s in table.strategies]
        assert list(seconds) == pytest.approx(expected, rel=1e-12)
        sent = sent_of_table(graph, op, mesh, links, table)
        expected = [sent_seconds(graph, op, s, mesh, links) for s in table.strategies]
        assert list(expected if sent is None else sent) == pytest.approx(expected, rel=1e-12)
        assert (sent is None) == (table.messages is None) == (not any(expected))


def test_results_that_nothing_reads_are_not_sent() -> None:
    rule = Rule.parse("(a,b)->(a,b)(a,b) {a=2 halves, b=8 rises}")
    values = [Value(n, (2, 8), "float32") for n in ("y", "z")]
    graph = Graph(
        (Phase("step"),),
        (Value("x", (2, 8), "float32", "batch"), *values),
        (Operator("f", "f", ("x",), ("y", "z"), rule, 1e9),),
        ("x",),
        (Output("y"),),
    )
    found = shard(graph, PAIR, H100, compare=False)
    by_rows = next(s for s in enumerate_strategies(rule, (2,)) if s.mapping == (1,))
    found = replace(found, strategies=(by_rows,), conversions=())
    assert [c.value for c in collectives(graph, found)] == ["x", "y"]


@given(attentions())
def test_the_search_is_as_good_as_all_strategies_and_its_numbers_are_right(
    graph: Graph,
) -> None:
    prices = toy_cluster()
    found = shard(graph, PAIR, prices, compare=False)
    check_sharding(found)
    assert found.objective_s == pytest.approx(least_seconds(graph, PAIR, prices), rel=1e-9)
    assert Sharding.from_json(found.to_json()) == found
    assert sum(entry.seconds for entry in entries(found)) == pytest.approx(found.objective_s)
    sent = sum(
        c.repeats * sent_seconds(graph, op, s, PAIR, prices.links(PAIR))
        for op, s in zip(graph.operators, found.strategies, strict=True)
        for c in [graph.phases[op.phase]]
    )
    n_sent = sum(c.step.kind == "collective_permute" for c in collectives(graph, found))
    assert (sent > 0) == (n_sent > 0)


@given(
    st.integers(2, 8), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)
)
def test_all_devices_have_as_much_work_as_the_share_says(
    n: int, rows: int, batch: int, group: int, head: int
) -> None:
    size = n * rows
    rule = Rule(
        (
            Factor(batch, halves=True),
            Factor(size, rises=True),
            Factor(group, halves=True),
            Factor(head, halves=True),
        ),
        (((0,), (1,), (2, 3)),),
        (((0,), (1,), (2, 3)),),
    )
    by_rows = next(s for s in enumerate_strategies(rule, (n,)) if s.mapping == (1,))
    half = halved_factor(rule, by_rows, (n,))
    work = np.zeros((n, batch, group * head))
    for device in range(n):
        own, opposite = (np.arange(i * rows, (i + 1) * rows) + 1 for i in (device, n - 1 - device))
        work[device] += own.sum()
        index = {None: None, 0: np.s_[batch // 2 :], 2: None, 3: None}[half]
        if half == 0:
            work[device, index] = opposite.sum()
        elif half is not None:
            work[device, :, group * head // 2 :] = opposite.sum()
    each = work.sum((1, 2)) / (batch * group * head * size * (size + 1) / 2)
    assert work_share(rule, by_rows, (n,)) == pytest.approx(each.max())
    assert each.sum() == pytest.approx(1.0)
    if half is not None:
        assert each == pytest.approx(1 / n)
    # Blocks only: of three groups of two heads, no half is one block.
    assert (half is None) == (batch % 2 == 1 and group % 2 == 1 and (group > 1 or head % 2 == 1))


def test_keys_go_round_once_and_their_gradients_come_home() -> None:
    forward = Rule.parse(FORWARD)
    assert Rule.parse(str(forward)) == forward
    (ring,) = (s for s in enumerate_strategies(forward, (4,)) if s.mapping == (("ring", 0),))
    assert str(ring) == "ring0->0"
    assert [str(spec) for spec in ring.operand_specs] == ["RS0RR"] * 3
    assert work_share(forward, ring, (4,)) == 0.25
    gradient = Rule.parse(
        "(a,b)(a,c)(a,b)->(a,b)(a,c) {a=2, b=8 sum, c=8 whole} linear {2} rings {b,c}"
    )
    of = {s.mapping: s for s in enumerate_strategies(gradient, (4,))}
    assert [str(spec) for spec in of[1,].result_specs] == ["RS0", "RR+P0"]
    assert [str(spec) for spec in of[("ring", 0),].result_specs] == ["RS0", "RS0"]
    values = [Value(n, (2, 8), "bfloat16", "activation") for n in "qky"]
    made = [Value(n, (2, 8), "bfloat16") for n in ("dq", "dk")]
    op = Operator("g", "g", ("q", "k", "y"), ("dq", "dk"), gradient)
    graph = Graph(
        (Phase("step"),), (*values, *made), (op,), ("q", "k", "y"), (Output("dq"), Output("dk"))
    )
    mesh = Mesh((4,), ("x",))
    found = replace(
        shard(graph, mesh, H100, compare=False),
        strategies=(of[("ring", 0),],),
        conversions=(),
    )
    sent = [(c.value, c.n_bytes, c.step.group_size) for c in collectives(graph, found)]
    # Three times to all others; sums travel in float32, and once more, to where they belong.
    assert sent == [("k", 8, 4)] * 3 + [("dk", 16, 4)] * 4


def test_keys_that_are_values_too_are_sent_once() -> None:
    rule = Rule.parse("(a,b)(c,b)(c,b)->(a,b) {a=8, b=4 whole, c=8 whole} rings {a,c}")
    graph = Graph(
        (Phase("step"),),
        (*(Value(n, (8, 4), "float32", "activation") for n in "qk"), Value("y", (8, 4), "float32")),
        (Operator("f", "f", ("q", "k", "k"), ("y",), rule, 1e9),),
        ("q", "k"),
        (Output("y"),),
    )
    (ring,) = (s for s in enumerate_strategies(rule, (4,)) if s.mapping == (("ring", 0),))
    mesh = Mesh((4,), ("x",))
    found = replace(shard(graph, mesh, H100, compare=False), strategies=(ring,), conversions=())
    assert [c.value for c in collectives(graph, found)] == ["k"] * 3
    sent = sent_of_table(
        graph, graph.operators[0], mesh, H100.links(mesh),
        table_of(graph, graph.operators[0], (4,), Options()),
    )  # fmt: skip
    table = table_of(graph, graph.operators[0], (4,), Options())
    expected = sent_seconds(graph, graph.operators[0], ring, mesh, H100.links(mesh))
    assert sent is not None
    assert sent[table.strategies.index(ring)] == pytest.approx(expected)


def test_a_factor_without_indices_has_no_halves() -> None:
    rule = Rule.parse("(a,b,c)->(a,b,c) {a=0 halves, b=8 rises, c=2 halves}")
    by_rows = next(s for s in enumerate_strategies(rule, (4,)) if s.mapping == (1,))
    assert halved_factor(rule, by_rows, (4,)) == 2


def test_a_ring_is_taken_where_there_is_no_room_for_all_keys() -> None:
    rule = Rule.parse("(a,b)(c,b)(c,b)->(a,b) {a=256, b=64 whole, c=256 whole} rings {a,c}")
    read = [Value(name, (256, 64), "float32", "activation") for name in "qkv"]
    graph = Graph(
        (Phase("step"),),
        (*read, Value("y", (256, 64), "float32")),
        (Operator("f", "f", ("q", "k", "v"), ("y",), rule, 1e12),),
        ("q", "k", "v"),
        (Output("y"),),
    )
    mesh = Mesh((8,), ("x",))
    free = shard(graph, mesh, H100, compare=False)
    assert [str(spec) for spec in free.strategies[0].operand_specs] == ["S0R", "RR", "RR"]
    tight = shard(graph, mesh, H100, memory_bytes=free.peak_bytes // 2, compare=False)
    assert [str(spec) for spec in tight.strategies[0].operand_specs] == ["S0R"] * 3
    assert tight.peak_bytes == 4 * 256 * 64 * 4 // 8
    tight.verify()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(a)(b)->(ab) {a=4, b=4} rings {a,b}", "'whole' factor go round"),
        ("(a)(b)->(a) {a=4 whole, b=4 whole} rings {a,b}", "'whole' factor go round"),
        ("(a,b)->(a) {a=4, b=4 whole} rings {a,b}", "are dims of different tensors"),
        ("(a)(bc)->(ac) {a=4, b=4 whole, c=2} rings {a,b}", "are dims of different tensors"),
        ("(a)->(a) {a=4} rings {a,z}", "a ring is of two factors"),
        ("(a)->(a) {a=4 rises halves}", "balanced by halves of another"),
        ("(a)->(a) {a=4 whole halves}", "has no halves"),
    ],
)
def test_wrong_rings_and_halves_are_refused(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        Rule.parse(text)


def test_a_constant_ends_a_ring() -> None:
    rule = Rule.parse(FORWARD)
    assert rule.without({1}).rings == ()
    assert math.prod(rule.without({1}).operand_shapes[0]) == math.prod(rule.operand_shapes[0])
