"""Every rule of the table is right: each of its strategies computes what the operator computes."""

from dataclasses import replace

import pytest
from autoshard import (
    RULES,
    GraphBuilder,
    Rule,
    RuleError,
    control_flow,
    enumerate_strategies,
    rule_of,
)
from autoshard.rules import Factors
from autoshard.testing import cases, check_rule, check_strategy, meshes
from autoshard.testing.cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import ShardsError

DISTINCT = sorted({(RULES[kind], CASES[kind]): kind for kind in sorted(RULES)}.values())
"""A kind for each pair of a rule and a program; most nonlinear functions have the same pair."""


def test_every_kind_of_the_table_has_a_program():
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("kind", DISTINCT)
@settings(max_examples=settings().max_examples // 10)
@given(data=st.data())
def test_every_strategy_computes_what_the_operator_computes(kind, data):
    case = data.draw(cases(kind))
    mesh = data.draw(meshes(max_axes=2))
    uneven, strided = data.draw(st.booleans()), data.draw(st.booleans())
    strategies = enumerate_strategies(case.rule, mesh.shape, uneven, strided)
    for strategy in data.draw(st.lists(st.sampled_from(strategies), min_size=1, max_size=4)):
        check_strategy(case.rule, case.run, mesh, strategy, operands=case.operands)


def test_a_minor_factor_is_split_with_a_stride():
    rule = rule_of("reshape", ((3, 4),), ((12,),))
    found = {str(s.result_specs[0]) for s in enumerate_strategies(rule, (2,), strided=True)}
    assert found == {"R", "R+P0", "S[3]0"}
    check_rule(rule, lambda v, part: [v[0].reshape(part.shape())], strided=True)


def test_a_dim_that_no_axis_divides_is_split_into_padded_parts():
    rule = rule_of("reduce_max", ((5, 7),), ((5,),), dims=(1,))
    found = {str(s.result_specs[0]) for s in enumerate_strategies(rule, (2,), uneven=True)}
    assert found == {"R", "S0", "R+Pmax0"}
    check_rule(rule, lambda v, part: [v[0].max(axis=1)], uneven=True)


@settings(max_examples=3 * settings().max_examples // 2)
@given(cases(), st.data())
def test_other_shapes_have_another_rule_or_none(case, data):
    shapes = st.lists(st.lists(st.integers(0, 6), max_size=4).map(tuple), max_size=4).map(tuple)
    operands = data.draw(st.one_of(shapes, st.just(case.operand_shapes)))
    results = data.draw(st.one_of(shapes, st.just(case.result_shapes)))
    try:
        rule = rule_of(case.kind, operands, results, **case.attributes)
    except RuleError:
        return
    assert (rule.operand_shapes, rule.result_shapes) == (operands, results)


def run(function):
    return lambda operands, part: [function(*operands)]


SQUARE = ((6, 6),)
WRONG = {
    "a softmax along its dim": (
        rule_of("exp", SQUARE, SQUARE),
        run(lambda x: x - x.max(axis=1, keepdims=True)),
    ),
    "a cumulative sum along its dim": (
        replace(rule_of("copy", SQUARE, SQUARE), linear=()),
        run(lambda x: x.cumsum(axis=1)),
    ),
    "a square as linear": (
        replace(rule_of("square", SQUARE, SQUARE), linear=((0,),)),
        run(lambda x: x**2),
    ),
    "a product as jointly linear": (
        replace(rule_of("mul", SQUARE * 2, SQUARE), linear=((0, 1),)),
        run(lambda x, y: x * y),
    ),
    "a sum as linear in each operand": (
        replace(rule_of("add", SQUARE * 2, SQUARE), linear=((0,), (1,))),
        run(lambda x, y: x + y),
    ),
    "adding a constant as linear": (
        replace(rule_of("add", SQUARE * 2, SQUARE), linear=((0,),)).without({1}),
        run(lambda x: x + 1),
    ),
    "a maximum as a sum": (
        rule_of("reduce_sum", SQUARE, ((6,),), dims=(1,)),
        run(lambda x: x.max(axis=1)),
    ),
    "an argmax as a maximum": (
        rule_of("reduce_max", SQUARE, ((6,),), dims=(1,)),
        run(lambda x: x.argmax(axis=1)),
    ),
    "a transpose of the wrong dims": (
        Rule.parse("(a,b,c)->(b,a,c) {a=6, b=6, c=6}"),
        run(lambda x: x.transpose(2, 0, 1)),
    ),
    "a reshape with its factors the wrong way": (
        Rule.parse("(ab)->(b,a) {a=6, b=6}"),
        lambda operands, part: [operands[0].reshape(part.shape())],
    ),
    "a scatter that counts its target on every device": (
        Rule.parse("(a)(b)->(a) {a=6, b=6 sum}"),
        run(lambda x, y: x + y.sum()),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_rule_is_caught(wrong):
    rule, program = WRONG[wrong]
    with pytest.raises((AssertionError, ShardsError)):
        check_rule(rule, program)


@pytest.mark.parametrize(
    ("kind", "text", "attributes"),
    [
        ("add", "(a,b)(b)->(a,b) {a=4, b=8} linear {0,1}", {}),
        ("select_n", "(a)(a)(a)->(a) {a=4} linear {1,2}", {}),
        ("momentum", "(a)(a)(a)->(a)(a) {a=4} linear {0,1,2}", {}),
        ("adam", "(a)(a)(a)(a)->(a)(a)(a) {a=4}", {}),
        ("reduce_prod", "(a,b)->(a) {a=4, b=8 product}", {"dims": (1,)}),
        ("argmax", "(a,b)->(a) {a=4, b=8 whole}", {"dims": (1,)}),
        ("softmax", "(a,b)->(a,c) {a=4, b=8 whole, c=8 whole}", {"dims": (1,)}),
        ("cumsum", "(b,a)->(c,a) {a=8, b=4 whole, c=4 whole} linear {0}", {"dim": 0}),
        ("window_sum", "(a,b)->(a,c) {a=4, b=8 whole, c=7 whole} linear {0}", {"dims": (1,)}),
        ("threefry2x32", "()()(a)(a)->(a)(a) {a=4}", {}),
        ("top_k", "(a,b)->(a,c)(a,d) {a=4, b=8 whole, c=2 whole, d=2 whole}", {"dim": 1}),
        ("slice", "(a,b)->(a,c) {a=4, b=8 whole, c=3 whole} linear {0}", {}),
        ("embedding", "(a,b)(c,d)->(c,d,b) {a=50 sum, b=8, c=2, d=4} linear {0}", {}),
        ("embedding_gradient", "(a,b)(a)->(c,b) {a=4 sum, b=8, c=50} linear {0}", {}),
        ("pick", "(a,b,c)(a,b)->(a,b) {a=2, b=4, c=50 sum} linear {0}", {}),
        ("pick_gradient", "(a,b)(a,b)->(a,b,c) {a=2, b=4, c=50} linear {0}", {}),
        ("cross_entropy", "(a,b)(a)->(a) {a=4, b=50 whole}", {}),
        ("rms_norm", "(a,b,c)(c)->(a,b,c) {a=2, b=4, c=8 whole} linear {1}", {}),
        (
            "layer_norm_gradient",
            "(a,b)(a,b)(b)->(a,b)(b)(b) {a=4 sum, b=8 whole} linear {0}",
            {},
        ),
        ("batch_norm", "(a,b,c)(b)(b)->(a,b,c) {a=4 whole, b=8, c=9 whole}", {}),
        (
            "attention",
            "(a,bc,d,f)(a,b,e,f)(a,b,e,g)->(a,bc,d,g) "
            "{a=2, b=4, c=3, d=5, e=6 whole, f=8 whole, g=9} linear {2}",
            {},
        ),
        (
            "moe_dispatch",
            "(a,b,c)(a,b,d)(a,b,d)->(e,a,f,c) {a=2, b=16 sum, c=8, d=3 sum, e=4, f=5} linear {0}",
            {},
        ),
        (
            "triangular_solve",
            "(a,b,c)(a,d,e)->(a,d,e) {a=2, b=4 whole, c=4 whole, d=4 whole, e=8} linear {1}",
            {},
        ),
        ("random", "(a)->(b,c) {a=2 whole, b=4, c=8}", {}),
    ],
)
def test_what_may_be_split_and_where_sums_pass(kind, text, attributes):
    rule = Rule.parse(text)
    found = rule_of(kind, rule.operand_shapes, rule.result_shapes, **attributes)
    assert str(found) == text


GATHER = {"slice_sizes": (1, 8), "offset_dims": (1,), "collapsed_slice_dims": (0,)}
SCATTER = {"update_window_dims": (1,), "inserted_window_dims": (0,), "adds": True}


@pytest.mark.parametrize(("masked", "kind"), [(False, "whole"), (True, "sum")])
def test_the_rows_that_a_gather_looks_up_are_summed_if_it_is_masked(masked, kind):
    shapes = ((50, 8), (6, 1)), ((6, 8),)
    rule = rule_of("gather", *shapes, **GATHER, start_index_map=(0,), masked=masked)
    assert f"=50 {kind}" in str(rule)


@pytest.mark.parametrize(("masked", "kind"), [(False, "whole"), (True, "parallel")])
def test_the_rows_that_a_scatter_adds_to_are_parallel_if_it_is_masked(masked, kind):
    shapes = ((50, 8), (6, 1), (6, 8)), ((50, 8),)
    rule = rule_of("scatter", *shapes, **SCATTER, scatter_dims_to_operand_dims=(0,), masked=masked)
    (factor,) = [factor for factor in rule.factors if factor.size == 50]
    assert factor.kind == kind


NCHW, OIHW = (0, 1, 2, 3), (0, 1, 2, 3)


def splits(rule):
    """The kind of each factor that is not whole, by its size."""
    return {f.size: f.kind for f in rule.factors if f.kind != "whole"}


@pytest.mark.parametrize(
    ("computes", "kinds"),
    [
        ("result", {2: "parallel", 5: "reduce", 3: "parallel", 7: "parallel"}),
        ("data", {2: "parallel", 5: "parallel", 3: "parallel", 7: "reduce"}),
        ("kernel", {2: "reduce", 5: "parallel", 3: "parallel", 7: "parallel"}),
    ],
)
def test_a_convolution_and_its_gradients_are_one_set_of_factors(computes, kinds):
    """Batch 2, three groups of 5 input and 7 output channels, in an 8 x 8 image."""
    shapes = {"data": (2, 15, 8, 8), "kernel": (21, 5, 3, 3), "result": (2, 21, 6, 6)}
    read = tuple(shape for name, shape in shapes.items() if name != computes)
    layouts = {"data": NCHW, "kernel": OIHW, "result": NCHW}
    rule = rule_of("convolution", read, (shapes[computes],), groups=3, computes=computes, **layouts)
    assert splits(rule) == kinds


def test_a_depthwise_convolution_is_parallel_in_its_channels():
    shapes = ((8, 4, 9, 9), (4, 1, 3, 3)), ((8, 4, 7, 7),)
    rule = rule_of("convolution", *shapes, data=NCHW, kernel=OIHW, result=NCHW, groups=4)
    assert splits(rule) == {8: "parallel", 4: "parallel"}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"groups": 3}, "divide the input channels; got 4 and 3"),
        ({"batch_groups": 3}, "divide the output channels; got 4 and 3"),
        ({"groups": 2, "batch_groups": 2}, "not both; got groups=2 and batch_groups=2"),
    ],
)
def test_groups_divide_what_they_group(groups, message):
    shapes = ((8, 4, 9), (4, 4, 3)), ((8, 4, 7),)
    layouts = {"data": (0, 1, 2), "kernel": (0, 1, 2), "result": (0, 1, 2)}
    with pytest.raises(RuleError, match=message):
        rule_of("convolution", *shapes, **layouts, **groups)


