"""`Sharding`: the fields of an answer, together with the functions that explain and check it."""

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
        """Check that the strategies and conversions fit the graph, and that all numbers are right.

        Seconds and bytes are recomputed from graph, cluster, specs and conversions alone, by code
        that shares nothing with the search. Two things are not checked, since only another search
        could do so: whether the bound holds for all shardings, and what the alternatives would
        take.

        Raises:
            VerificationError: something is wrong; the message says what is wrong first.
            GraphError: the graph is not well-formed.
        """
        verify.verify(self)

    def to_json(self) -> str:
        """The sharding as JSON, which `from_json` reads back to an equal one."""
        return sharding_json.write(self)

    @classmethod
    def from_json(cls, text: str) -> Sharding:
        """Read a sharding from the JSON that `to_json` writes, and verify it.

        Raises:
            RecordError: the text is not such JSON, or the sharding fails `verify`.
            GraphError: the graph in it is not well-formed.
        """
        return sharding_json.read(cls, text)
