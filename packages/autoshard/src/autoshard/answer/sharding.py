"""The answer: a sharding, and what is done with it."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.answer import sharding_json, verify
from autoshard.answer.explain import Explanation, explain
from autoshard.answer.sharding_fields import ShardingFields
from autoshard.answer.table import table


@dataclass(frozen=True, slots=True)
class Sharding(ShardingFields):
    """How to run a graph on a mesh, with its price per step."""

    def __str__(self) -> str:
        return table(self)

    def explain(self, name: str) -> Explanation:
        """Why an operator runs, or an input is stored, as it does; see `autoshard.explain`."""
        return explain(self, name)

    def verify(self) -> None:
        """Check that this is a sharding of its graph on its mesh, at its price and in its memory.

        Seconds and bytes are recomputed from graph, cluster, specs and conversions alone, by code
        that shares nothing with the search. Not checked is what only another search could know:
        whether the bound holds for all shardings, and what the alternatives would take.

        Raises:
            VerificationError: It is not; says the first thing that is wrong.
            GraphError: The graph is not well-formed.
        """
        verify.verify(self)

    def to_json(self) -> str:
        """The sharding as JSON, which `from_json` reads back to an equal one."""
        return sharding_json.write(self)

    @classmethod
    def from_json(cls, text: str) -> Sharding:
        """Read a sharding from the JSON that `to_json` writes, and verify it.

        Raises:
            RecordError: the text is no such JSON, or the sharding is not what it says (`verify`).
            GraphError: the graph in it is not well-formed.
        """
        return sharding_json.read(cls, text)
