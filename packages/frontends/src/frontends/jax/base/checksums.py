"""Checksums of arrays and equations, which are equal in all processes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from frontends.base.checksums import checksum
from frontends.jax.base import _compat


def checksum_of(value: Any) -> int:
    """A CRC-32 of a value, which is equal in all processes.

    Args:
        value: What `frontends.base.checksums` knows, arrays that are whole in this process, keys,
            and equations with their parameters; not which values these read.
    """
    return checksum(value, _opened)


def _opened(value: Any) -> Any:
    if isinstance(value, jax.Array):
        return np.asarray(_compat.key_data(value) if _compat.holds_keys(value) else value)
    if isinstance(value, JaxprEqn):
        return value.primitive.name, value.params, value.invars
    if isinstance(value, ClosedJaxpr):
        return value.consts, value.jaxpr
    if isinstance(value, Jaxpr):
        return value.eqns
    if isinstance(value, Literal):
        return value.val
    return value
