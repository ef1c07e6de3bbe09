"""How to plan: one value, which all that plan take; options that mean nothing are refused."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import frontends.jax as mw
import frontends.torch
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from costmodel import Cluster
from frontends import PlanOptions
from frontends.answer.plan import Plan
from frontends.errors import BatchError, PlanError
from frontends.jax import plan_for
from frontends.plan.schedule import names_that_run
from frontends.search.candidates import BASELINES, EQUAL_LAYERS, SEARCH
from frontends.search.plan_options import STRATEGIES, PlanKeywords
from hypothesis import given
from hypothesis import strategies as st

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
W = jnp.ones((8, 8))
X = np.ones((8, 8), np.float32)


def step(w: Any, x: Any) -> Any:
    """One step of gradient descent."""
    value, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient, value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": "two-hosts"}, r"cluster is a Cluster; got cluster='two-hosts'"),
        ({"plan": "plan.json"}, r"plan is a Plan; got plan='plan.json': Plan.load"),
        ({"pin": [("a", "b")]}, r"pin is a Mapping; got pin=\[\('a', 'b'\)\]"),
        ({"memory_bytes": "1GiB"}, r"memory_bytes is a whole number .*got memory_bytes='1GiB'"),
        ({"n_layers": 0}, r"n_layers is a whole number from 1 on, or None; got n_layers=0"),
        ({"microbatches": "2"}, r"microbatches is how many .*got microbatches='2'"),
        ({"microbatches": True}, r"got microbatches=True"),
        ({"microbatches": 2.0}, r"got microbatches=2.0"),
        ({"batch_argnums": "1"}, r"batch_argnums is the number .*got batch_argnums='1'"),
    ],
)
def test_what_cannot_be_planned_with_is_refused_before_anything_is_traced(
    options: dict[str, Any], message: str
) -> None:
    def untraceable(*arguments: Any) -> None:
        raise AssertionError

    with pytest.raises((PlanError, BatchError), match=message):
        plan_for(untraceable, (W, X), **({"cluster": CLUSTER} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "best"}, r"a strategy is one of auto, search, .*; got 'best'"),
        ({"schedule": "zigzag"}, r"a schedule is one of gpipe, 1f1b, .*; got 'zigzag'"),
        ({"level": "O4"}, r"a level is one of O2, O3; got 'O4'"),
        ({"memory_rule": None}, r"a memory_rule is one of limit, largest; got None"),
    ],
)
@pytest.mark.parametrize("make", [PlanOptions, mw.parallelize])
def test_a_name_that_there_is_not_is_refused_where_it_is_given(
    options: dict[str, Any], message: str, make: Callable[..., Any]
) -> None:
    with pytest.raises(PlanError, match=message):
        make(**options)


@pytest.mark.parametrize(
    "function",
    [
        mw.parallelize,
        mw.plan_for,
        frontends.torch.parallelize,
        frontends.torch.parallelize_step,
        frontends.torch.plan_for,
    ],
    ids=lambda function: f"{function.__module__}.{function.__name__}",
)
def test_signatures_have_every_option(function: Callable[..., Any]) -> None:
    found = inspect.signature(function).parameters
    assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in found.values())
    for field in dataclasses.fields(PlanOptions):
        assert found[field.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert found[field.name].default == field.default
    with pytest.raises(TypeError, match=r"microbatches, .*; got microbatch: did you mean microb"):
        function(**dict.fromkeys(_required(found)), microbatch=2)


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, p in parameters.items() if p.default is inspect.Parameter.empty]


def test_editors_know_every_option() -> None:
    assert get_type_hints(PlanKeywords) == get_type_hints(PlanOptions)
    assert set(STRATEGIES) == {"auto", SEARCH, *BASELINES, EQUAL_LAYERS}


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "microbatches": st.integers(1, 64),
            "strategy": st.sampled_from(STRATEGIES),
            "schedule": st.sampled_from([None, *names_that_run()]),
            "memory_bytes": st.integers(1, 1 << 40),
            "level": st.sampled_from(["O2", "O3"]),
            "pin": st.dictionaries(st.text(max_size=4), st.sampled_from(["RS0", 1])),
        },
    )
)
def test_options_are_made_of_their_keywords_and_of_their_text(options: dict[str, Any]) -> None:
    made = PlanOptions(**options)
    assert PlanOptions(**made.keywords()) == made == eval(repr(made))
    assert all(getattr(made, name) == value for name, value in options.items())
    assert set(made.keywords()) <= set(options)


def test_pins_are_those_that_were_given() -> None:
    given = {"w": "RS0"}
    made = PlanOptions(pin=given)
    given["w"] = "S0R"
    assert made.pin == {"w": "RS0"}


@pytest.mark.parametrize("cluster", ["two-hosts", 0])
def test_what_is_no_cluster_is_refused_where_it_is_given(cluster: Any) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(PlanError, match=f"cluster is a Cluster; got cluster={cluster!r}"):
        mw.parallelize(step, cluster=cluster)
    with pytest.raises(PlanError, match=f"cluster is a Cluster; got cluster={cluster!r}"):
        frontends.torch.parallelize(model, optimizer, lambda model, x: model(x), cluster=cluster)


def test_one_number_is_batch_argnums_too() -> None:
    planned = plan_for(step, (W, X), CLUSTER, microbatches=2, batch_argnums=1)
    assert planned.plan == plan_for(step, (W, X), CLUSTER, microbatches=2).plan
    with pytest.raises(BatchError, match="got microbatches=4, and the plan has 2"):
        plan_for(step, (W, X), CLUSTER, microbatches=4, plan=planned.plan)


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("S9R", r"a stage's mesh has axes 0 to 1; got 'S9R' for 'w'"),
        (4, r"on 4 devices make \d at most; got 4 for 'w'"),
    ],
)
def test_pins_that_no_stage_can_have_are_refused_before_the_search(
    pin: str | int, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        plan_for(step, (W, X), CLUSTER, microbatches=2, pin={"w": pin})


def test_what_asks_for_another_plan_than_is_given_is_refused(example_plan: Plan) -> None:
    asked = PlanOptions(strategy="zero", pin={"w": "RS0"}, level="O3")
    plan = dataclasses.replace(example_plan, options=asked.asked())
    assert plan.options == (("strategy", "'zero'"), ("level", "'O3'"), ("pin", "{'w': 'RS0'}"))
    assert str(plan).splitlines()[3] == "Asked for: strategy='zero', level='O3', pin={'w': 'RS0'}"
    assert "Asked for: strategy=&#x27;zero&#x27;" in plan.html()
    assert dataclasses.replace(asked, plan=plan).plan is plan
    for name, value in {"strategy": "megatron", "schedule": "gpipe", "n_layers": 3}.items():
        with pytest.raises(PlanError, match=rf"without changes; got {name}={value!r} with a plan"):
            PlanOptions(plan=plan, **{name: value})
    with pytest.raises(PlanError, match="got strategy='zero' with a plan that was searched w"):
        PlanOptions(plan=example_plan, strategy="zero")
