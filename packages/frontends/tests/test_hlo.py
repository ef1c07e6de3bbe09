"""Collectives are read out of what XLA really compiles."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontends.errors import VerificationError
from frontends.jax.lower.hlo import collectives_of, parse_groups
from frontends.jax.lower.lower import jax_mesh
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec
from shardspec import Mesh

MESH = Mesh((2, 2), ("x", "y"))
WHOLE = PartitionSpec(None, None)


def compiled(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.float32
) -> str:
    """The program in which every device runs `function` on arrays of these shapes."""
    program = jax.shard_map(
        function,
        mesh=jax_mesh(MESH),
        in_specs=(WHOLE,) * len(shapes),
        out_specs=WHOLE,
        check_vma=False,
    )
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return str(jax.jit(program).lower(*arguments).compile().as_text())


X, Y = MESH.groups((0,)), MESH.groups((1,))
ALL = MESH.groups((0, 1))
CASES: dict[str, tuple[Callable[..., Any], str, tuple[tuple[int, ...], ...], int]] = {
    "all_reduce x": (lambda a: lax.psum(a, "x"), "all_reduce", X, 4 * 8 * 4),
    "all_reduce y": (lambda a: lax.psum(a, "y"), "all_reduce", Y, 4 * 8 * 4),
    "all_reduce both": (lambda a: lax.psum(a, ("x", "y")), "all_reduce", ALL, 4 * 8 * 4),
    "all_reduce max": (lambda a: lax.pmax(a, "y"), "all_reduce", Y, 4 * 8 * 4),
    "all_gather x": (
        lambda a: lax.all_gather(a, "x", axis=0, tiled=True), "all_gather", X, 8 * 8 * 4,
    ),
    "all_gather y": (
        lambda a: lax.all_gather(a, "y", axis=1, tiled=True), "all_gather", Y, 4 * 16 * 4,
    ),
    "all_gather both": (
        lambda a: lax.all_gather(a, ("x", "y"), axis=1, tiled=True), "all_gather", ALL, 4 * 32 * 4,
    ),
    "reduce_scatter x": (
        lambda a: lax.psum_scatter(a, "x", scatter_dimension=0, tiled=True),
        "reduce_scatter", X, 2 * 8 * 4,
    ),
    "reduce_scatter both": (
        lambda a: lax.psum_scatter(a, ("x", "y"), scatter_dimension=1, tiled=True),
        "reduce_scatter", ALL, 4 * 2 * 4,
    ),
    "all_to_all x": (
        lambda a: lax.all_to_all(a, "x", split_axis=1, concat_axis=0, tiled=True),
        "all_to_all", X, 4 * 8 * 4,
    ),
    "all_to_all y": (
        lambda a: lax.all_to_all(a, "y", split_axis=0, concat_axis=1, tiled=True),
        "all_to_all", Y, 4 * 8 * 4,
    ),
    "all_to_all both": (
        lambda a: lax.all_to_all(a, ("x", "y"), split_axis=1, concat_axis=0, tiled=True),
        "all_to_all", ALL, 4 * 8 * 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_reads_every_kind_of_collective(case: str) -> None:
    function, kind, groups, n_bytes = CASES[case]
    assert collectives_of(compiled(function, (4, 8))) == {(kind, groups, n_bytes): 1}


@pytest.mark.parametrize(
    ("dtype", "itemsize"), [(jnp.float32, 4), (jnp.int32, 4), (jnp.uint8, 1), (jnp.complex64, 8)]
)
def test_bytes_depend_on_the_type(dtype: Any, itemsize: int) -> None:
    text = compiled(lambda a: lax.all_gather(a, "x", tiled=True), (4, 8), dtype=dtype)
    assert collectives_of(text) == {("all_gather", X, 8 * 8 * itemsize): 1}


def test_collectives_that_xla_merges_count_one_by_one() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        return lax.psum(a, "x"), lax.psum(b, "x"), lax.psum(c, "x")

    text = compiled(function, (4, 8), (2, 2), (2, 2))
    assert text.count("all-reduce(") < 3  # if XLA stops merging, this test shows nothing
    assert collectives_of(text) == {("all_reduce", X, 128): 1, ("all_reduce", X, 16): 2}


def test_a_permute_is_read_from_its_pairs() -> None:
    n = len(X[0])
    text = compiled(lambda a: lax.ppermute(a, "x", [(i, (i + 1) % n) for i in range(n)]), (4, 8))
    assert collectives_of(text) == {("collective_permute", X, 128): 1}
    start = (
        "%p = (f32[4,8]{1,0}, f32[4,8]{1,0}, u32[], u32[]) collective-permute-start(%a), "
        "channel_id=1, source_target_pairs={{0,2},{1,1},{2,0}}"
    )
    assert collectives_of(start) == {("collective_permute", ((0, 2), (1,)), 128): 1}


def test_a_program_without_communication_has_none() -> None:
    assert collectives_of(compiled(lambda a: a + 1, (4, 8))) == {}


def test_asynchronous_collectives_count_when_they_start() -> None:
    start = (
        "%a = f32[4,8]{1,0} all-reduce-start(%p), channel_id=1, "
        "replica_groups={{0,1},{2,3}}, to_apply=%add"
    )
    done = "%b = f32[4,8]{1,0} all-reduce-done(%a)"
    assert collectives_of(f"{start}\n{done}") == {("all_reduce", ((0, 1), (2, 3)), 128): 1}


def test_an_asynchronous_gather_also_gives_its_operands() -> None:
    start = (
        "%a = ((f32[2,8]{1,0}, f32[3]{0}), (f32[4,8]{1,0}, f32[6]{0})) all-gather-start(%p, %q), "
        "channel_id=1, replica_groups=[2,2]<=[4], dimensions={0}, use_global_device_ids=true"
    )
    groups = ((0, 1), (2, 3))
    assert collectives_of(start) == {
        ("all_gather", groups, 128): 1,
        ("all_gather", groups, 24): 1,
    }


@given(st.permutations([2, 3, 4]), st.permutations(range(3)), st.integers(1, 2))
def test_iota_groups_are_a_transposed_count(dims: list[int], order: list[int], kept: int) -> None:
    count = np.arange(24).reshape(dims).transpose(order)
    n_groups = math.prod(count.shape[:kept])
    text = (
        f"[{n_groups},{24 // n_groups}]<=[{','.join(map(str, dims))}]T({','.join(map(str, order))})"
    )
    expected = tuple(tuple(int(n) for n in row) for row in count.reshape(n_groups, -1))
    assert parse_groups(text) == expected


def test_groups_may_be_listed_or_counted() -> None:
    assert parse_groups("{{0,1},{2,3}}") == parse_groups("[2,2]<=[4]") == ((0, 1), (2, 3))
    assert parse_groups("{{0,2},{1,3}}") == parse_groups("[2,2]<=[2,2]T(1,0)") == ((0, 2), (1, 3))
    assert parse_groups("{{0,1,2,3}}") == parse_groups("[1,4]<=[4]") == ((0, 1, 2, 3),)


def test_rejects_groups_in_an_unknown_spelling() -> None:
    with pytest.raises(VerificationError, match="replica groups cannot be read: <2>"):
        parse_groups("<2>")
