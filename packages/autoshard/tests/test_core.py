"""The parts of the compiled core, each compared with brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
from autoshard import evaluate
from autoshard._core import Arrays, Dual, Instance, Search, decided_by
from autoshard.problem._arrays import arrays_of, instance_of, problem_of
from autoshard.testing import brute_force, problems
from hypothesis import given
from hypothesis import strategies as st

limits = st.integers(0, 20).map(float)


@given(problems(max_nodes=5), limits)
def test_reduction_keeps_the_optimum(problem, limit):
    problem = replace(problem, usage_limit=limit)
    optimum, _ = brute_force(problem)
    instance = instance_of(problem)
    if not instance.possible:
        assert math.isinf(brute_force(replace(problem, usage_limit=None))[0])
        return
    rest, choice = brute_force(problem_of(instance))
    assert rest + instance.constant == pytest.approx(optimum)
    if choice is not None:
        judged = evaluate(problem, instance.expand(choice[: instance.n_nodes]))
        assert judged.feasible
        assert judged.cost == pytest.approx(optimum)


@given(problems(limited=False))
def test_elimination_is_exact(problem):
    optimum, _ = brute_force(problem)
    instance = instance_of(problem)
    assert instance.possible == math.isfinite(optimum)
    if instance.possible:
        choice = instance.expand(instance.eliminate(1e6))
        assert evaluate(problem, choice).cost == pytest.approx(optimum)


def test_elimination_gives_up_where_tables_would_be_too_big():
    random = np.random.default_rng(0)
    pairs = [(i, j) for i in range(5) for j in range(i)]
    tables = random.permutation(90).astype(float)
    arrays = Arrays(
        [3] * 5, np.zeros(15), np.zeros(15), [(0, 1)] * 5, pairs, tables, range(0, 90, 9), math.inf
    )
    assert Instance(arrays).eliminate(8) is None
    assert decided_by(arrays, 0, 8) is None


@given(problems(limited=False), st.data())
def test_what_a_root_decides_is_the_best_for_each_of_its_strategies(problem, data):
    root = data.draw(st.integers(0, problem.n_nodes - 1))
    choices = decided_by(arrays_of(problem), root, 1e6)
    for strategy, choice in enumerate(choices):
        assert choice[root] == strategy
        only = np.full(len(choices), np.inf)
        only[strategy] = problem.node_costs[root][strategy]
        costs = (*problem.node_costs[:root], only, *problem.node_costs[root + 1 :])
        optimum, _ = brute_force(replace(problem, node_costs=costs))
        assert evaluate(problem, choice).cost == pytest.approx(optimum)


@given(problems(max_nodes=5), limits)
def test_bounds_never_pass_the_optimum_nor_drop_it(problem, limit):
    problem = replace(problem, usage_limit=limit)
    instance = instance_of(problem)
    if not instance.possible or not instance.n_nodes:
        return
    optimum, _ = brute_force(problem)
    dual = Dual(instance)
    target = optimum if math.isfinite(optimum) else 100.0
    dual.step(target - instance.constant, 20)
    assert dual.bound + instance.constant <= optimum + 1e-9
    dual.try_prices([1.0] * instance.n_rows)
    assert dual.bound + instance.constant <= optimum + 1e-9
    if math.isfinite(optimum):
        smaller = instance.without(dual.dear(optimum - instance.constant))
        rest, _ = brute_force(problem_of(smaller))
        assert rest + smaller.constant == pytest.approx(optimum)


@given(problems(max_nodes=5), limits, st.integers(0, 3))
def test_what_the_search_calls_feasible_is(problem, limit, seed):
    problem = replace(problem, usage_limit=limit)
    instance = instance_of(problem)
    if not instance.possible or not instance.n_nodes:
        return
    optimum, _ = brute_force(problem)
    search = Search(instance, seed)
    search.start([0] * instance.n_nodes, [0.0] * instance.n_rows)
    for _ in range(10):
        search.sweep()
    if math.isinf(search.best_cost):
        return
    search.improve(1e4)
    judged = evaluate(problem, instance.expand(search.best))
    assert judged.feasible
    assert judged.cost == pytest.approx(search.best_cost + instance.constant)
    assert judged.cost >= optimum - 1e-9


GOOD = {
    "n_strategies": [2, 1],
    "costs": [0.0, 1.0, 2.0],
    "usages": [1.0, 0.0, 1.0],
    "intervals": [(0, 2), (1, 3)],
    "edges": [(0, 1)],
    "tables": [0.0, 3.0],
    "table_starts": [0],
    "limit": 1.0,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_strategies": [2, 0]}, "at least one strategy; node 1 has 0"),
        ({"n_strategies": [2, 2]}, "one entry a strategy; got 3 for 4"),
        ({"n_strategies": [2, 2**62]}, "at least one strategy"),
        ({"usages": [1.0]}, "a usage for each cost"),
        ({"intervals": [(0, 2)]}, "two ends for each interval"),
        ({"usages": [1.0, -1.0, 0.0]}, "finite and >= 0"),
        ({"costs": [0.0, math.nan, 0.0]}, "numbers or inf"),
        ({"edges": [(0, 2)]}, "two different nodes"),
        ({"edges": [(1, 1)]}, "two different nodes"),
        ({"table_starts": [1]}, "asks for 2 table entries from 1"),
        ({"table_starts": [-1]}, "asks for 2 table entries"),
        ({"tables": [0.0, math.nan]}, "numbers or inf"),
        ({"limit": math.nan}, "limit is a number"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Instance(Arrays(**(GOOD | change)))


def test_labels_prices_and_work_that_do_not_fit_are_refused():
    table = np.array([[0.0, 4.0], [3.0, 1.0]])
    arrays = Arrays(
        [2, 2],
        [0.0, 1.0, 2.0, 0.0],
        [3.0, 0.0] * 2,
        [(0, 1)] * 2,
        [(0, 1)],
        table.ravel(),
        [0],
        3.0,
    )
    instance = Instance(arrays)
    assert instance.n_nodes == 2
    search, dual = Search(instance, 0), Dual(instance)
    with pytest.raises(ValueError, match="one label a node"):
        instance.expand([0])
    with pytest.raises(ValueError, match="has labels 0 to 1; got 2"):
        search.start([0, 2], [0.0] * instance.n_rows)
    with pytest.raises(ValueError, match="finite price >= 0"):
        search.start([0, 0], [])
    with pytest.raises(ValueError, match="finite price >= 0"):
        dual.try_prices([math.inf] * instance.n_rows)
    with pytest.raises(ValueError, match="at most 1e9"):
        search.improve(math.inf)
    with pytest.raises(ValueError, match="target is finite"):
        dual.step(math.inf, 1)
    with pytest.raises(ValueError, match="one flag a label"):
        instance.without(np.zeros(1, dtype=bool))
    with pytest.raises(ValueError, match="one strategy a node"):
        instance.locate([0])
    with pytest.raises(ValueError, match="root is one of 2"):
        decided_by(arrays, 2, 100.0)
