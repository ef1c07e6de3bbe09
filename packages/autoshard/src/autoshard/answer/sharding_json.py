"""The JSON text of a sharding, and that what is read is what it says."""

from __future__ import annotations

from typing import TypeVar

from autoshard.answer.sharding_fields import ShardingFields
from autoshard.answer.verify import verify
from autoshard.base import record
from autoshard.errors import RecordError, VerificationError
from autoshard.graph.rule import Rule
from autoshard.space.strategy import Strategy

S = TypeVar("S", bound=ShardingFields)
_SHARED = (Rule, Strategy)


def write(sharding: ShardingFields) -> str:
    """The text of a sharding: also its graph, mesh and cluster, so that it needs nothing else."""
    return record.write("sharding", sharding, _SHARED)


def read(of: type[S], text: str) -> S:
    """The sharding that `write` wrote, verified.

    Raises:
        RecordError: the text is no such JSON, or the sharding is not what it says.
        GraphError: the graph is not well-formed.
    """
    return verified(record.read("sharding", of, text, _SHARED))


def verified(sharding: S) -> S:
    """A sharding that was read; `RecordError` if it is not what it says."""
    try:
        verify(sharding)
    except VerificationError as error:
        raise RecordError(str(error)) from error
    return sharding
