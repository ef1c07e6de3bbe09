"""Several shardings as one JSON text, in which the cluster and other equal parts occur once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from costmodel import Cluster

from autoshard.answer.sharding import Sharding
from autoshard.answer.sharding_json import verified
from autoshard.base import record
from autoshard.base.checks import of_class
from autoshard.errors import RecordError
from autoshard.graph import packed
from autoshard.graph.graph import Graph
from autoshard.space.strategy import Strategy

_SHARED = (Cluster, *packed.SHARED, Strategy)
_PACKINGS: record.Packings = {Graph: packed.PACKING}


@dataclass(frozen=True, slots=True)
class _Shardings:
    all: tuple[Sharding, ...]


def shardings_to_json(shardings: Iterable[Sharding]) -> str:
    """The JSON of several shardings, such as those of the stages of a plan.

    Raises:
        RecordError: one of them is not a sharding.
    """
    every = tuple(shardings) if isinstance(shardings, Iterable) else (shardings,)
    for one in every:
        of_class(RecordError, "sharding", one, Sharding, "as shard returns it")
    return record.write("shardings", _Shardings(every), _SHARED, _PACKINGS)


def shardings_from_json(text: str) -> tuple[Sharding, ...]:
    """Read what `shardings_to_json` wrote, and verify each of them.

    Raises:
        RecordError: the text is not such JSON, or a sharding fails `verify`.
        GraphError: a graph in it is not well-formed.
    """
    shardings = record.read("shardings", _Shardings, text, _SHARED, _PACKINGS)
    return tuple(verified(sharding) for sharding in shardings.all)
