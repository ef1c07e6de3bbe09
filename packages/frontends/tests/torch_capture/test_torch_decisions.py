"""Where a step's Python code decides by numbers of tensors, each call decides by its own."""

import copy
import math
from collections.abc import Callable
from typing import Any

import frontends.torch as mw
import pytest
import sympy
import torch
from costmodel import Cluster
from frontends import UnsupportedStepError
from frontends.torch.api import variants
from frontends.torch.base.draws import plain_draw
from frontends.torch.base.supposed import Answers, Decisions, OtherwiseError, Question
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim
from torch.nn import functional

torch.set_num_threads(1)
aten = torch.ops.aten
Step = Callable[[nn.Module, Any], Callable[[torch.Tensor], Any]]
BATCHES = [torch.full((4, 3), x) for x in (0.5, 2.0, 0.25, 3.0, 2.5, 0.125)]


def sgd(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), 0.1)


def check(
    make: Step,
    batches: list[torch.Tensor] = BATCHES,
    optimizer: Callable[[nn.Module], optim.Optimizer] = sgd,
    devices: int = 2,
) -> mw.ParallelStep:
    """Ours beside eager: what calls return, weights, and where random numbers go on."""
    torch.manual_seed(0)
    eager = nn.Linear(3, 2)
    model = copy.deepcopy(eager)
    cluster = Cluster.preset("virtual-cpu").resized(devices_per_host=devices)
    theirs, first = optimizer(eager), optimizer(model)
    step = make(eager, theirs)
    ours = mw.parallelize_step(make(model, first), model, first, cluster=cluster, microbatches=1)
    for batch in batches:
        torch.manual_seed(1)
        expected, state = step(batch), torch.get_rng_state()
        torch.manual_seed(1)
        found = ours(batch)
        assert torch.equal(torch.get_rng_state(), state)
        assert found == pytest.approx(expected, rel=1e-5, nan_ok=True)
        torch.testing.assert_close(model.weight, eager.weight, equal_nan=True)
    return ours


def deciding(decide: Callable[[torch.Tensor], Any]) -> Step:
    """A step that leaves out its update where something is so."""

    def make(model: nn.Module, optimizer: Any) -> Callable[[torch.Tensor], float]:
        def train(x: torch.Tensor) -> float:
            optimizer.zero_grad()
            loss = functional.dropout(model(x), 0.2).square().mean()
            if decide(loss):
                return -loss.item()
            loss.backward()
            optimizer.step()
            return loss.item()

        return train

    return make


@pytest.mark.parametrize("devices", [1, 2])
def test_an_update_is_left_out_where_the_loss_says_so(devices: int) -> None:
    step = check(deciding(lambda loss: loss.item() > 1.0), devices=devices)
    assert len(step.variants) == 2


@pytest.mark.parametrize(
    "decide",
    [
        lambda loss: not torch.isfinite(loss),
        lambda loss: not math.isfinite(loss.item()),
        lambda loss: math.isnan(loss.item()) or math.isinf(loss.item()),
        lambda loss: loss.item() != loss.item(),
        lambda loss: not loss.item() == loss.item(),  # noqa: SIM201
        lambda loss: loss.item() > 1.0 and loss.item() < 2.0,
        lambda loss: not (loss.item() < 2.0),
    ],
    ids=["torch", "finite", "nan_or_inf", "differs", "equals", "between", "not_less"],
)
def test_numbers_that_are_not_finite_decide_as_in_python(decide: Callable[..., Any]) -> None:
    check(deciding(decide), [*BATCHES[:2], BATCHES[0] * math.nan, BATCHES[2]])


def test_a_decision_by_a_random_number_is_that_of_each_call() -> None:
    check(deciding(lambda loss: torch.rand(()) < 0.5), BATCHES[:2])


def test_checks_of_values_fail_at_the_call_that_gives_wrong_ones() -> None:
    model = nn.Linear(3, 2)
    optimizer = sgd(model)

    def train(x: torch.Tensor) -> None:
        scale = model(x).square().sum(1) * x[:, 0]
        torch.distributions.Normal(0.0, scale).log_prob(torch.ones(())).sum().backward()
        optimizer.step()

    step = mw.parallelize_step(train, model, optimizer, microbatches=1)
    step(BATCHES[0])
    weight = model.weight.detach().clone()
    with pytest.raises(ValueError, match="Expected parameter scale"):
        step(-BATCHES[0])
    assert torch.equal(model.weight, weight)
    step(BATCHES[1])


def test_several_processes_refuse_to_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "join", lambda: 0)
    monkeypatch.setattr(variants, "default_cluster", lambda: None)
    model = nn.Linear(3, 2)
    step = deciding(lambda loss: loss.item() > 1.0)(model, sgd(model))
    with pytest.raises(UnsupportedStepError, match=r"several processes.*`if decide"):
        mw.parallelize_step(step, model, sgd(model))(BATCHES[0])


