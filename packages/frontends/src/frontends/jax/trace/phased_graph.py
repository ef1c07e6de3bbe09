"""A traced step as a graph of three phases, with the equation of each operator."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from autoshard import Graph, Operator, Output, Phase, Rule, Value

from frontends.jax.base._compat import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    Var,
    aval,
    is_backward,
    is_differentiated,
)
from frontends.jax.base.arguments import Argument
from frontends.jax.base.boundary import planning
from frontends.jax.rules.copies import MAKERS
from frontends.jax.rules.rules import (
    accesses_of,
    entry_of,
    equal_dims_of,
    flops_of,
    rule_of,
    summands_of,
)
from frontends.step.step import APPLY, BACKWARD, FORWARD, PHASE_NAMES, identity

Constant = np.ndarray[Any, Any]


class PhasedGraph:
    """Names and sorts the equations of a flat jaxpr into a graph of three phases."""

    def __init__(
        self,
        closed: ClosedJaxpr,
        leaves: Sequence[Argument],
        aliases: Mapping[int, int],
        microbatches: int,
        phases: Sequence[int],
        rules: Rules,
    ) -> None:
        self.equations: dict[str, JaxprEqn] = {}
        self.operands: dict[str, tuple[str | Constant, ...]] = {}
        self.constants: dict[str, Any] = {}
        self.results: tuple[str | Constant, ...] = ()
        self.zeros: set[str] = set()
        self.summands: dict[str, frozenset[str]] = {}
        """By operator: the operands to which it adds (`summands_of`)."""
        self.equal: dict[str, frozenset[int]] = {}
        """Values that are filled with copies: the dims along which all slices are equal."""
        self.names: dict[Var, str] = {}
        self._rules = rules
        self._dtypes: dict[Any, str] = {}
        self._values: dict[str, Value] = {}
        self._operators: list[Operator] = []
        jaxpr = closed.jaxpr
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
        self.order = [f"{e.primitive.name}.{i}" for i, e in enumerate(jaxpr.eqns)]
        """The operators' names, in the order of the equations."""
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
        self.names[variable] = name
        shaped = aval(variable)
        dtype = self._dtypes.get(shaped.dtype)
        if dtype is None:
            dtype = self._dtypes[shaped.dtype] = str(shaped.dtype)
        self._values[name] = Value(name, tuple(shaped.shape), dtype, role)

    def _name_results(self, equation: JaxprEqn, index: int) -> None:
        operator = f"{equation.primitive.name}.{index}"
        for k, variable in enumerate(equation.outvars):
            self._declare(variable, operator if len(equation.outvars) == 1 else f"{operator}:{k}")

    def _add(self, equation: JaxprEqn, index: int, phase: int) -> None:
        name = f"{equation.primitive.name}.{index}"
        operands = tuple(
            _constant(atom) if isinstance(atom, Literal) else self.names[atom]
            for atom in equation.invars
        )
        kind = equation.primitive.name
        if kind == "broadcast_in_dim" and not np.any(operands[0]):
            self.zeros.add(self.names[equation.outvars[0]])
        with planning(equation, [name for name in operands if isinstance(name, str)]):
            rule, flops = self._rules.of(equation)
            accesses = accesses_of(equation)
            added_to = (operands[i] for i in summands_of(equation))
            if kind in MAKERS:
                equal = equal_dims_of(equation, [*map(self._equal_dims, operands)])
                self.equal.update(
                    zip((self.names[v] for v in equation.outvars), equal, strict=True)
                )
        if names := frozenset(name for name in added_to if isinstance(name, str)):
            self.summands[name] = names
        self.equations[name] = equation
        self.operands[name] = operands
        self._operators.append(
            Operator(
                name,
                kind,
                tuple(operand for operand in operands if isinstance(operand, str)),
                tuple(self.names[v] for v in equation.outvars),
                rule,
                flops,
                phase,
                accesses,
            )
        )

    def _equal_dims(self, operand: str | Constant) -> frozenset[int]:
        if isinstance(operand, str):
            return self.equal.get(operand, frozenset())
        return frozenset(range(operand.ndim))  # a number

    def _outputs(
        self, atoms: Sequence[Any], leaves: Sequence[Argument], aliases: Mapping[int, int]
    ) -> tuple[Output, ...]:
        outputs_of_apply = {n for op in self._operators if op.phase == APPLY for n in op.outputs}
        outputs: list[Output] = []
        results: list[str | Constant] = []
        for i, atom in enumerate(atoms):
            if isinstance(atom, Literal):
                results.append(_constant(atom))
                continue
            name = self.names[atom]
            if name not in outputs_of_apply or name in results:
                name = self._hand_on(name, i)
            results.append(name)
            alias = leaves[aliases[i]].name if i in aliases else None
            outputs.append(Output(name, alias=alias, whole=alias is None))
        self.results = tuple(results)
        return tuple(outputs)

    def _hand_on(self, name: str, index: int) -> str:
        """Let apply hand on an input or a value of compute, so that apply makes every result."""
        value = self._values[name]
        result = f"result.{index}"
        self._values[result] = Value(result, value.shape, value.dtype)
        self._operators.append(identity(value, result))
        return result