def loop(body, sequences=1):
    """A scan over `body`, whose first inputs are the carry."""
    shapes = [body.value(name).shape for name in body.inputs]
    n_carry = len(shapes) - sequences
    outputs = [body.value(output.value).shape for output in body.outputs]
    operands = (*shapes[:n_carry], *((3, *shape) for shape in shapes[n_carry:]))
    results = (*outputs[:n_carry], *((3, *shape) for shape in outputs[n_carry:]))
    return rule_of("scan", operands, results, body=body, n_constants=0, n_carry=n_carry)


def test_a_loop_is_parallel_where_its_whole_body_is():
    graph = GraphBuilder()
    h, x = graph.input("h", 4, 8), graph.input("x", 4, 8)
    graph.output(graph.apply("softmax", graph.add(h, x), dims=(1,)))
    assert str(loop(graph.build())) == (
        "(a,b)(c,a,d)->(a,e) {a=4, b=8 whole, c=3 whole, d=8 whole, e=8 whole}"
    )


def test_a_sum_in_a_loop_keeps_its_dims_whole():
    graph = GraphBuilder()
    h, w = graph.input("h", 4, 8), graph.input("w", 8, 8)
    graph.output(graph.dot(h, w))
    assert splits(loop(graph.build())) == {4: "parallel"}


