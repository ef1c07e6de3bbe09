"""Rules of users' own operators: what they say is planned and run, what cannot be is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from costmodel import Cluster
from frontends.errors import (
    ArgumentError,
    RegistrationError,
    UnsupportedStepError,
    VerificationError,
)
from frontends.torch import check_rules, parallelize_step, plan_for, register_rule
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import TensorType
from frontends.torch.capture.capture import training_step
from frontends.torch.rules.rules import Rules, call_of_part, has_rule, rule_of
from torch import nn

CLUSTER = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=4)
Tensor = torch.Tensor


@torch.library.custom_op("tests::scaled_softmax", mutates_args=())
def scaled_softmax(x: Tensor, scale: float) -> Tensor:
    return (x * scale).softmax(-1)


@torch.library.custom_op("tests::scaled_softmax_gradient", mutates_args=())
def scaled_softmax_gradient(gradient: Tensor, y: Tensor, scale: float) -> Tensor:
    return scale * y * (gradient - (gradient * y).sum(-1, keepdim=True))


@torch.library.custom_op("tests::relu", mutates_args=())
def relu(x: Tensor) -> Tensor:
    """What aten's is not: it needs all of a row."""
    return x.cumsum(-1)


@torch.library.custom_op("tests::tiled", mutates_args=())
def tiled(x: Tensor, n: int) -> Tensor:
    return x.repeat(n, 1)


@torch.library.custom_op("tests::shifted", mutates_args=())
def shifted(x: Tensor, by: int, wrap: bool = True) -> Tensor:
    return x.roll(by, -1)


@torch.library.custom_op("tests::doubled", mutates_args=("x",))
def doubled(x: Tensor) -> Tensor:
    return x.mul_(2).clone()


for made in (scaled_softmax, scaled_softmax_gradient, relu, doubled):
    made.register_fake(lambda x, *more: torch.empty_like(x))
tiled.register_fake(lambda x, n: x.new_empty(n, x.shape[-1]))


def keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.scale = inputs[1]


def gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return scaled_softmax_gradient(gradient, *ctx.saved_tensors, ctx.scale), None


scaled_softmax.register_autograd(gradient, setup_context=keep)


