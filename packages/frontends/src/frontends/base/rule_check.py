"""Check an operator's rule: run on shards, the operator must compute what it does unsharded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from autoshard import Rule, Strategy, enumerate_strategies
from numpy.typing import NDArray
from shardspec import Layout, Mesh, assemble

from frontends.errors import ArgumentError, VerificationError

MESH = Mesh((2, 2), ("x", "y"))
"""The mesh on which rules are tried. It splits a dim by 2 or 4, or by two axes at once."""

Parts = Mapping[int, NDArray[Any]]
"""By device, its shard or addend of one result."""

_RELATIVE = 1e-3
_OF_LARGEST = 1e-4
"""Absolute tolerance, relative to the largest element of the result and of its parts: the parts
may nearly cancel in their sum."""
_ROUNDINGS = 4
"""Roundings that are allowed in a narrow type, such as bfloat16: a sum of parts is rounded once
more than the whole sum."""


def tried_strategies(rule: Rule, at_most: int | None) -> list[Strategy]:
    """The strategies that a rule allows on `MESH`: all, or about `at_most` at equal distances.

    Raises:
        ArgumentError: `at_most` is neither None nor a whole number from 1 on.
    """
    if at_most is not None and (type(at_most) is not int or at_most < 1):
        raise ArgumentError(
            "at least one strategy of each operator is tried, or all of them; "
            f"got at_most={at_most!r}: give a whole number from 1 on, or None"
        )
    strategies = list(enumerate_strategies(rule, MESH.shape))
    return strategies if at_most is None else strategies[:: max(1, len(strategies) // at_most)]


def check_parts(
    name: str,
    rule: Rule,
    strategy: Strategy,
    wholes: Sequence[Any],
    run: Callable[[], Sequence[Parts]],
    eps: Sequence[float],
) -> None:
    """Check that the parts of each result, assembled, equal the result of the whole operator.

    Args:
        name: Name of the operator.
        rule: The rule that allows the strategy.
        strategy: The strategy by which `run` runs the operator.
        wholes: The results of the whole operator.
        run: Runs the operator on parts of its operands, and returns the parts of each result.
        eps: The machine epsilon of each result's type; 0.0 for integers.

    Raises:
        VerificationError: They differ by more than rounding, or the operator fails on parts.
    """

    def refusal(what: str) -> VerificationError:
        return VerificationError(
            "with every strategy that its rule allows, an operator on parts must compute what it "
            f"computes whole; {name}, with the rule '{rule}', {what}, run as {strategy} on four "
            "devices: name dims that must not be split in whole=, another reduction than sum in "
            "reduction=, only operands in which it is linear in linear=, and the arguments that "
            "hold shapes in part="
        )

    try:
        results = run()
    except Exception as error:  # a user's operator may raise anything
        raise refusal(f"fails with {type(error).__name__}: {error}") from error
    for k, (whole, spec, parts, rounding) in enumerate(
        zip(map(_wide, wholes), strategy.result_specs, results, eps, strict=True)
    ):
        layout = Layout(whole.shape, MESH, spec)
        expected, shape = layout.local_shape(0), parts[0].shape
        if shape != expected:
            raise refusal(f"makes a part of its result {k} of shape {shape} instead of {expected}")
        joined = _wide(assemble(layout, dict(parts)))
        rtol, share = (max(least, _ROUNDINGS * rounding) for least in (_RELATIVE, _OF_LARGEST))
        atol = share * max(1.0, *map(_largest, (whole, *map(_wide, parts.values()))))
        same = np.isclose(joined, whole, rtol, atol, equal_nan=True)
        if not same.all():
            at = tuple(map(int, np.argwhere(~same)[0]))
            raise refusal(
                f"makes a result {k} of {joined[at]:.6g} at {list(at)}, and of {whole[at]:.6g} if "
                "it runs whole"
            )


def _largest(array: NDArray[Any]) -> float:
    return float(np.abs(np.nan_to_num(array)).max(initial=0.0))


def _wide(array: Any) -> NDArray[Any]:
    """The array in double precision, in which differences can be computed."""
    values = np.asarray(array)
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)
