"""A sharding as JSON, which is verified when it is read."""

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
    """The JSON of a sharding, with its graph, mesh and cluster, so that it is self-contained."""
    return record.write("sharding", sharding, _SHARED)


def read(of: type[S], text: str) -> S:
    """The sharding that `write` wrote, verified.

    Raises:
        RecordError: the text is not such JSON, or the sharding fails `verify`.
        GraphError: the graph is not well-formed.
    """
    return verified(record.read("sharding", of, text, _SHARED))


def verified(sharding: S) -> S:
    """The same sharding; `RecordError` if it fails `verify`, or has numbers too large for that."""
    try:
        verify(sharding)
    except (OverflowError, VerificationError) as error:
        raise RecordError(str(error)) from error
    return sharding
