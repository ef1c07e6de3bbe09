"""cuDNN's attention: seen while a step is traced on any machine, run where there is cuDNN.

`jax.nn.dot_product_attention(implementation="cudnn")` asks for cuDNN while it is traced, so that a
step which calls it could be planned only where it runs. While we trace, JAX is told that there is
a cuDNN, as new as a plan needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp

from frontends.jax.base import _compat
from frontends.jax.base.attention import Attention

Array = Any

_VERSION = 91100
"""Of cuDNN: it has kernels for all that JAX takes."""

FORWARD, BACKWARD = "dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"
"""The primitives by which JAX calls cuDNN."""

_BTNH, _BNTH = 0, 1
"""Orders of dims, as JAX numbers them."""


@contextmanager
def presumed() -> Iterator[None]:
    """Context in which JAX takes a cuDNN for present if the machine has none."""
    cudnn = _compat.cudnn_attention()
    if cudnn is None or cudnn.cuda_versions is not None:
        yield
        return
    answers = {
        "check_cudnn_version": lambda: _VERSION,
        "check_compute_capability": lambda capability: True,
    }
    before = {name: getattr(cudnn, name) for name in answers}
    for name, answer in answers.items():
        setattr(cudnn, name, answer)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(cudnn, name, function)


def primitive(name: str) -> Any:
    """The primitive of this name, one of `FORWARD` and `BACKWARD`; None if JAX has none."""
    letters = "f" if name == FORWARD else "b"
    return getattr(_compat.cudnn_attention(), f"_dot_product_attention_{letters}wd_p_wrapper", None)


def read(
    params: Mapping[str, Any], operands: Sequence[Array]
) -> tuple[Attention, tuple[int, ...], bool] | None:
    """What an equation of cuDNN computes.

    Args:
        params: The parameters of the equation.
        operands: Its operands, or their shapes.

    Returns:
        The attention; which operands it reads; whether heads come before rows. None if it is more
        than that, such as packed sequences or dropout.
    """
    has_bias, bias_gradient = params["variadic_args"]
    mask = params["mask_type"].name
    is_packed, is_paged = (operands[place].shape != (0,) for place in (6, 8))
    if params["dropout_rate"] or mask == "ALIBI" or is_packed or is_paged:
        return None
    has_lengths = "PADDING" in mask
    places = [0, 1, 2, *[3] * has_bias, *[4, 5] * has_lengths, *range(10, len(operands))]
    window = params["sliding_window_length"] or None
    how = Attention(
        float(params["scale"]),
        "CAUSAL" in mask or window is not None,  # a window ends at the row itself
        window,
        has_bias,
        has_lengths,
        has_bias and bias_gradient,
    )
    return how, tuple(places), params["layout"] == _BNTH


def can_run(dtype: Any) -> bool:
    """Whether cuDNN has a kernel for numbers of this type."""
    return dtype in (jnp.bfloat16, jnp.float16)


def forward(operands: Sequence[Array], how: Attention) -> list[Array]:
    """What `attention.attend` returns, by cuDNN."""
    primitive = _compat.cudnn_attention()._dot_product_attention_fwd_p
    return list(primitive.bind(*_all(operands, how), **_params(how), is_training=True))


def backward(operands: Sequence[Array], how: Attention) -> list[Array]:
    """What `attention.attend_backward` returns, by cuDNN."""
    *first, statistics, result, gradient = operands
    primitive = _compat.cudnn_attention()._dot_product_attention_bwd_p
    made = primitive.bind(
        *_all(first, how), statistics, result, gradient.astype(result.dtype), **_params(how)
    )
    return list(made)


def _all(operands: Sequence[Array], how: Attention) -> list[Array]:
    """The operands with cuDNN's empty arrays for all that is not used."""
    queries, keys, values, *more = operands
    empty = jnp.zeros(0, queries.dtype)
    bias = more.pop(0) if how.has_bias else empty
    return [queries, keys, values, bias, *(more or (empty, empty)), *[empty] * 4]


def _params(how: Attention) -> dict[str, Any]:
    kind = ("PADDING_" * how.has_lengths + "CAUSAL" * how.is_causal).strip("_") or "NO_MASK"
    return {
        "scale": how.scale,
        "seed": 42,
        "dropout_rate": 0.0,
        "variadic_args": (how.has_bias, how.bias_gradient),
        "mask_type": _compat.cudnn_attention().MaskType[kind],
        "layout": _BTNH,
        "sliding_window_length": how.window,
    }
