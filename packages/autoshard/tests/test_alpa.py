"""Enumerating strategies gives the parallel algorithms of the papers."""

import itertools
import math

import pytest
from autoshard import einsum, enumerate_strategies, rule_of
from shardspec import Layout, Mesh, Spec, reshard_whole_axes

MESH = Mesh((2, 2), ("x", "y"))


def strategy_of(rule, mapping, mesh_shape=(2, 2)):
    """The strategy that maps these factors (by their letters in the rule's text) to axes."""
    wanted = tuple(None if letter is None else ord(letter) - ord("a") for letter in mapping)
    (found,) = [s for s in enumerate_strategies(rule, mesh_shape) if s.mapping == wanted]
    return found


def communication(shape, spec):
    """The collectives that finish a result's partial sums: (kind, axes, bytes on a device)."""
    layout = Layout(shape, MESH, spec)
    plan = reshard_whole_axes(layout, Layout(shape, MESH, Spec(spec.dims)))
    return [(s.kind, s.mesh_axes, math.prod(layout.local_shape(0))) for s in plan.steps]


M = 4 * 4 * 4
B, I, K, J = "abcd"  # the factors of "bik,bkj->bij"  # noqa: E741


@pytest.mark.parametrize(
    ("mapping", "result", "operands", "cost"),
    [
        ((I, J), "RS0S1", ("RS0R", "RRS1"), []),
        ((I, K), "RS0R", ("RS0S1", "RS1R"), [("all_reduce", (1,), M // 2)]),
        ((J, K), "RRS0", ("RRS1", "RS1S0"), [("all_reduce", (1,), M // 2)]),
        ((B, I), "S0S1R", ("S0S1R", "S0RR"), []),
        ((B, K), "S0RR", ("S0RS1", "S0S1R"), [("all_reduce", (1,), M // 2)]),
        ((I, I), "RS01R", ("RS01R", "RRR"), []),
        ((K, K), "RRR", ("RRS01", "RS01R"), [("all_reduce", (0, 1), M)]),
    ],
    ids=[f"row{n}" for n in range(1, 8)],
)
def test_alpa_table_3(mapping, result, operands, cost):
    """Table 3 has seven rows: mapping, output spec, input specs, communication."""
    strategy = strategy_of(einsum("bik,bkj->bij", (4, 4, 4), (4, 4, 4)), mapping)
    (made,) = strategy.result_specs
    assert tuple(map(str, strategy.operand_specs)) == operands
    assert str(Spec(made.dims)) == result
    assert communication((4, 4, 4), made) == cost


CONVOLUTION = rule_of(
    "convolution",
    ((4, 8, 6, 6), (16, 8, 3, 3)),
    ((4, 16, 4, 4),),
    data=(0, 1, 2, 3),
    kernel=(0, 1, 2, 3),
    result=(0, 1, 2, 3),
)
N, C, O = "abc"  # batch, input and output channels  # noqa: E741


@pytest.mark.parametrize(
    ("mapping", "operands", "result"),
    [
        ((N, O), ("S0RRR", "S1RRR"), "S0S1RR"),
        ((N, C), ("S0S1RR", "RS1RR"), "S0RRR+P1"),
        ((O, C), ("RS1RR", "S0S1RR"), "RS0RR+P1"),
        ((N, N), ("S01RRR", "RRRR"), "S01RRR"),
        ((O, O), ("RRRR", "S01RRR"), "RS01RR"),
        ((C, C), ("RS01RR", "RS01RR"), "RRRR+P0+P1"),
    ],
)
def test_its_analogue_for_a_convolution(mapping, operands, result):
    strategy = strategy_of(CONVOLUTION, mapping)
    assert tuple(map(str, strategy.operand_specs)) == operands
    assert tuple(map(str, strategy.result_specs)) == (result,)


def test_a_convolution_has_no_other_algorithms():
    """Each axis splits the batch or one of the channel dims, carries partial sums, or repeats."""
    kinds = 3 + 2 + 1
    assert len(enumerate_strategies(CONVOLUTION, (2, 2))) == kinds**2


@pytest.mark.parametrize(
    ("mapping", "operand", "result"),
    [
        (("a", "b"), "S0S1R", "S0R+P1"),
        (("b", "b"), "RS01R", "RR+P0+P1"),
        (("a", "c"), "S0RS1", "S0S1"),
        (("a", "a"), "S01RR", "S01R"),
    ],
)
def test_its_analogue_for_a_reduction(mapping, operand, result):
    rule = rule_of("reduce_sum", ((4, 8, 4),), ((4, 4),), dims=(1,))
    strategy = strategy_of(rule, mapping)
    assert list(map(str, strategy.operand_specs)) == [operand]
    assert list(map(str, strategy.result_specs)) == [result]


def test_parts_of_a_maximum_combine_by_the_maximum():
    rule = rule_of("reduce_max", ((4, 8),), ((4,),), dims=(1,))
    assert str(strategy_of(rule, ("a", "b")).result_specs[0]) == "S0+Pmax1"


@pytest.mark.parametrize("primes", [(2, 2, 3), (2, 2, 2), (2, 3, 5)])
def test_autoddl_grids_come_out_on_a_mesh_of_prime_axes(primes):
    """AutoDDL 4.2.2: p = p0 * p1 * p2, I is (S0: p0, B: p1, S1: p2), W (B: p0, S1: p1, S0: p2).

    The result is (S0: p0, S1: p1, P: p2). Every factorization of p is there if the axes are prime.
    """
    n = math.prod(primes) * 2
    p = math.prod(primes)
    grids = set()
    rule = einsum("ik,kj->ij", (n, n), (n, n))  # factors i, k, j
    mesh = Mesh(primes, ("x", "y", "z"))
    for mapping in itertools.product("acb", repeat=3):
        strategy = strategy_of(rule, mapping, primes)
        p0, p1, p2 = (
            math.prod(size for size, f in zip(primes, mapping, strict=True) if f == factor)
            for factor in "acb"
        )
        left, right = strategy.operand_specs
        (result,) = strategy.result_specs
        assert Layout((n, n), mesh, left).shards == (p0, p2)
        assert Layout((n, n), mesh, right).shards == (p2, p1)
        assert Layout((n, n), mesh, result).shards == (p0, p1)
        assert math.prod(primes[axis] for axis in result.partial_axes) == p2
        grids.add((p0, p1, p2))
    divisors = [d for d in range(1, p + 1) if p % d == 0]
    assert grids == {g for g in itertools.product(divisors, repeat=3) if math.prod(g) == p}
