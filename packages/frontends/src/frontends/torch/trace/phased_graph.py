"""Turns a flat program into a graph of three phases, whose operators have rules."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard import Graph, Operator, Output, Phase, Value
from autoshard.graph.graph_fields import Role

from frontends.step.step import APPLY, PHASE_NAMES, identity
from frontends.torch.base.blame import planning
from frontends.torch.base.flat import FlatProgram, Line, dtype_name
from frontends.torch.base.origins import Origin
from frontends.torch.capture.arguments import Argument
from frontends.torch.rules.rules import Rules

Update = tuple[str, str]
"""A new value, and the argument that it replaces in the next step."""


class PhasedGraph:
    """Sorts the lines of a flat program into a graph of three phases.

    Args:
        flat: The program; its outputs are ignored.
        arguments: One for each of its inputs.
        updates: The new values of the state.
        results: The values that the step returns.
        microbatches: How often forward and backward run.
        rules: The sharding rules, either for microbatches or for devices.
    """

    def __init__(
        self,
        flat: FlatProgram,
        arguments: Sequence[Argument],
        updates: Sequence[Update],
        results: Sequence[str],
        microbatches: int,
        rules: Rules,
    ) -> None:
        self.lines: dict[str, Line] = {}
        self.zeros: set[str] = set()
        """Values that consist of zeros."""

        self.equal: dict[str, frozenset[int]] = {}
        """Values that consist of copies: the dims along which all slices are equal."""

        self._flat, self._rules = flat, rules
        self._values: dict[str, Value] = {}
        self._operators: list[Operator] = []
        read = {name for line in flat.lines if line.phase != APPLY for name in line.inputs}
        for argument in arguments:
            self._declare(argument.name, _role(argument, argument.name in read))
        for name in flat.constants:
            self._declare(name, "other")
        inputs = tuple(self._values)
        for line in sorted(flat.lines, key=lambda line: line.phase):
            self._add(line)
        self._made = {n for op in self._operators if op.phase == APPLY for n in op.outputs}
        outputs = [Output(self._of_apply(value), alias=name) for value, name in updates]
        self.results = [self._of_apply(value) for value in results]
        """The values that are returned; each is computed in apply, and no two are the same."""

        outputs += [Output(name, whole=True) for name in self.results]
        repeats = (microbatches, microbatches, 1)
        self.graph = Graph(
            tuple(Phase(name, n) for name, n in zip(PHASE_NAMES, repeats, strict=True)),
            tuple(self._values.values()),
            tuple(self._operators),
            inputs,
            tuple(outputs),
        )

    @property
    def origins(self) -> dict[str, Origin]:
        """By operator, where in the user's code it is called."""
        return {name: line.origin for name, line in self.lines.items() if line.origin is not None}

    def _declare(self, name: str, role: Role = "intermediate") -> None:
        kind = self._flat.kinds[name]
        self._values[name] = Value(name, kind.shape, dtype_name(kind.dtype), role)

    def _add(self, line: Line) -> None:
        for name in line.outputs:
            self._declare(name)
        operands = tuple(self._flat.kinds[name] for name in line.inputs)
        results = tuple(self._flat.kinds[name] for name in line.outputs)
        if line.call.name == "full":
            self.equal[line.outputs[0]] = frozenset(range(len(results[0].shape)))
            if not line.inputs and not line.call.arguments[1]:
                self.zeros.add(line.outputs[0])
        elif line.call.name == "expand":
            skipped = len(results[0].shape) - len(operands[0].shape)
            pairs = enumerate(zip(operands[0].shape, results[0].shape[skipped:], strict=True))
            repeated = {skipped + d for d, (n, m) in pairs if n != m}
            self.equal[line.outputs[0]] = frozenset(range(skipped)) | repeated
            if line.inputs[0] in self.zeros:
                self.zeros.add(line.outputs[0])
        with planning(line.call.target, line.origin, lambda: self._flat.described(line)):
            rule, flops = self._rules.of(line.call, operands, results)
        kind = _KINDS.get(line.call.name, line.call.name)
        self.lines[line.name] = line
        self._operators.append(
            Operator(line.name, kind, line.inputs, line.outputs, rule, flops, line.phase)
        )

    def _of_apply(self, name: str) -> str:
        """Return the value as a result of apply, which no other output is.

        For a value of forward or backward, an input, or one that is an output already, apply gets
        an identity.
        """
        if name in self._made:
            self._made.discard(name)
            return name
        value = self._values[name]
        result = f"result.{len(self._operators)}"
        self._values[result] = Value(result, value.shape, value.dtype)
        self._operators.append(identity(value, result))
        return result


_KINDS = {"cat": "concatenate"}
"""Operators that users and `frontends.layers.layers` know under another name."""


def _role(argument: Argument, is_read: bool) -> Role:
    """Return the role: state that forward or backward reads is a parameter."""
    if argument.is_batch:
        return "batch"
    if argument.is_given or argument.name.startswith(("early.", "batch")):
        return "other"
    return "parameter" if is_read else "optimizer_state"
