import pytest
from autoshard import Factor, Rule, einsum, elementwise, enumerate_strategies, reshape, stored_specs
from autoshard.testing import cases, check_strategy, meshes
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Layout, Mesh


@pytest.mark.parametrize(
    ("mapping", "operands", "result"),
    [
        ("f1->0, f3->1", ("RS0R", "RRS1"), "RS0S1"),
        ("f1->0, f2->1", ("RS0S1", "RS1R"), "RS0R+P1"),
        ("f3->0, f2->1", ("RRS1", "RS1S0"), "RRS0+P1"),
        ("f0->0, f1->1", ("S0S1R", "S0RR"), "S0S1R"),
        ("f0->0, f2->1", ("S0RS1", "S0S1R"), "S0RR+P1"),
        ("f1->{0,1}", ("RS01R", "RRR"), "RS01R"),
        ("f2->{0,1}", ("RRS01", "RS01R"), "RRR+P0+P1"),
    ],
)
def test_alpa_table_3_comes_out(mapping, operands, result):
    rule = einsum("bik,bkj->bij", (4, 4, 4), (4, 4, 4))  # factors b, i, k, j
    strategies = {str(s): s for s in enumerate_strategies(rule, (2, 2))}
    strategy = strategies[mapping]
    assert tuple(map(str, strategy.operand_specs)) == operands
    assert tuple(map(str, strategy.result_specs)) == (result,)


def test_batched_matmul_has_all_mappings_and_no_more():
    rule = einsum("bik,bkj->bij", (4, 4, 4), (4, 4, 4))
    strategies = enumerate_strategies(rule, (2, 2))
    assert len({s.mapping for s in strategies}) == len(strategies) == (1 + 4 + 2) ** 2


def test_the_first_strategy_is_replicated_work():
    assert str(enumerate_strategies(einsum("ij->j", (4, 4)), (2, 2))[0]) == "replicated"


@settings(max_examples=3 * settings().max_examples)
@given(cases(), meshes(), st.data())
def test_every_strategy_computes_the_right_result(case, mesh, data):
    strategies = enumerate_strategies(case.rule, mesh.shape)
    strategy = data.draw(st.sampled_from(strategies))
    check_strategy(
        case.rule,
        case.run,
        mesh,
        strategy,
        operands=case.operands,
        seed=data.draw(st.integers(0, 99)),
    )


@given(cases(), meshes())
def test_strategies_split_evenly_and_use_no_axis_twice(case, mesh):
    for strategy in enumerate_strategies(case.rule, mesh.shape):
        for specs, shapes in (
            (strategy.operand_specs, case.rule.operand_shapes),
            (strategy.result_specs, case.rule.result_shapes),
        ):
            for spec, shape in zip(specs, shapes, strict=True):
                assert Layout(shape, mesh, spec).is_even


def test_a_minor_factor_is_split_only_behind_a_fully_split_one():
    texts = {str(s) for s in enumerate_strategies(reshape((2, 4), (8,)), (2, 2))}
    assert "f0->0, f1->1" in texts
    assert "f1->0" not in texts
    assert "f0->{0,1}" not in texts  # a factor of 2 over 4 devices


def test_an_axis_of_size_one_does_nothing():
    rule = elementwise(((4,),), (4,), linear=((0,),))
    assert {s.mapping[0] for s in enumerate_strategies(rule, (1, 2))} == {None}


def test_whole_factors_are_never_split():
    rule = Rule((Factor(4, "whole"), Factor(4)), (((0,), (1,)),), (((0,), (1,)),))
    assert {s.mapping for s in enumerate_strategies(rule, (2,))} == {(None,), (1,)}


@given(meshes(), st.lists(st.sampled_from([0, 1, 2, 3, 4, 8]), max_size=3))
def test_stored_specs_are_distinct_and_even_and_begin_replicated(mesh, shape):
    specs = stored_specs(tuple(shape), mesh.shape)
    assert len(set(specs)) == len(specs)
    assert not specs[0].axes
    for spec in specs:
        layout = Layout(tuple(shape), mesh, spec)
        assert layout.is_even
        assert not spec.is_partial


def test_stored_specs_of_a_matrix_on_a_square_mesh_are_those_of_alpa_table_1():
    mesh = Mesh((2, 2), ("x", "y"))
    assert {str(s) for s in stored_specs((4, 4), mesh.shape)} == {
        "RR", "S0S1", "S1S0", "S0R", "S1R", "RS0", "RS1", "S01R", "RS01",
    }  # fmt: skip