def test_a_loop_that_ends_by_its_numbers_is_refused_with_its_line() -> None:
    model = nn.Linear(3, 2)

    def train(x: torch.Tensor) -> None:
        while model(x).sum() < 3:
            x = x + 1
        for _ in range(100):
            if model(x).sum() < 3:
                x = x + 1

    with pytest.raises(UnsupportedStepError, match=r"decides by more than 64.*`if model"):
        mw.parallelize_step(train, model, sgd(model))(BATCHES[0])


def test_a_number_of_the_batch_decides_before_the_step_runs() -> None:
    def make(model: nn.Module, optimizer: Any) -> Callable[[torch.Tensor], float]:
        def train(x: torch.Tensor) -> float:
            optimizer.zero_grad()
            out = x
            for _ in range(int(x.max().long())):
                out = out.tanh()
            loss = model(out).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        return train

    step = check(make)
    assert len(step.variants) == 3
    assert not any(v.capture.captured.decisions.questions for v in step.variants)


def plainly(model: nn.Module, optimizer: Any) -> Callable[[torch.Tensor], float]:
    def train(x: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return train


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    ("kind", "options", "n_programs"),
    [
        (optim.RAdam, {"lr": 0.01}, 2),
        (optim.RAdam, {"lr": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.1}, 2),
        (optim.ASGD, {"lr": 0.1, "t0": 3}, 3),
        (optim.Adafactor, {"lr": 0.05, "weight_decay": 0.1}, 2),
        (optim.NAdam, {"lr": 0.01}, 1),
        (optim.Rprop, {"lr": 0.01}, 1),
    ],
)
def test_an_optimizer_that_asks_for_its_count_has_few_programs(
    kind: Any, options: dict[str, Any], n_programs: int, foreach: bool
) -> None:
    def optimizer(model: nn.Module) -> optim.Optimizer:
        return kind(model.parameters(), foreach=foreach, **options)

    step = check(plainly, [*BATCHES, *BATCHES[:4]], optimizer)
    assert len(step.variants) <= n_programs
    assert not any(v.capture.captured.decisions.questions for v in step.variants)


def test_a_step_may_look_without_training() -> None:
    def make(model: nn.Module, optimizer: Any) -> Callable[[torch.Tensor], float]:
        def look(x: torch.Tensor) -> float:
            with torch.no_grad():
                return model(x).square().mean().item()

        return look

    check(make, BATCHES[:2])


@given(st.integers(1, 5), st.data())
def test_another_attempt_comes_to_every_path_that_does_not_fail(depth: int, data: Any) -> None:
    wanted = data.draw(st.lists(st.booleans(), min_size=depth, max_size=depth))
    answers, condition = Answers(), sympy.Symbol("x") > 0
    for _ in range(2 * depth + 1):
        answers.begin()
        for answer in wanted:  # fails as soon as an answer is another one
            if answers.to(condition, lambda: "a line") != answer:
                break
        else:
            break
        assert answers.try_another()
    assert [question.answer for question in answers.asked] == wanted


@given(st.floats(), st.floats())
def test_answers_are_those_of_python(a: float, b: float) -> None:
    x, y = sympy.Symbol("x"), sympy.Symbol("y")
    told = {x < y: a < b, x <= y: a <= b, sympy.Eq(x, y): a == b, sympy.Ne(x, y): a != b}
    for condition, answer in told.items():
        Decisions((Question(condition, answer, ""),), (x,), (y,)).check((a,), (b,))
        with pytest.raises(OtherwiseError):
            Decisions((Question(condition, not answer, ""),), (x,), (y,)).check((a,), (b,))


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(
    ("function", "args"),
    [
        (aten.bernoulli.default, ()),
        (aten.multinomial.default, (1,)),
        (aten.multinomial.default, (1, True)),
        (aten.multinomial.default, (3,)),
        (aten.normal.Tensor_Tensor, (torch.rand(7, 5),)),
        (aten.normal.Tensor_float, (0.5,)),
    ],
)
def test_plain_draws_are_those_of_torch(
    function: Any, args: tuple[Any, ...], is_transposed: bool
) -> None:
    weights = torch.rand(5, 7).T if is_transposed else torch.rand(7, 5)
    state = torch.get_rng_state()
    expected, after = function(weights, *args), torch.get_rng_state()
    torch.set_rng_state(state)
    plain = plain_draw(function, (weights, *args), {})
    assert plain is not None
    assert torch.equal(plain(), expected)
    assert torch.equal(torch.get_rng_state(), after)
