"""Makes one operator of a function, as `torch.library.custom_op` does; JAX has no such call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir


class CustomOp:
    """A function of arrays that is a primitive of its own.

    Args:
        function: As in `custom_op`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.primitive = Primitive(function.__name__)
        """The primitive that stands for a call in a trace."""

        self.primitive.multiple_results = True
        self.primitive.def_impl(self._run)
        self.primitive.def_abstract_eval(self._shapes)
        mlir.register_lowering(self.primitive, mlir.lower_fun(self._leaves, multiple_results=True))
        self._compiled: dict[tuple[str, ...], Callable[..., Any]] = {}
        """What runs a call outside a trace, by the names of the arguments that are not arrays."""

        update_wrapper(self, function)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """What the function returns."""
        leaves = self.primitive.bind(*arrays, **named)
        shapes = jax.eval_shape(partial(self._function, **named), *arrays)
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    def _leaves(self, *arrays: Any, **named: Any) -> list[Any]:
        return jax.tree.leaves(self._function(*arrays, **named))

    def _run(self, *arrays: Any, **named: Any) -> list[Any]:
        names = tuple(sorted(named))
        if names not in self._compiled:
            self._compiled[names] = jax.jit(self._leaves, static_argnames=names)
        return list(self._compiled[names](*arrays, **named))

    def _shapes(self, *arrays: Any, **named: Any) -> list[Any]:
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        results = jax.eval_shape(partial(self._leaves, **named), *shapes)
        return [jax.core.ShapedArray(array.shape, array.dtype) for array in results]


def custom_op(function: Callable[..., Any]) -> CustomOp:
    """Make a function of arrays one operator, for which `register_rule` says how it is sharded.

    The operators inside the function are not planned: a device calls the function on its parts of
    the arrays, so that the grid and the blocks of a Pallas kernel in it are those of the parts. The
    operator has no derivative: to differentiate it, combine one such function for forward and one
    for backward in a `jax.custom_vjp`.

    Args:
        function: Takes arrays and returns an array or a tree of arrays. Arguments that are not
            arrays are given by name and must be hashable.

    Examples:
        >>> import jax.numpy as jnp
        >>> @custom_op
        ... def scaled(x, *, by):
        ...     return x * by
        >>> jax.make_jaxpr(lambda x: scaled(x, by=2.0))(jnp.ones(3)).eqns[0].primitive
        scaled
        >>> scaled(jnp.ones(3), by=2.0)
        Array([2., 2., 2.], dtype=float32)
    """
    return CustomOp(function)
