"""Rules of users' own primitives: what they say is planned and run; what cannot be is refused."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import autoshard
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.base.rule_table import Formula, RuleTable
from frontends.errors import (
    ArgumentError,
    RegistrationError,
    UnsupportedStepError,
    VerificationError,
)
from frontends.jax import check_rules, custom_op, parallelize, plan_for, register_rule
from frontends.jax.base._compat import aval
from frontends.jax.base.described import Described
from frontends.jax.rules import rules
from frontends.jax.rules.rules import flops_of, has_rule, parameters_of_part, rule_of
from frontends.jax.rules.table import ENTRIES
from frontends.jax.testing import assert_same
from frontends.jax.trace.phased_graph import Rules
from jax.experimental import pallas as pl
from jax.extend.core import Primitive

CLUSTER = Cluster.preset("virtual-cpu").resized(devices_per_host=4)
X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)


def kernel(x: Any) -> Any:
    """A softmax of rows, two rows a block."""
    block = pl.BlockSpec((2, x.shape[1]), lambda i: (i, 0))

    def run(x_ref: Any, y_ref: Any) -> None:
        y_ref[...] = jax.nn.softmax(x_ref[...], -1)

    shape, grid = jax.ShapeDtypeStruct(x.shape, x.dtype), (x.shape[0] // 2,)
    return pl.pallas_call(run, shape, grid=grid, in_specs=[block], out_specs=block, interpret=True)(
        x
    )


def new_op(name: str, function: Callable[..., Any] = jnp.tanh) -> Any:
    """An operator that no other test has."""

    def op(*arrays: Any, **named: Any) -> Any:
        return function(*arrays, **named)

    op.__name__ = name
    return custom_op(op)


def equation(function: Callable[..., Any], *operands: Any) -> Any:
    return jax.make_jaxpr(function)(*operands).jaxpr.eqns[-1]


def test_a_pallas_kernel_in_a_custom_vjp_is_sharded_once_it_has_a_rule() -> None:
    rows = new_op("rows", kernel)
    back = new_op("rows_back", lambda y, g: y * (g - (y * g).sum(-1, keepdims=True)))
    softmax = jax.custom_vjp(rows)
    softmax.defvjp(lambda x: (rows(x),) * 2, lambda y, g: (back(y, g),))

    def step(w: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(softmax(x @ w) ** 2))(w)
        return w - gradient, loss

    arguments = jnp.asarray(X.T), jnp.asarray(np.tile(X, (8, 1)))
    options: Any = {"cluster": CLUSTER, "strategy": "data_parallel"}
    with pytest.warns(match="no sharding rule for rows .* these whole: register_rule adds"):
        whole = plan_for(step, arguments, microbatches=1, **options).plan
    assert whole.unsharded == ("rows", "rows_back")

    register_rule(rows, "...k->...k", whole="k")
    register_rule(back, "...k,...k->...k", whole="k", linear=((1,),))
    parallel = parallelize(step, microbatches=2, **options)
    assert_same(jax.tree.leaves(parallel(*arguments)), jax.jit(step)(*arguments))
    assert parallel.plan.unsharded == ()
    (stage,) = parallel.plan.stages
    found = [p for p in stage.placements if p.operator.startswith("rows.")]
    assert found
    assert "RR" not in {str(p.results[0]) for p in found}


def test_a_primitive_whose_parameters_hold_shapes_runs_on_parts_of_them() -> None:
    fill = Primitive("fill_rows")
    fill.def_impl(lambda x, shape: jnp.broadcast_to(x, shape))
    fill.def_abstract_eval(lambda x, shape: jax.core.ShapedArray(shape, x.dtype))
    register_rule(fill, "k->rk", linear=((0,),), part=lambda call: {"shape": call.results[0]})
    made = equation(lambda x: fill.bind(x, shape=(4, 16)), X[0])
    assert str(rule_of(made)) == "(a)->(b,a) {a=16, b=4} linear {0}"
    assert parameters_of_part(made, [(8,)], [(2, 8)]) == {"shape": (2, 8)}
    assert parameters_of_part(made, [(16,)], [(4, 16)]) == {}


def test_a_rule_may_be_a_function_of_shapes_and_parameters() -> None:
    op = new_op("sums", lambda x, dim: x.sum(dim))

    def rule(call: Described) -> autoshard.Rule:
        return autoshard.reduction(call.operands[0], (call.attributes["dim"],))

    register_rule(op, rule, flops=lambda call: 7.0)
    made = equation(lambda x: op(x, dim=1), X)
    assert str(rule_of(made)) == str(autoshard.reduction((8, 16), (1,)))
    assert flops_of(made) == 7.0


def test_a_rule_that_comes_later_is_used_from_then_on() -> None:
    op = new_op("later")
    made, rules = equation(op, X), Rules(masked=True)
    assert {factor.kind for factor in rules.of(made)[0].factors} == {"whole"}
    register_rule(op, "...->...")
    assert {factor.kind for factor in rules.of(made)[0].factors} == {"parallel"}


def test_primitives_of_one_name_are_two() -> None:
    one, other = new_op("namesake"), new_op("namesake")
    register_rule(one, "...->...")
    assert has_rule(one.primitive)
    assert not has_rule(other.primitive)
    ours = new_op("dot_general", jnp.matmul)  # JAX's rule would ask it for dimension_numbers
    register_rule(ours, "ik,kj->ij", linear=((0,), (1,)))
    rule = rule_of(equation(ours, X, X.T))
    assert [factor.kind for factor in rule.factors] == ["parallel", "reduce", "parallel"]


def test_a_rule_is_registered_once() -> None:
    op = new_op("once")
    register_rule(op, "ab->ab", whole="b")
    register_rule(op, "ab->ab", whole="b")  # the same, as where a module is loaded again
    with pytest.raises(RegistrationError, match=r"an operator has one rule.*; once has another"):
        register_rule(op, "ab->ab")


@pytest.mark.parametrize(
    ("rule", "more", "message"),
    [
        ("ab", {}, "a formula has a letter for each dim .*; got 'ab'"),
        ("a1->a", {}, "a formula has a letter for each dim"),
        ("ab->a", {"whole": "c"}, r"whole dims are letters of the formula 'ab->a'; got \['c'\]"),
        ("ab->a", {"reduction": "mean"}, "reduced by one of sum, max, min; got reduction='mean'"),
        ("ab->a", {"linear": ((1,),)}, r"0 to 0 of 'ab->a'; got linear=\(\(1,\),\)"),
        (len, {"whole": "a"}, "a rule is a formula, .*, or a function .* with whole='a'"),
        (None, {}, "a rule is a formula, .*; got None"),
    ],
)
def test_what_is_no_rule_is_refused(rule: Any, more: Any, message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        register_rule(new_op("refused"), rule, **more)


def test_a_rule_is_that_of_a_primitive() -> None:
    with pytest.raises(RegistrationError, match=r"registered for a primitive, .*; got 'tanh'"):
        register_rule("tanh", "...->...")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("ab->a", "one letter a dim; got 'a' for shape"),
        ("abc->abc", "one letter a dim; got 'abc' for shape"),
        ("a,b->ab", "names 2 tensors on one side; got 1 shapes"),
        (lambda call: None, "a rule is an autoshard.Rule; that of misfit is None"),
        (
            lambda call: autoshard.elementwise(((8,),), (8,)),
            r"a rule has the shapes of its call, \(\(8, 16\),\) to .*; that of misfit is '\(a\)",
        ),
        (
            lambda call: autoshard.Rule.parse("(a,b)->(a,b) {a=8 halves, b=16 rises}"),
            "nothing is sent while a registered operator runs, so its rule has no rings and no ha",
        ),
    ],
)
def test_a_rule_that_does_not_fit_is_refused_where_it_is_planned(rule: Any, message: str) -> None:
    op = new_op("misfit")
    register_rule(op, rule)
    with pytest.raises(UnsupportedStepError, match=message):
        plan_for(lambda x: op(x), (X,), CLUSTER)


@pytest.mark.parametrize(
    ("formula", "shapes", "expected"),
    [
        ("...k,kn->...n", (((2, 3, 4), (4, 5)), ((2, 3, 5),)), "(a,b,c)(c,d)->(a,b,d)"),
        ("...->...", (((),), ((),)), "()->()"),
        ("..., ...->...", (((2, 3), (3,)), ((2, 3),)), "(a,b)(b)->(a,b)"),
        ("a...->...a", (((2, 3, 5),), ((3, 5, 2),)), "(a,b,c)->(b,c,a)"),
    ],
)
def test_an_ellipsis_stands_for_dims_counted_from_the_last(
    formula: str, shapes: Any, expected: str
) -> None:
    call = Described(equation(jnp.tanh, X), *shapes)
    assert str(Formula(formula)(call)).partition(" ")[0] == expected


def test_an_operator_of_a_function_returns_what_the_function_does() -> None:
    op = new_op("pair", lambda x, *, by: {"twice": x * by, "sum": (x.sum(),)})
    made = jax.jit(lambda x: op(x, by=2.0))(X)
    assert_same(jax.tree.leaves(made), {"twice": X * 2, "sum": (X.sum(),)})
    assert_same(jax.tree.leaves(op(jnp.asarray(X), by=2.0)), made)
    assert aval(equation(lambda x: op(x, by=2.0), X).outvars[1]).shape == (8, 16)


def row_sums(x: Any) -> Any:
    return x.sum(1)


def largest_of_rows(x: Any) -> Any:
    return x.max(1)


@pytest.mark.parametrize(
    ("function", "formula", "named", "is_right"),
    [
        (lambda x: jax.nn.softmax(x, -1), "rk->rk", {}, False),
        (lambda x: jax.nn.softmax(x, -1), "rk->rk", {"whole": "k"}, True),
        (lambda x: x**2, "rk->rk", {"linear": ((0,),)}, False),
        (lambda x: 2 * x, "rk->rk", {"linear": ((0,),)}, True),
        (largest_of_rows, "rk->r", {}, False),
        (largest_of_rows, "rk->r", {"reduction": "min"}, False),
        (largest_of_rows, "rk->r", {"reduction": "max"}, True),
        (row_sums, "rk->r", {}, True),
        (jnp.cumsum, "rk->n", {}, False),
    ],
)
def test_a_rule_is_tried_in_every_way_that_it_allows(
    function: Any, formula: str, named: Any, is_right: bool
) -> None:
    op = new_op("tried", function)
    register_rule(op, formula, **named)
    if is_right:
        assert check_rules(op, X)["tried"] > 2
        assert 1 <= check_rules(op, X, at_most=1)["tried"] < check_rules(op, X)["tried"]
        return
    with pytest.raises(
        VerificationError, match=r"tried, with the rule '.*(runs whole|instead of .*), run as"
    ):
        check_rules(op, X)


def test_rules_are_tried_of_all_operators_and_of_those_alone_that_have_one() -> None:
    ruled, other = new_op("ruled"), new_op("unruled")
    register_rule(ruled, "...->...")
    tried = check_rules(lambda x: jnp.sum(other(ruled(x) + ruled(2 * x))), X)
    assert tried.keys() == {"ruled", "mul", "add", "reduce_sum"}
    key = jax.random.key
    assert check_rules(lambda x: jnp.tanh(x + jax.random.bits(key(0))), X, at_most=1)["tanh"]


def test_an_operator_that_fails_on_parts_is_told_from_one_that_is_wrong() -> None:
    op = new_op("of_eight_rows", lambda x: x + jnp.arange(8.0)[:, None])
    register_rule(op, "rk->rk")
    with pytest.raises(VerificationError, match=r"of_eight_rows.* fails with \w+: .*, run as"):
        check_rules(op, X)


def test_rules_are_tried_in_narrow_types_and_in_any_shape() -> None:
    narrow = jnp.linspace(-1, 1, 64, dtype=jnp.bfloat16).reshape(8, 8)
    assert check_rules(lambda x: (x @ x).sum(), narrow)["dot_general"] > 2
    for shape in ((), (0, 4), (1, 4), (3, 5)):
        assert check_rules(jnp.tanh, jnp.ones(shape))["tanh"] >= 1


def test_rules_are_tried_on_arrays_of_numbers() -> None:
    with pytest.raises(ArgumentError, match=r"at least one strategy .*; got at_most=0: give"):
        check_rules(jnp.tanh, X, at_most=0)
    with pytest.raises(ArgumentError, match=r"tried on arrays of numbers; got .*key"):
        check_rules(jax.random.bits, jax.random.key(0))
    with pytest.raises(ArgumentError, match=r"tried on arrays of numbers; got 'x'"):
        check_rules(jnp.tanh, "x")


INSTALLED = """\
from frontends.jax import register_rule
from frontends.jax.rules.rules import has_rule
from jax.extend.core import Primitive

