"""Whether an operator in parts computes what it does whole: the judge of a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from autoshard import Rule, Strategy, enumerate_strategies
from numpy.typing import NDArray
from shardspec import Layout, Mesh, assemble

from frontends.errors import VerificationError

MESH = Mesh((2, 2), ("x", "y"))
"""On which rules are tried: every dim can be split in two or four, or by two axes at once."""

Parts = Mapping[int, NDArray[Any]]
"""Of one result, on each device."""

_RELATIVE = 1e-3
_OF_LARGEST = 1e-4
"""Of the largest element: sums of parts that nearly cancel round so."""


def tried_strategies(rule: Rule, at_most: int | None) -> list[Strategy]:
    """Those that a rule allows on `MESH`: all, or about so many of them, evenly."""
    every = list(enumerate_strategies(rule, MESH.shape))
    return every if at_most is None else every[:: max(1, len(every) // at_most)]


def check_parts(
    name: str,
    rule: Rule,
    strategy: Strategy,
    wholes: Sequence[Any],
    run: Callable[[], Sequence[Parts]],
) -> None:
    """Check that parts, put together, are what the whole operator makes.

    Args:
        name: The operator's.
        rule: That allows the strategy.
        strategy: By which the parts are made.
        wholes: Arrays that the whole operator makes.
        run: Runs the operator on parts of its operands, and returns those of each result.

    Raises:
        VerificationError: They differ by more than rounding, or the operator fails on parts.
    """

    def refusal(what: str) -> VerificationError:
        return VerificationError(
            "in every way that its rule allows, an operator in parts makes what it makes whole; "
            f"{name}, with the rule '{rule}', {what}, run as {strategy} on four devices: name the "
            "dims that must not be split in whole=, what is no sum in reduction=, in linear= only "
            "operands in which it is linear, and in part= the arguments that hold shapes"
        )

    try:
        made = run()
    except Exception as error:  # whatever an operator of a user does
        raise refusal(f"fails with {type(error).__name__}: {error}") from error
    for k, (whole, spec, parts) in enumerate(
        zip(map(_wide, wholes), strategy.result_specs, made, strict=True)
    ):
        layout = Layout(whole.shape, MESH, spec)
        shape, found = layout.local_shape(0), parts[0].shape
        if shape != found:
            raise refusal(f"makes a part of its result {k} of shape {found} instead of {shape}")
        joined = _wide(assemble(layout, dict(parts)))
        atol = _OF_LARGEST * max(1.0, float(np.abs(np.nan_to_num(whole)).max(initial=0.0)))
        same = np.isclose(joined, whole, _RELATIVE, atol, equal_nan=True)
        if not same.all():
            at = tuple(map(int, np.argwhere(~same)[0]))
            raise refusal(
                f"makes a result {k} of {joined[at]:.6g} at {list(at)}, and of {whole[at]:.6g} if "
                "it runs whole"
            )


def _wide(array: Any) -> NDArray[Any]:
    """With room for differences, whatever the type."""
    found = np.asarray(array)
    return found.astype(np.complex128 if np.iscomplexobj(found) else np.float64)
