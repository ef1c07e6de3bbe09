"""A traced step as a graph of three phases, whose operators know their equations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from autoshard import Graph, Operator, Output, Phase, Value

from frontends.errors import UnsupportedStepError
from frontends.jax import _compat
from frontends.jax._compat import ClosedJaxpr, JaxprEqn, Literal, Var
from frontends.jax.arguments import Argument
from frontends.jax.rules import flops_of, rule_of
from frontends.step import APPLY, BACKWARD, FORWARD, PHASE_NAMES, identity

Constant = np.ndarray[Any, Any]


class Program:
    """Names and sorts the equations of a flat jaxpr into a graph of three phases."""

    def __init__(
        self,
        closed: ClosedJaxpr,
        leaves: Sequence[Argument],
        aliases: Mapping[int, int],
        microbatches: int,
    ) -> None:
        self.equations: dict[str, JaxprEqn] = {}
        self.operands: dict[str, tuple[str | Constant, ...]] = {}
        self.constants: dict[str, Any] = {}
        self.results: tuple[str | Constant, ...] = ()
        self.zeros: set[str] = set()
        self._names: dict[Var, str] = {}
        self._values: dict[str, Value] = {}
        self._operators: list[Operator] = []
        jaxpr = closed.jaxpr
        phases = phases_of(jaxpr.eqns)
        roles = _roles(jaxpr, phases, leaves)
        for variable, leaf, role in zip(jaxpr.invars, leaves, roles, strict=True):
            self._declare(variable, leaf.name, role)
        for k, (variable, array) in enumerate(zip(jaxpr.constvars, closed.consts, strict=True)):
            self._declare(variable, f"constant.{k}", "other")
            self.constants[f"constant.{k}"] = array
        inputs = tuple(self._values)
        order = sorted(range(len(phases)), key=lambda i: (phases[i], i))
        for i, equation in enumerate(jaxpr.eqns):
            self._name_results(equation, i)
        for i in order:
            self._add(jaxpr.eqns[i], i, phases[i])
        outputs = self._outputs(jaxpr.outvars, leaves, aliases)
        repeats = (microbatches, microbatches, 1)
        self.graph = Graph(
            tuple(Phase(name, n) for name, n in zip(PHASE_NAMES, repeats, strict=True)),
            tuple(self._values.values()),
            tuple(self._operators),
            inputs,
            outputs,
        )

    def _declare(self, variable: Any, name: str, role: Any = "intermediate") -> None:
        self._names[variable] = name
        aval = variable.aval
        self._values[name] = Value(name, tuple(aval.shape), str(aval.dtype), role)

    def _name_results(self, equation: JaxprEqn, index: int) -> None:
        operator = f"{equation.primitive.name}.{index}"
        for k, variable in enumerate(equation.outvars):
            self._declare(variable, operator if len(equation.outvars) == 1 else f"{operator}:{k}")

    def _add(self, equation: JaxprEqn, index: int, phase: int) -> None:
        name = f"{equation.primitive.name}.{index}"
        operands = tuple(
            _constant(atom) if isinstance(atom, Literal) else self._names[atom]
            for atom in equation.invars
        )
        if equation.primitive.name == "broadcast_in_dim" and not np.any(operands[0]):
            self.zeros.update(self._names[v] for v in equation.outvars)
        self.equations[name] = equation
        self.operands[name] = operands
        self._operators.append(
            Operator(
                name,
                equation.primitive.name,
                tuple(operand for operand in operands if isinstance(operand, str)),
                tuple(self._names[v] for v in equation.outvars),
                rule_of(equation),
                flops_of(equation),
                phase,
            )
        )

    def _outputs(
        self, atoms: Sequence[Any], leaves: Sequence[Argument], aliases: Mapping[int, int]
    ) -> tuple[Output, ...]:
        made_by_apply = {n for op in self._operators if op.phase == APPLY for n in op.outputs}
        outputs: list[Output] = []
        results: list[str | Constant] = []
        for i, atom in enumerate(atoms):
            if isinstance(atom, Literal):
                results.append(_constant(atom))
                continue
            name = self._names[atom]
            if name not in made_by_apply or name in results:
                name = self._hand_on(name, i)
            results.append(name)
            alias = leaves[aliases[i]].name if i in aliases else None
            outputs.append(Output(name, alias=alias, whole=alias is None))
        self.results = tuple(results)
        return tuple(outputs)

    def _hand_on(self, name: str, index: int) -> str:
        """Let apply hand on what compute made, or an input, so that apply makes every result."""
        value = self._values[name]
        result = f"result.{index}"
        self._values[result] = Value(result, value.shape, value.dtype)
        self._operators.append(identity(value, result))
        return result


def _constant(literal: Literal) -> Constant:
    return np.asarray(literal.val, _compat.aval(literal).dtype)


def phases_of(equations: Sequence[JaxprEqn]) -> list[int]:
    """Forward, backward or apply, for each equation, without marks by the user.

    Differentiation marks what it makes; whatever feeds a marked equation is compute too, and the
    rest, which only reads gradients and losses, is apply (Alpa §6 needs the user to say so).
    """
    needed: set[Var] = set()
    is_compute = [False] * len(equations)
    for i in range(len(equations) - 1, -1, -1):
        equation = equations[i]
        if _compat.is_differentiated(equation) or any(v in needed for v in equation.outvars):
            is_compute[i] = True
            needed.update(v for v in equation.invars if isinstance(v, Var))
    if not any(_compat.is_backward(equation) for equation in equations):
        raise UnsupportedStepError(
            "a training step must compute a gradient with jax.grad, value_and_grad or vjp; "
            "none was found in what the step returns"
        )
    phases = []
    after_backward: set[Var] = set()
    for equation, computes in zip(equations, is_compute, strict=True):
        reads_backward = any(isinstance(v, Var) and v in after_backward for v in equation.invars)
        if computes and (_compat.is_backward(equation) or reads_backward):
            after_backward.update(equation.outvars)
            phases.append(BACKWARD)
        else:
            phases.append(FORWARD if computes else APPLY)
    return phases


def _roles(jaxpr: Any, phases: Sequence[int], leaves: Sequence[Argument]) -> list[str]:
    """Parameters are what forward and backward read; the other state is the optimizer's."""
    read = {
        v
        for equation, phase in zip(jaxpr.eqns, phases, strict=True)
        if phase != APPLY
        for v in equation.invars
        if isinstance(v, Var)
    }
    return [
        "batch" if leaf.is_batch else "parameter" if variable in read else "optimizer_state"
        for variable, leaf in zip(jaxpr.invars, leaves, strict=True)
    ]
