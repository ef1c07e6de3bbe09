import math

import pytest
from autoshard import (
    Factor,
    Rule,
    RuleError,
    broadcast,
    einsum,
    elementwise,
    labelled,
    reduction,
    reshape,
    rule_of,
    transpose,
    whole,
)
from autoshard.testing import cases
from hypothesis import given
from hypothesis import strategies as st


@given(cases())
def test_what_prints_is_parsed_to_an_equal_rule(case):
    assert Rule.parse(str(case.rule)) == case.rule


@given(st.lists(st.integers(0, 9), min_size=20, max_size=60))
def test_a_rule_of_many_factors_is_parsed_to_an_equal_one(sizes):
    rule = whole((tuple(sizes),), (tuple(sizes), ()))
    assert Rule.parse(str(rule)) == rule


def test_factors_after_z_are_numbered():
    text = str(whole(((2,) * 27,), ()))
    assert text.startswith("(a,b,c,d")
    assert ",y,z,a1)->" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(a)->(a)", "a rule is written as"),
        ("(a)->(a) {a=2 mean}", "a rule is written as"),
        ("(a)->(a) {a=2a=2}", "a rule is written as"),
        ("(a)->(a) {a=2, a=3}", "listed once; got 'a' twice"),
        ("(a)->(b) {a=2}", r"made of its factors; got \['b'\]"),
        ("(a)->() {a=2}", "'reduce' or 'whole'"),
    ],
)
def test_text_that_is_no_rule_is_an_error(text, message):
    with pytest.raises(RuleError, match=message):
        Rule.parse(text)


@given(cases(), st.data())
def test_a_constant_operand_stops_the_sums_it_takes_part_in(case, data):
    rule = case.rule
    places = range(len(rule.operands))
    fixed = data.draw(st.sets(st.sampled_from(places))) if places else set()
    kept = [index for index in places if index not in fixed]
    left = rule.without(fixed)
    assert left.operands == tuple(rule.operands[index] for index in kept)
    assert [tuple(kept[i] for i in group) for group in left.linear] == [
        group for group in rule.linear if not fixed & set(group)
    ]
    for index in fixed:
        assert {left.factors[f].kind for dim in rule.operands[index] for f in dim} <= {"whole"}


@given(st.lists(st.integers(1, 6), max_size=4), st.data())
def test_reshape_has_both_shapes(shape, data):
    parts = [size for size in shape if size > 1]
    order = data.draw(st.permutations(parts))
    cuts = data.draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    result = [1]
    for size, cut in zip(order, cuts, strict=True):
        if cut:
            result.append(size)
        else:
            result[-1] *= size
    rule = reshape(tuple(shape), tuple(result))
    assert rule.operand_shapes == (tuple(shape),)
    assert rule.result_shapes == (tuple(result),)


@pytest.mark.parametrize(
    ("shape", "result", "kinds"),
    [
        ((2, 3, 4), (6, 4), ["parallel"] * 3),
        ((8,), (2, 1, 4), ["parallel"] * 2),
        ((6, 4), (4, 6), ["parallel", "whole", "whole", "whole", "whole"]),
        ((5, 6), (3, 10), ["whole"] * 4),
        ((), (1, 1), []),
    ],
)
def test_reshape_factors_are_the_common_refinement(shape, result, kinds):
    assert [factor.kind for factor in reshape(shape, result).factors] == kinds


def test_einsum_reduces_what_the_result_lacks():
    rule = einsum("bik,bkj->bij", (2, 3, 4), (2, 4, 5))
    assert [(f.size, f.kind) for f in rule.factors] == [
        (2, "parallel"),
        (3, "parallel"),
        (4, "reduce"),
        (5, "parallel"),
    ]
    assert rule.linear == ((0,), (1,))


def test_elementwise_broadcasts_size_one_and_missing_dims():
    rule = elementwise(((4, 1), (8,), ()), (4, 8))
    assert rule.operands == (((0,), ()), ((1,),), ())


