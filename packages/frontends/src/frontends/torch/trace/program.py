"""A flat program as a graph of three phases, whose operators have rules."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard import Graph, Operator, Output, Phase, Value
from autoshard.graph.graph_fields import Role

from frontends.step.step import APPLY, PHASE_NAMES, identity
from frontends.torch.base.blame import planning
from frontends.torch.base.flat import Flat, Line
from frontends.torch.base.origins import Origin
from frontends.torch.capture.arguments import Argument, dtype_name
from frontends.torch.rules.rules import Rules

Update = tuple[str, str]
"""A new value, and the argument that it takes the place of in the next step."""


class Program:
    """Sorts the lines of a flat program into a graph of three phases.

    Args:
        flat: The program; its outputs are not looked at.
        arguments: One for each of its inputs.
        updates: What becomes of the state.
        results: The values that the step returns.
        microbatches: How often forward and backward run.
        rules: Of what can be cut, into microbatches or over devices.
    """

    def __init__(
        self,
        flat: Flat,
        arguments: Sequence[Argument],
        updates: Sequence[Update],
        results: Sequence[str],
        microbatches: int,
        rules: Rules,
    ) -> None:
        self.lines: dict[str, Line] = {}
        self.zeros: set[str] = set()
        """Values that hold nothing but zeros."""

        self.equal: dict[str, frozenset[int]] = {}
        """Values that are filled with copies: the dims along which all slices are equal."""

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
        """The values that are returned, each made by apply and none of them twice."""

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
        """By operator, where in the user's code it was called."""
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
        """Let apply hand on what compute made, an input, or what is an output already."""
        if name in self._made:
            self._made.discard(name)
            return name
        value = self._values[name]
        result = f"result.{len(self._operators)}"
        self._values[result] = Value(result, value.shape, value.dtype)
        self._operators.append(identity(value, result))
        return result


_KINDS = {"cat": "concatenate"}
"""What people and `frontends.layers.layers` know under another name."""


def _role(argument: Argument, is_read: bool) -> Role:
    """Parameters are what forward and backward read; the other state is the optimizer's."""
    if argument.is_batch:
        return "batch"
    if argument.is_given or argument.name.startswith(("early.", "batch")):
        return "other"
    return "parameter" if is_read else "optimizer_state"
