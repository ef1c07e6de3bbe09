"""Keys tell apart whatever differs, in arrays whose text is the same, too."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from frontends.base.cache_keys import cache_key
from frontends.jax.trace.microbatch import FlatProgram, compute_early
from frontends.torch.base.calls import Call
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import Primitive

N = 2_000
"""Elements; numpy writes 1,000 at most."""

scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, "1"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.tuples(inner, inner)
)


def with_middle(number: float) -> np.ndarray[Any, Any]:
    array = np.zeros(N)
    array[N // 2] = number
    return array


@given(values, values)
def test_keys_are_equal_for_what_is_written_alike_and_nothing_else(one: Any, other: Any) -> None:
    assert (cache_key(one) == cache_key(other)) == (repr(one) == repr(other))


@pytest.mark.parametrize("of", [np.asarray, jnp.asarray, torch.asarray], ids=["np", "jax", "torch"])
def test_arrays_that_differ_in_the_middle_differ(of: Any) -> None:
    one, other = of(with_middle(1.0)), of(with_middle(2.0))
    assert str(one) == str(other)
    assert cache_key({"table": [one]}) != cache_key({"table": [other]})
    assert cache_key({"table": [one]}) == cache_key({"table": [of(with_middle(1.0))]})


def test_shapes_and_types_of_arrays_count() -> None:
    array = np.zeros(N, np.float32)
    assert len({cache_key(a) for a in (array, array.reshape(2, -1), array.view(np.int32))}) == 3


def test_what_has_no_hash_has_no_key() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        cache_key([{1}])
    with pytest.raises(TypeError, match="an array of objects has no bytes"):
        cache_key(np.array([object()]))


@dataclass(eq=False)
class Table:
    """A static parameter, which JAX lets be anything that has a hash."""

    array: np.ndarray[Any, Any]


def test_equal_values_without_inputs_are_made_once_and_tables_each() -> None:
    look_up = Primitive("look_up")
    look_up.def_abstract_eval(lambda *, table: jax.core.ShapedArray((N,), np.float32))
    one, other = Table(with_middle(1.0)), Table(with_middle(2.0))
    assert str(one) == str(other)

    def made(*tables: Table) -> int:
        closed = jax.make_jaxpr(lambda: [look_up.bind(table=table) for table in tables])()
        flat = FlatProgram(closed, (0,) * len(tables))
        wanted = dict.fromkeys(closed.jaxpr.outvars)
        return len(compute_early(flat, [], wanted, {})[1].makes)

    assert (made(one, one), made(one, other)) == (1, 2)


def test_calls_differ_in_the_sign_of_zero_and_in_types() -> None:
    mul = torch.ops.aten.mul.Scalar
    keys = {Call(mul, (n,), {}).key for n in (0.0, -0.0, 0, False)}
    assert len(keys) == 4