class Rules:
    """The rules and FLOP of equations; equal equations share them.

    Args:
        masked: As in `rule_of`.
    """

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        self._known: dict[Any, tuple[Rule, float]] = {}

    def of(self, equation: JaxprEqn) -> tuple[Rule, float]:
        """The rule of an equation, and its floating-point operations."""
        operands = tuple(
            (aval(v).shape, aval(v).dtype, isinstance(v, Literal) and bool(np.all(v.val == 0)))
            for v in equation.invars
        )
        literals = tuple(isinstance(v, Literal) for v in equation.invars)
        results = tuple((aval(v).shape, aval(v).dtype) for v in equation.outvars)
        try:
            params = tuple(equation.params.items())
            entry = entry_of(equation.primitive)  # in the key, as it may be registered later
            key = (equation.primitive, entry, operands, literals, results, params)
            known = self._known.get(key)
        except TypeError:  # a parameter that cannot be hashed
            return rule_of(equation, masked=self._masked), flops_of(equation)
        if known is None:
            known = self._known[key] = rule_of(equation, masked=self._masked), flops_of(equation)
        return known


def _constant(literal: Literal) -> Constant:
    return np.asarray(literal.val, aval(literal).dtype)


def phases_of(equations: Sequence[JaxprEqn]) -> list[int]:
    """The phase of each equation, forward, backward or apply, without marks by the user.

    JAX marks the equations that differentiation makes. These and all that they depend on are
    forward or backward; the rest, which only reads gradients and losses, is apply (in Alpa §6 the
    user has to mark it). All of a step without gradients, such as an evaluation, is forward.
    """
    needed: set[Var] = set()
    is_compute = [False] * len(equations)
    for i in range(len(equations) - 1, -1, -1):
        equation = equations[i]
        if is_differentiated(equation) or any(v in needed for v in equation.outvars):
            is_compute[i] = True
            needed.update(v for v in equation.invars if isinstance(v, Var))
    if not any(map(is_backward, equations)):
        return [FORWARD] * len(equations)
    phases = []
    after_backward: set[Var] = set()
    for equation, computes in zip(equations, is_compute, strict=True):
        reads_backward = any(isinstance(v, Var) and v in after_backward for v in equation.invars)
        if computes and (is_backward(equation) or reads_backward):
            after_backward.update(equation.outvars)
            phases.append(BACKWARD)
        else:
            phases.append(FORWARD if computes else APPLY)
    return phases


def without_gradients(
    aliases: Mapping[int, int], jaxpr: Any, leaves: Sequence[Argument]
) -> dict[int, int]:
    """The aliases without those of gradients, which have the shapes of state but are not state.

    Outside of differentiated functions, a gradient is computed from other gradients and from
    numbers, for instance when it is scaled or clipped; a new parameter is computed from the old
    one.

    Args:
        aliases: By index in the result, the index of an argument of the same shape and dtype.
        jaxpr: The flat program.
        leaves: Its inputs.
    """
    made_by = {v: equation for equation in jaxpr.eqns for v in equation.outvars}
    differentiated = [equation for equation in jaxpr.eqns if is_differentiated(equation)]
    parameters = {v for equation in differentiated for v in equation.invars if isinstance(v, Var)}
    state = {v for v, leaf in zip(jaxpr.invars, leaves, strict=True) if leaf.shape}
    return {
        result: leaf
        for result, leaf in aliases.items()
        if jaxpr.invars[leaf] not in parameters
        or not _is_gradient(jaxpr.outvars[result], jaxpr.invars[leaf], made_by, state)
    }


def _is_gradient(
    atom: Any, parameter: Var, made_by: Mapping[Var, JaxprEqn], state: Set[Var]
) -> bool:
    """Whether a value is computed from gradients, and from state only through gradients.

    State is `parameter`, which the value would replace, and all of `state`.
    """
    work, seen, is_of_gradients = deque([atom]), set[Var](), False
    while work:
        v = work.popleft()  # the nearest first: new state is mostly the old one plus something
        if isinstance(v, Literal) or v in seen:
            continue
        if v == parameter or v in state:
            return False
        seen.add(v)
        equation = made_by.get(v)
        if equation is not None and is_differentiated(equation):
            is_of_gradients |= is_backward(equation)
        elif equation is not None:
            work.extend(equation.invars)
    return is_of_gradients


def _roles(jaxpr: Any, phases: Sequence[int], leaves: Sequence[Argument]) -> list[str]:
    """The role of each argument: state that forward or backward reads is a parameter."""
    read = {
        v
        for equation, phase in zip(jaxpr.eqns, phases, strict=True)
        if phase != APPLY
        for v in equation.invars
        if isinstance(v, Var)
    }
    return [
        "batch"
        if leaf.is_batch
        else "other"
        if leaf.name.startswith("early.")
        else "parameter"
        if variable in read
        else "optimizer_state"
        for variable, leaf in zip(jaxpr.invars, leaves, strict=True)
    ]