THEIRS = Primitive("theirs")

def register():
    assert not has_rule(THEIRS)
    register_rule(THEIRS, "...->...")

def fail():
    raise OSError("no such kernel")
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RuleTable[Any, Any]]:
    """Our table, beside a distribution with entry points."""

    def installed(**points: str) -> RuleTable[Any, Any]:
        (info := tmp_path / "kernels-1.2.dist-info").mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 1.2\n")
        lines = [f"{point} = {value}" for point, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[frontends.jax.rules]", *lines]))
        (tmp_path / "kernels.py").write_text(INSTALLED)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "kernels", raising=False)
        table = RuleTable[Any, Any](ENTRIES.items(), "frontends.jax.rules")
        monkeypatch.setattr(rules, "_TABLE", table)
        return table

    return installed


def test_rules_of_a_distribution_are_registered_when_a_rule_is_asked_for(
    table: Callable[..., RuleTable[Any, Any]],
) -> None:
    table(theirs="kernels:register")
    assert "kernels" not in sys.modules
    assert has_rule(jax.lax.tanh_p)
    assert has_rule(sys.modules["kernels"].THEIRS)


def test_a_distribution_that_fails_to_register_its_rules_is_named(
    table: Callable[..., RuleTable[Any, Any]],
) -> None:
    table(theirs="kernels:fail")
    for _ in range(2):  # no plan is made without them
        with pytest.raises(RegistrationError, match=r"theirs of kernels, .*OSError: no such.*mend"):
            plan_for(lambda w, x: w + x, (X, X), CLUSTER)
