"""Every model of the zoo is traced, planned and run, and equals one device in five steps."""

import functools

import frontends.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontends.jax.rules.rules import whole_share
from frontends.jax.trace.trace import trace
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import bert, gpt, moe, vit
from zoo.cases import SMALL
from zoo.check import ONE_HOST, TOLERANCE, TWO_HOSTS, check
from zoo.example import n_parameters

frontends.jax.init(8)  # before anything else uses JAX

STRATEGIES = ("search", "data_parallel", "megatron", "zero", "equal_layers")
CLUSTERS = {"4": ONE_HOST, "2x2": TWO_HOSTS}
DAILY = {
    *(("gpt", "2x2", strategy) for strategy in ("search", "equal_layers")),
    *(("gpt", "4", strategy) for strategy in ("data_parallel", "megatron", "zero")),
    ("moe", "2x2", "search"),
    ("bert", "2x2", "search"),
    ("vit", "4", "megatron"),
    ("vgg13", "2x2", "equal_layers"),
    ("gpt, scan with dropout and remat", "2x2", "equal_layers"),
}
"""Cases with every strategy and every kind of model at least once; all others run at night."""

PAPERS = [
    (gpt, "gpt-350m", 0.35e9),
    (gpt, "gpt-1.3b", 1.3e9),
    (gpt, "gpt-2.6b", 2.6e9),
    (gpt, "gpt-6.7b", 6.7e9),
    (gpt, "gpt-15b", 15e9),
    (gpt, "gpt-39b", 39e9),
    (moe, "moe-380m", 0.38e9),
    (moe, "moe-1.3b", 1.3e9),
    (moe, "moe-2.4b", 2.4e9),
    (moe, "moe-10b", 10e9),
    (moe, "moe-27b", 27e9),
    (moe, "moe-70b", 70e9),
    (bert, "bert-base", 110e6),
    (bert, "bert-large", 340e6),
    (vit, "vit-base-16", 86e6),
    (vit, "vit-large-16", 307e6),
    (vit, "vit-huge-14", 632e6),
]


@pytest.mark.parametrize(
    ("module", "name", "published"), PAPERS, ids=[name for _, name, _ in PAPERS]
)
def test_models_are_as_large_as_the_papers_say(module, name, published):
    params = jax.eval_shape(lambda key: module.init(module.CONFIGS[name], key), jax.random.key(0))
    assert n_parameters(params) == pytest.approx(published, rel=0.04)


@pytest.mark.parametrize("name", SMALL)
def test_every_primitive_has_a_rule(name):
    example = SMALL[name].example()
    traced = trace(
        example.step,
        example.arguments,
        batch_argnums=example.batch_argnums,
        microbatches=SMALL[name].microbatches,
    )
    assert whole_share(traced.equations.values()) == 0.0


def combinations():
    """Every model on each cluster with each strategy."""
    for name, case in SMALL.items():
        strategies = {**dict.fromkeys(STRATEGIES, case.microbatches), "auto": None}
        for cluster in CLUSTERS:
            for strategy, microbatches in strategies.items():
                marks = [] if (name, cluster, strategy) in DAILY else [pytest.mark.nightly]
                yield pytest.param(name, cluster, strategy, microbatches, marks=marks)


@functools.cache
def one_device(name):
    return SMALL[name].reference()


@pytest.mark.parametrize(("name", "cluster", "strategy", "microbatches"), list(combinations()))
def test_five_steps_of_a_plan_equal_those_of_one_device(name, cluster, strategy, microbatches):
    checked = check(
        SMALL[name].example(),
        CLUSTERS[cluster],
        strategy=strategy,
        microbatches=microbatches,
        reference=one_device(name),
    )
    assert checked.plan.unsharded == ()
    assert checked.difference <= TOLERANCE
    if (cluster, strategy) == ("2x2", "equal_layers"):
        assert [stage.mesh.size for stage in checked.plan.stages] == [2, 2]


@given(st.integers(0, 99), st.sampled_from([(1, 4, 2, 1), (2, 8, 4, 3), (1, 6, 3, 6)]))
@settings(max_examples=settings().max_examples // 4)
def test_a_token_goes_to_its_two_best_experts_as_long_as_these_have_free_places(seed, sizes):
    groups, tokens, n_experts, capacity = sizes
    gates = np.random.default_rng(seed).dirichlet(np.ones(n_experts), (groups, tokens))
    weights, _ = moe.route(jnp.asarray(gates, jnp.float32), capacity)
    expected = np.zeros((groups, tokens, n_experts, capacity))
    for g in range(groups):
        order = np.argsort(-gates[g], axis=1)
        free = dict.fromkeys(range(n_experts), 0)
        places = {}
        for choice in (0, 1):  # all first choices come before any second one
            for token in range(tokens):
                expert = order[token, choice]
                places[token, choice] = expert, free[expert]
                free[expert] += 1
        for token in range(tokens):
            kept = [places[token, choice] for choice in (0, 1)]
            kept = [(expert, place) for expert, place in kept if place < capacity]
            total = sum(gates[g, token, expert] for expert, _ in kept)
            for expert, place in kept:
                expected[g, token, expert, place] = gates[g, token, expert] / total
    np.testing.assert_allclose(weights, expected, atol=1e-5)
