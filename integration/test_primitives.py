"""docs/primitives.md says what the tables of the code say, and what it says is true."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from frontends import AccumulationError, UnsupportedStepError
from frontends.jax.trace.trace import trace
from jax import lax
from jax.sharding import PartitionSpec
from launching import run
from primitives.table import primitives, rows

HERE = Path(__file__).resolve().parent
X = jnp.ones((8, 4))


def test_the_page_is_that_of_the_code() -> None:
    # In a process of its own, as libraries that other tests have imported have primitives, too.
    ended = run([sys.executable, str(HERE / "primitives"), "print"], deadline_s=120)
    assert ended.status == 0, ended.output
    page = (HERE.parent / "docs" / "primitives.md").read_text()
    is_of_this_version = f"JAX {jax.__version__} " in page
    assert page == ended.output or not is_of_this_version, "run `python integration/primitives`"


def test_each_primitive_is_in_one_row() -> None:
    names = [name for _, _, of_row in rows() for name in of_row]
    assert sorted(names) == sorted(p.name for p in primitives())
    assert all(of_row for _, _, of_row in rows())


def row_of(name: str) -> str:
    (title,) = (title for title, _, names in rows() if name in names)
    return title


def test_whole_primitives_run_in_one_microbatch_and_those_of_maps_are_refused() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            first = hessenberg(lax.stop_gradient(x @ w))
            return jnp.sum(x @ w * hessenberg(lax.stop_gradient(first @ w)))

        return w - jax.grad(loss)(w)

    def hessenberg(x: jax.Array) -> jax.Array:
        return lax.linalg.hessenberg(x.reshape(2, 4, 4))[0].reshape(8, 4)

    assert row_of("hessenberg") == "Whole"
    found = trace(step, (jnp.ones((4, 4)), X), batch_argnums=(1,), microbatches=1)
    assert "hessenberg" in {op.kind for op in found.step.graph.operators}
    with pytest.raises(AccumulationError, match="hessenberg"):
        trace(step, (jnp.ones((4, 4)), X), batch_argnums=(1,), microbatches=2)

    assert row_of("ppermute") == row_of("shard_map") == "Not in a step for one device"
    mesh = jax.make_mesh((1,), ("i",))
    mapped = jax.shard_map(
        lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec()
    )
    with pytest.raises(UnsupportedStepError, match="without shard_map"):
        trace(lambda w, x: w - mapped(x).sum(), (1.0, X), batch_argnums=(1,), microbatches=1)
