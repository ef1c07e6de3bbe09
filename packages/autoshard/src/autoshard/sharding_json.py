"""The JSON text of a sharding, and that what is read is what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard import record
from autoshard.errors import RecordError, VerificationError
from autoshard.rule import Rule
from autoshard.strategy import Strategy

if TYPE_CHECKING:
    from autoshard.sharding import Sharding

_SHARED = (Rule, Strategy)


def write(sharding: Sharding) -> str:
    """The text of a sharding: also its graph, mesh and cluster, so that it needs nothing else."""
    return record.write("sharding", sharding, _SHARED)


def read(of: type[Sharding], text: str) -> Sharding:
    """The sharding that `write` wrote, verified.

    Raises:
        RecordError: the text is no such JSON, or the sharding is not what it says.
        GraphError: the graph is not well-formed.
    """
    sharding = record.read("sharding", of, text, _SHARED)
    try:
        sharding.verify()
    except VerificationError as error:
        raise RecordError(str(error)) from error
    return sharding
