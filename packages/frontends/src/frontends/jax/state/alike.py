"""Checks that all processes call a step with the same arguments.

Each process reads only the parts of its devices, so that other arguments in each would be a mixture
of all of them, without a word.
"""

from __future__ import annotations

from typing import Any

import jax

from frontends.errors import BatchError
from frontends.jax.base.checksums import checksum_of
from frontends.jax.base.signature import CallArguments
from frontends.jax.run.processes import exchange, gather, process
from frontends.jax.state.data import is_partial

_UNKNOWN = "-"


def check_alike(call: CallArguments, is_first: bool) -> None:
    """Check that processes call a step with the same values; all have to call it.

    Arrays that lie where a plan has put them are left out, and so are batches of `feed`, of which a
    process has the rows that it needs.

    Args:
        call: The arguments of the call.
        is_first: Whether no call has run yet, so that a process may still be getting ready.

    Raises:
        BatchError: Processes have different values.
        DeviceError: Another process does something else.
    """
    if process() is None:
        return
    said = _said(call)
    words = (gather if is_first else exchange)(" ".join(said.values()), "call a step")
    first, *others = map(str.split, words)
    rule = (
        "all processes call a step with the same arguments, of which the plan gives each its part; "
    )
    for other, theirs in enumerate(others, 1):
        if len(theirs) != len(first):
            raise BatchError(
                f"{rule}process 0 gives {len(first)} values, and process {other} {len(theirs)}: "
                "call it in the same way in all"
            )
    for i, name in enumerate(said):
        for other, theirs in enumerate(others, 1):
            if first[i] != theirs[i] and _UNKNOWN not in (first[i], theirs[i]):
                raise BatchError(
                    f"{rule}processes 0 and {other} have different values of {name}: seed what "
                    "draws or shuffles examples equally, or let feed() make the batches"
                )


def _said(call: CallArguments) -> dict[str, str]:
    """A digest of each leaf of the arguments, by name."""
    said = {call.names[i]: f"{checksum_of(value):08x}" for i, value in call.static.items()}
    for path, leaf in jax.tree_util.tree_flatten_with_path(dict(call.arrays))[0]:
        said[f"{call.names[path[0].key]}{jax.tree_util.keystr(path[1:])}"] = _digest(leaf)
    return said


def _digest(leaf: Any) -> str:
    """A digest of a value that all processes should have; `_UNKNOWN` if it is not for all."""
    if isinstance(leaf, jax.Array):
        is_placed = leaf.committed and not isinstance(
            leaf.sharding, jax.sharding.SingleDeviceSharding
        )
        if leaf.is_deleted() or not leaf.is_fully_addressable or is_placed:
            return _UNKNOWN
    return _UNKNOWN if is_partial(leaf) else f"{checksum_of(leaf):08x}"