class Model(nn.Module):
    """A user's operator between two layers."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(64, 256), nn.Linear(256, 64), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


def step_of(between: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    """A step, a model, its optimizer and a batch."""
    model = Model(between)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = training_step(lambda model, batch: model(batch).square().mean())
    return step, model, optimizer, torch.linspace(-1, 1, 256 * 64).reshape(256, 64)


def kind(*shape: int) -> TensorType:
    return TensorType(shape, torch.float32)


def test_a_custom_operator_is_sharded_once_it_has_a_rule() -> None:
    def between(x: Tensor) -> Tensor:
        return scaled_softmax(x, 0.5)

    step, model, optimizer, batch = step_of(between)
    options: Any = {"cluster": CLUSTER, "strategy": "data_parallel"}
    names = ("tests::scaled_softmax", "tests::scaled_softmax_gradient")
    with pytest.warns(match="no sharding rule for tests::scaled_softmax.* register_rule adds"):
        whole = plan_for(step, model, optimizer, batch, microbatches=1, **options).plan
    assert whole.unsharded == names

    register_rule(scaled_softmax, "...k->...k", whole="k")
    register_rule(names[1], "...k,...k->...k", whole="k", linear=((0,),))
    parallel = parallelize_step(step, model, optimizer, microbatches=2, **options)
    _, eager, its_optimizer, _ = step_of(between)
    for _ in range(2):
        ours = parallel(model, optimizer, batch)
        assert torch.allclose(ours, step(eager, its_optimizer, batch))
    assert parallel.plan.unsharded == ()
    (stage,) = parallel.plan.stages
    found = [p for p in stage.placements if p.operator.startswith("tests::scaled_softmax.")]
    assert found
    assert "RR" not in {str(p.results[0]) for p in found}


def test_a_librarys_operator_is_not_the_one_of_atens_with_its_name() -> None:
    call = Call(torch.ops.tests.relu.default, (Operand(0),), {})
    assert not has_rule(call.name)
    assert {f.kind for f in rule_of(call, [kind(4, 8)], [kind(4, 8)]).factors} == {"whole"}


def test_arguments_that_hold_shapes_are_those_of_the_part() -> None:
    register_rule(tiled, "k->rk", linear=((0,),), part=lambda call: {"n": call.results[0][0]})
    call = Call(torch.ops.tests.tiled.default, (Operand(0), 4), {})
    assert str(rule_of(call, [kind(8)], [kind(4, 8)])) == "(a)->(b,a) {a=8, b=4} linear {0}"
    assert call_of_part(call, [(8,)], [(2, 8)]).argument("n") == 2


def test_a_rule_that_comes_later_is_used_from_then_on() -> None:
    call, rules = Call(torch.ops.tests.relu.default, (Operand(0),), {}), Rules(masked=True)
    kinds = [kind(4, 8)], [kind(4, 8)]
    assert [f.kind for f in rules.of(call, *kinds)[0].factors] == ["whole"] * 4
    register_rule("tests::relu", "rk->rk", whole="k")
    assert [f.kind for f in rules.of(call, *kinds)[0].factors] == ["parallel", "whole"]


def test_the_arguments_that_are_no_tensors_are_known_by_name() -> None:
    def rule(call: Any) -> Any:
        raise ValueError(f"{call.operands} {call.results} {dict(call.attributes)}")

    register_rule(shifted, rule)
    call = Call(torch.ops.tests.shifted.default, (Operand(0), 3), {})
    with pytest.raises(ValueError, match=r"\(\(8,\),\) \(\(8,\),\) {'by': 3, 'wrap': True}"):
        rule_of(call, [kind(8)], [kind(8)])


@pytest.mark.parametrize("operator", ["nothing", "tests::nothing", len, None, torch.relu])
def test_a_rule_is_that_of_an_operator(operator: Any) -> None:
    with pytest.raises(RegistrationError, match=r"a rule belongs to an operator that .*; got "):
        register_rule(operator, "...->...")


def test_an_operator_has_one_rule() -> None:
    register_rule("tests::doubled", "...b->...b", whole="b")
    register_rule(torch.ops.tests.doubled, "...b->...b", whole="b")
    with pytest.raises(RegistrationError, match=r"has one rule.*; tests::doubled has another"):
        register_rule(doubled, "...b->...b")
    with pytest.raises(RegistrationError, match=r"has one rule.*; add has another one"):
        register_rule("aten::add", "...,...->...")


def test_a_rule_that_does_not_fit_is_refused_where_it_is_planned() -> None:
    @torch.library.custom_op("tests::misfit", mutates_args=())
    def misfit(x: Tensor) -> Tensor:
        return x.clone()

    misfit.register_fake(torch.empty_like)
    misfit.register_autograd(lambda context, gradient: gradient)
    register_rule(misfit, "a->a")
    with pytest.raises(UnsupportedStepError, match=r"misfit.*one letter a dim; got 'a' for shape"):
        plan_for(*step_of(misfit), CLUSTER)


def test_an_operator_that_writes_to_what_it_is_given_is_refused() -> None:
    step, model, optimizer, batch = step_of(lambda x: x + doubled(x.detach()))
    with pytest.raises(UnsupportedStepError):
        plan_for(step, model, optimizer, batch, CLUSTER)


OPERATORS = torch.library.Library("tried", "DEF")


def new_op(name: str, function: Callable[[Tensor], Tensor]) -> Any:
    """An operator that no other test has."""
    OPERATORS.define(f"{name}(Tensor x) -> Tensor")
    OPERATORS.impl(name, function, "CompositeExplicitAutograd")
    return getattr(torch.ops.tried, name)


@pytest.mark.parametrize(
    ("name", "function", "formula", "named", "is_right"),
    [
        ("rows", lambda x: x.softmax(-1), "rk->rk", {}, False),
        ("whole_rows", lambda x: x.softmax(-1), "rk->rk", {"whole": "k"}, True),
        ("squared", lambda x: x**2, "rk->rk", {"linear": ((0,),)}, False),
        ("twice", lambda x: 2 * x, "rk->rk", {"linear": ((0,),)}, True),
        ("summed_largest", lambda x: x.amax(1), "rk->r", {}, False),
        ("largest", lambda x: x.amax(1), "rk->r", {"reduction": "max"}, True),
        ("joined", lambda x: x.repeat(2, 1), "rk->nk", {}, False),
        ("in_eight", lambda x: 2 * x.reshape(8, 16), "rk->rk", {}, False),
    ],
)
def test_a_rule_is_tried_in_every_way_that_it_allows(
    name: str, function: Any, formula: str, named: Any, is_right: bool
) -> None:
    x = torch.linspace(-1, 1, 128).reshape(8, 16)
    op = new_op(name, function)
    register_rule(op, formula, **named)
    if is_right:
        assert check_rules(op, x)[f"tried::{name}"] > 2
        assert 1 <= sum(check_rules(op, x, at_most=1).values()) < sum(check_rules(op, x).values())
        return
    how = r"(runs whole|instead of .*|fails with \w+: .*), run as"
    with pytest.raises(VerificationError, match=rf"tried::{name}, with the rule '.*{how}"):
        check_rules(op, x)


def test_rules_of_gradients_are_tried_where_a_tensor_requires_one() -> None:
    x = torch.linspace(-1, 1, 64).reshape(8, 8)
    forward = check_rules(lambda x: x.tanh(), x)
    assert forward.keys() == {"tanh"}
    both = check_rules(lambda x: x.tanh(), x.clone().requires_grad_())
    assert both.keys() > forward.keys()
    with pytest.raises(ArgumentError, match=r"tried on tensors; got 3"):
        check_rules(torch.tanh, 3)
    with pytest.raises(ArgumentError, match=r"at least one strategy .*; got at_most=0: give"):
        check_rules(torch.tanh, x, at_most=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_rules_are_tried_in_types_that_are_narrow_or_none_of_numpy(dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 64).reshape(8, 8).to(dtype)
    assert check_rules(lambda x: (x @ x.conj()).sum(), x)["mm"] > 2


@pytest.mark.parametrize("shape", [(), (0, 4), (1, 4), (3, 5)])
def test_rules_are_tried_in_any_shape(shape: tuple[int, ...]) -> None:
    assert check_rules(torch.tanh, torch.ones(shape))["tanh"] >= 1