@pytest.mark.parametrize(
    "rule",
    [
        einsum("ik,kj->ij", (2, 3), (3, 4)),
        elementwise(((2, 1), (3,)), (2, 3)),
        labelled("vd,bt->btd", ((5, 2), (3, 4)), ((3, 4, 2),)),
        whole(((2, 3),), ((4,), ())),
        transpose((2, 3, 4), (1, 2, 0)),
        broadcast((3, 1), (2, 3, 4), (1, 2)),
        reduction((2, 3), (1,), "min", keepdims=True),
    ],
)
def test_shapes_of_dims_are_products_of_factors(rule):
    for dims, shape in zip(rule.results, rule.result_shapes, strict=True):
        assert shape == tuple(math.prod(rule.factors[f].size for f in dim) for dim in dims)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rule((Factor(2),), (((1,),),), ()), "name factors by index"),
        (lambda: Rule((Factor(2),), (((0,), (0,)),), (((0,),),)), "its diagonal is not"),
        (lambda: Rule((Factor(2),), (((0,),),), ((),)), "'reduce' or 'whole'"),
        (lambda: Rule((Factor(2, "reduce"),), ((),), ((),)), "is in a dim of some operand"),
        (
            lambda: Rule((Factor(2, "reduce", "max"), Factor(2, "reduce")), (((0,), (1,)),), ((),)),
            "have the same reduction",
        ),
        (
            lambda: Rule((Factor(2, "reduce", "max"),), (((0,),),), ((),), ((0,),)),
            "only sums are linear",
        ),
        (lambda: Rule((Factor(2),), (((0,),),), (((0,),),), ((1,),)), "linear names operands"),
        (lambda: Factor(2, "whole", "max"), "only a 'reduce' factor has a reduction"),
        (lambda: Factor(-3), "size of a factor is an integer >= 0; got -3"),
        (lambda: Factor(3, "x"), "got 'x' and 'sum'"),
        (lambda: einsum("ik,kj", (2, 3), (3, 4)), "has an arrow"),
        (lambda: reduction((2, 3), (-1,)), r"dims of shape \(2, 3\) are 0 to 1; got -1"),
        (lambda: rule_of("softmax", ((2, 3),), ((2, 3),), dims=(-1,)), "negative dims do not"),
        (lambda: einsum("ij,jk->ik", (2, 3)), "names 2 tensors"),
        (lambda: einsum("ij->ik", (2, 3)), "has dims of its operands"),
        (lambda: labelled("ij->i", ((2,),), ((2,),)), "one letter a dim"),
        (lambda: labelled("i,i->i", ((2,), (3,)), ((2,),)), "a letter has one size"),
        (lambda: elementwise(((3,),), (2,)), "does not broadcast"),
        (lambda: broadcast((3,), (2,), (0,)), r"at dims \(0,\) does not"),
        (lambda: reshape((3,), (2,)), "keeps the number of elements"),
    ],
)
def test_rejects_rules_that_contradict_themselves(build, message):
    with pytest.raises(RuleError, match=message):
        build()


def test_the_last_part_of_a_rising_factor_has_the_most_work():
    rising = Factor(8, "reduce", rises=True)
    assert rising.share(1) == 1.0
    assert rising.share(4) == (7 + 8) / sum(range(1, 9))
    assert Factor(10, rises=True).share(4) == (8 + 9 + 10) / sum(range(1, 11))
    rule = Rule.parse("(a,b)->(b) {a=8 sum rises, b=4 rises}")
    assert str(rule) == "(a,b)->(b) {a=8 sum rises, b=4 rises}"
    assert [factor.rises for factor in rule.factors] == [True, True]
    assert [factor.rises for factor in rule.without({0}).factors] == [False, False]
    with pytest.raises(RuleError, match="does not rise"):
        Factor(8, "whole", rises=True)