def test_a_carry_that_is_turned_stays_whole():
    graph = GraphBuilder()
    h, x = graph.input("h", 4, 4), graph.input("x", 4)
    graph.output(graph.add(graph.transpose(h, 1, 0), x))
    assert splits(loop(graph.build())) == {}


def test_a_dim_that_is_split_and_merged_is_parallel_in_what_all_agree_on():
    graph = GraphBuilder()
    h, x = graph.input("h", 12), graph.input("x", 12)
    graph.output(graph.reshape(graph.apply("exp", graph.reshape(graph.add(h, x), 3, 4)), 12))
    assert str(loop(graph.build())) == (
        "(ab)(c,ad)->(ae) {a=3, b=4 whole, c=3 whole, d=4 whole, e=4 whole}"
    )


def test_a_counter_lacks_the_dims_that_a_loop_is_parallel_in():
    graph = GraphBuilder()
    n, h = graph.input("n"), graph.input("h", 4)
    graph.output(graph.apply("exp", n))
    graph.output(graph.apply("exp", h))
    assert str(loop(graph.build(), sequences=0)) == "()(a)->()(a) {a=4}"


def test_branches_are_parallel_where_all_of_them_are():
    branches = []
    for kind in ("exp", "softmax"):
        graph = GraphBuilder()
        graph.output(
            graph.apply(
                kind, graph.input("x", 4, 8), **({"dims": (1,)} if kind == "softmax" else {})
            )
        )
        branches.append(graph.build())
    rule = rule_of("cond", ((), (4, 8)), ((4, 8),), branches=branches)
    assert splits(rule) == {4: "parallel"}


