"""`diff`: the differences between two shardings of a graph, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardspec import Spec
from shardspec.amounts import bytes_text, columns, seconds_text

from autoshard.answer.costs import ConversionCost, OperatorCost, entries, held_bytes
from autoshard.answer.sharding import Sharding
from autoshard.answer.table import collapsed
from autoshard.errors import GraphError
from autoshard.space.phrases import specs_text


@dataclass(frozen=True, slots=True)
class Difference:
    """What changes from one sharding to another; prints as tables.

    Seconds are of all runs in a step.
    """

    before: Sharding
    after: Sharding
    inputs: tuple[tuple[str, Spec, Spec], ...]
    """Inputs that are stored differently: name, spec before, spec after."""
    operators: tuple[tuple[OperatorCost, OperatorCost], ...]
    """Operators that run with another strategy: before, after."""
    removed: tuple[ConversionCost, ...]
    """Conversions of `before` only."""
    added: tuple[ConversionCost, ...]
    """Conversions of `after` only."""

    @property
    def seconds(self) -> float:
        """How much longer a step of `after` takes; negative if it is faster."""
        return self.after.objective_s - self.before.objective_s

    @property
    def n_bytes(self) -> int:
        """How much more a device holds at its peak in `after`."""
        return self.after.peak_bytes - self.before.peak_bytes

    def __str__(self) -> str:
        lines = [self._summary()]
        if self.inputs:
            rows = [
                (name, str(old), str(new), _more_bytes(self._stored_bytes(name, old, new)))
                for name, old, new in self.inputs
            ]
            lines += ["", *_table(("input", "before", "after", "bytes"), rows)]
        if self.operators:
            rows = [
                (
                    new.operator.name,
                    specs_text(old.strategy),
                    specs_text(new.strategy),
                    _more(new.seconds - old.seconds),
                )
                for old, new in self.operators
            ]
            lines += ["", *_table(("operator", "before", "after", "compute"), rows)]
        if moves := [(move, "gone") for move in self.removed] + [(m, "new") for m in self.added]:
            rows = [
                (
                    move.value.name,
                    f"{what} {move.step.kind.replace('_', '-')}",
                    f"{move.conversion.src} -> {move.conversion.dst}",
                    _more(move.seconds if what == "new" else -move.seconds),
                )
                for move, what in moves
            ]
            lines += ["", *_table(("value", "conversion", "", "seconds"), rows)]
        return "\n".join(lines)

    def _summary(self) -> str:
        if not (self.inputs or self.operators or self.removed or self.added):
            return "nothing is different"
        times = (seconds_text(of.objective_s) for of in (self.before, self.after))
        peaks = (bytes_text(of.peak_bytes) for of in (self.before, self.after))
        return (
            f"a step takes {_more(self.seconds)} ({' -> '.join(times)}), a device holds "
            f"{_more_bytes(self.n_bytes)} at its peak ({' -> '.join(peaks)})"
        )

    def _stored_bytes(self, name: str, old: Spec, new: Spec) -> int:
        value, mesh = self.after.graph.value(name), self.after.mesh
        return held_bytes(value, new, mesh) - held_bytes(value, old, mesh)


def diff(before: Sharding, after: Sharding) -> Difference:
    """The differences of `after` from `before`.

    Args:
        before: A sharding.
        after: Another one, of the same graph on a mesh of the same shape.

    Raises:
        GraphError: they are of different graphs, or on meshes of different shapes.
    """
    for one in (before, after):
        if not isinstance(one, Sharding):
            raise GraphError(f"diff compares two Shardings; got {one!r}")
    if before.graph != after.graph or before.mesh.shape != after.mesh.shape:
        graphs = (f"{len(of.graph.operators)} operators" for of in (before, after))
        raise GraphError(
            "only shardings of one graph on meshes of one shape can be compared; got "
            f"{' and '.join(graphs)} on {before.mesh.shape} and {after.mesh.shape}"
        )
    stored = dict(after.input_specs)
    costs = [entries(of) for of in (before, after)]
    works = [[entry for entry in of if isinstance(entry, OperatorCost)] for of in costs]
    moves = [[entry for entry in of if isinstance(entry, ConversionCost)] for of in costs]
    kept = set(before.conversions) & set(after.conversions)
    return Difference(
        before,
        after,
        tuple((name, old, stored[name]) for name, old in before.input_specs if old != stored[name]),
        tuple(pair for pair in zip(*works, strict=True) if pair[0].strategy != pair[1].strategy),
        tuple(move for move in moves[0] if move.conversion not in kept),
        tuple(move for move in moves[1] if move.conversion not in kept),
    )


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = columns([header, *rows], right=(len(header) - 1,))
    return collapsed(lines, [None, *(row[1:] for row in rows)])


def _more(seconds: float) -> str:
    return _signed(seconds, seconds_text(abs(seconds)))


def _more_bytes(n_bytes: float) -> str:
    return _signed(n_bytes, bytes_text(abs(n_bytes)))


def _signed(difference: float, text: str) -> str:
    return "as much" if difference == 0.0 else f"{text} {'more' if difference > 0.0 else 'less'}"
