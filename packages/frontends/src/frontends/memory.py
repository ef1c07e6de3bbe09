"""What a device holds while a stage runs, by kind, from the live ranges of autoshard.memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from autoshard import Sharding, held

KINDS: Mapping[str, str] = {
    "parameter": "params",
    "optimizer_state": "optimizer",
    "input": "inputs",
    "activation": "activations",
    "gradient": "gradients",
    "temporary": "temporary",
    "copy": "copies",
}
"""autoshard's kinds of memory, and what we call them."""


def memory_curves(sharding: Sharding) -> dict[str, tuple[int, ...]]:
    """For each kind the bytes that a device holds while each operator runs.

    Equal to `autoshard.live_bytes` of each kind; the ranges are found once for all of them.
    """
    end = max(len(sharding.graph.operators), 1)
    changes = {kind: [0] * (end + 1) for kind in KINDS}
    for one in held(sharding):
        changes[one.kind][one.first] += one.n_bytes
        changes[one.kind][one.last] -= one.n_bytes
    return {kind: tuple(accumulate(of[:end])) for kind, of in changes.items()}


def fullest_moment(sharding: Sharding) -> dict[str, int]:
    """Bytes by kind while the operator runs at which a device holds most."""
    curves = memory_curves(sharding)
    totals = [sum(moment) for moment in zip(*curves.values(), strict=True)]
    fullest = max(range(len(totals)), key=totals.__getitem__)
    return {kind: curve[fullest] for kind, curve in curves.items()}