def test_a_body_has_a_value_for_each_shape():
    graph = GraphBuilder()
    graph.output(graph.apply("exp", graph.input("x", 4)))
    with pytest.raises(RuleError, match="each of the operands; got 1 for 2 shapes"):
        rule_of("scan", ((4,), (4,)), ((4,),), body=graph.build(), n_constants=0, n_carry=1)


def test_attributes_that_fit_no_shape_are_an_error():
    with pytest.raises(RuleError, match=r"no 'transpose' has operands of shapes \(\(4,\),\)"):
        rule_of("transpose", ((4,),), ((4,),), permutation=(1,))


def test_an_unknown_kind_runs_whole_whatever_its_attributes():
    rule = rule_of("my own", ((4, 8),), ((4,),), anything=3)
    assert {factor.kind for factor in rule.factors} == {"whole"}


def test_dims_of_size_one_have_no_factor():
    factors = Factors()
    assert (factors.parallel(1), factors.reduced(1), factors.whole(1)) == ((), (), ())
    assert factors.rule([((),)], [((),)]).factors == ()


def test_the_backward_of_a_recurrence_is_split_by_what_it_sums_over():
    graph = GraphBuilder()
    w, g = graph.input("w", 8, 8), graph.input("g", 8, 8)
    dh, h = graph.input("dh", 4, 8), graph.input("h", 4, 8)
    back = graph.einsum("bk,nk->bn", dh, w)
    total = graph.add(g, graph.einsum("bn,bk->nk", h, dh))
    graph.output(total)
    graph.output(back)
    flow = control_flow(
        "scan",
        ((8, 8), (8, 8), (4, 8), (6, 4, 8)),
        ((8, 8), (4, 8)),
        body=graph.build(),
        n_constants=1,
        n_carry=2,
    )
    (factor,) = [i for i, factor in enumerate(flow.rule.factors) if factor.kind == "reduce"]
    assert [factor in dims[0] for dims in flow.rule.results] == [False, True]
    assert flow.summands == (1,)
    assert flow.dims[0, "h"][0] == factor
    assert factor not in flow.dims[0, total]


def test_iterations_that_only_add_are_split():
    graph = GraphBuilder()
    total, x = graph.input("total", 4), graph.input("x", 4)
    graph.output(graph.add(total, graph.apply("square", x)))
    graph.output(graph.apply("neg", x))
    arguments = {"body": graph.build(), "n_constants": 0, "n_carry": 1}
    flow = control_flow("scan", ((4,), (6, 4)), ((4,), (6, 4)), **arguments)
    assert str(flow.rule) == "(a)(b,a)->(a)(b,a) {a=4, b=6 sum}"
    assert flow.summands == (0,)


def test_control_flow_is_of_a_known_kind():
    with pytest.raises(RuleError, match=r"one of \['cond', 'scan', 'while'\]; got 'dot'"):
        control_flow("dot", (), ())
    with pytest.raises(RuleError, match=r"takes other attributes: .*body"):
        control_flow("scan", (), ())
