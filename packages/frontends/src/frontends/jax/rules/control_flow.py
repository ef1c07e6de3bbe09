"""Loops and branches that stay one operator: how they are split, and what runs on the parts.

A scan over time may have thousands of iterations, so it is not written out. Its rule follows from
those of the operators in its body (`autoshard.control_flow`): a dim that all of them can split,
such as that of the examples, is one that the scan can split. Then each device runs the same loop
on its part. The backward of a scan adds up the gradients of weights; each device adds up those of
its part, and the sums of all devices are added after the loop.

`jax.vmap` of a `while_loop` runs until no example goes on, and lets those that have ended as they
are. So a device may end as soon as none of its own examples goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import autoshard
import jax
import numpy as np
from autoshard import Accesses, ControlFlow, Factor, Graph, Operator, Output, Phase, Rule, Value

from frontends.base.cache_keys import cache_key
from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, aval
from frontends.jax.base.described import Described, Shape
from frontends.jax.rules.xla import XLA
from frontends.step.kernels import Kernels

KINDS = ("scan", "while", "cond")

_NOT_SPLIT = frozenset(
    ("iota", "pallas_call", "meshwright_attention", "meshwright_attention_gradient")
)
"""Operators that have to know which part they are, or send something; within a loop they do not."""


@dataclass(frozen=True, slots=True)
class Flows:
    """Rules of control flow, and its bodies for parts.

    Args:
        rule_of: The rule of any other equation.
        parameters_of_part: The parameters of an equation that change on parts.
    """

    rule_of: Callable[[JaxprEqn], Rule]
    parameters_of_part: Callable[[JaxprEqn, Sequence[Shape], Sequence[Shape]], Mapping[str, Any]]

    def of(self, equation: JaxprEqn) -> ControlFlow:
        """How a loop or a branch can be split."""
        operands = tuple(aval(v).shape for v in equation.invars)
        results = tuple(aval(v).shape for v in equation.outvars)
        flow = autoshard.control_flow(
            equation.primitive.name, operands, results, **self._attributes(equation)
        )
        literals = [equation.invars[i] for i in flow.summands]
        if any(isinstance(v, Literal) and np.any(v.val) for v in literals):
            # Microbatches would add such a number once for each.
            return ControlFlow(_without_sums(flow.rule), flow.dims, ())
        return flow

    def summands(self, equation: JaxprEqn) -> dict[int, int]:
        """Carries that a loop adds to, so that each counts once: its operand, and its result."""
        params = equation.params
        if equation.primitive.name == "scan":
            first = params["num_consts"]
        else:
            first = params.get("cond_nconsts", 0) + params.get("body_nconsts", 0)
        return {place: place - first for place in self.of(equation).summands}

    def part(self, call: Described) -> dict[str, Any]:
        """The bodies of control flow on parts, or on more examples."""
        equation, flow = call.equation, self.of(call.equation)
        parts: dict[int, Fraction] = {}
        whole = Described.of(equation)
        for dims, sizes, of_part in zip(
            flow.rule.operands + flow.rule.results,
            whole.operands + whole.results,
            call.operands + call.results,
            strict=True,
        ):
            for dim, n, m in zip(dims, sizes, of_part, strict=True):
                if n != m:
                    parts[dim[0]] = Fraction(m, n)

        changed: dict[str, Any] = {}
        number = 0
        for name in _BODIES[equation.primitive.name]:
            value, made = equation.params[name], []
            for body in _each(value):
                made.append(self._on_part(body, number, flow.dims, parts))
                number += 1
            changed[name] = tuple(made) if isinstance(value, tuple) else made[0]
        if equation.primitive.name == "scan":
            changed["length"] = self._length(call)
        return changed

    def _length(self, call: Described) -> int:
        """How many iterations a scan has on parts, which may be parts of its sequences."""
        params = call.equation.params
        n = params["num_carry"]
        sequences = [*call.operands[params["num_consts"] + n :], *call.results[n:]]
        return sequences[0][0] if sequences else int(params["length"])

    def launches(self, equation: JaxprEqn) -> float:
        """How many kernels XLA launches for a loop or a branch.

        A loop launches those of its body in each iteration, or once if their number is not known; a
        branch those of the branch with the most.
        """
        graphs = [
            self._graph(body)
            for name in _BODIES[equation.primitive.name]
            for body in _each(equation.params[name])
        ]
        launches = [
            sum(
                its.launches * (op.accesses.launches if op.accesses else 1.0)
                for op, its in zip(graph.operators, Kernels(graph, XLA).accesses(), strict=True)
            )
            for graph in graphs
        ]
        together = max(launches) if equation.primitive.name == "cond" else sum(launches)
        return float(equation.params.get("length", 1) * together)

    def accesses(self, equation: JaxprEqn) -> Accesses | None:
        """What it reads and launches, if it is control flow."""
        if equation.primitive.name not in KINDS:
            return None
        n = sum(isinstance(v, Var) for v in equation.invars) + len(equation.outvars)
        return Accesses((1.0,) * n, self.launches(equation))

    def _attributes(self, equation: JaxprEqn) -> dict[str, Any]:
        params, name = equation.params, equation.primitive.name
        if name == "scan":
            return {
                "body": self._graph(params["jaxpr"]),
                "n_constants": params["num_consts"],
                "n_carry": params["num_carry"],
            }
        if name == "cond":
            return {"branches": [self._graph(body) for body in params["branches"]]}
        return {
            "condition": self._graph(params["cond_jaxpr"], _goes_on(equation)),
            "body": self._graph(params["body_jaxpr"]),
            "n_condition_constants": params["cond_nconsts"],
            "n_body_constants": params["body_nconsts"],
        }

    def _graph(self, body: ClosedJaxpr, output: Var | None = None) -> Graph:
        """A body as a graph.

        Args:
            body: A program without calls.
            output: What it returns instead of its own results.
        """
        names = _names(body)
        operators = []
        for i, equation in enumerate(body.jaxpr.eqns):
            if output is not None and equation.outvars == body.jaxpr.outvars:
                continue
            rule = self._rule_inside(equation)
            inputs = tuple(names[v] for v in equation.invars if isinstance(v, Var))
            outputs = tuple(names[v] for v in equation.outvars)
            kind = "zeros" if _is_zeros(equation) else equation.primitive.name
            its = self.accesses(equation)
            operators.append(Operator(f"{i}", kind, inputs, outputs, rule, accesses=its))
        constants = body.jaxpr.constvars
        if constants:  # every device has the whole array
            shapes = tuple(aval(v).shape for v in constants)
            made = tuple(names[v] for v in constants)
            rule = autoshard.whole((), shapes)
            operators.insert(0, Operator("constants", "constants", (), made, rule))
        results = body.jaxpr.outvars if output is None else [output]
        outputs_of: list[Output] = []
        literals: list[Value] = []
        for i, v in enumerate(results):
            if isinstance(v, Literal):
                literals.append(Value(f"literal.{i}", aval(v).shape, str(aval(v).dtype)))
                outputs_of.append(Output(f"literal.{i}"))
            else:
                outputs_of.append(Output(names[v]))
        if literals:
            rule = autoshard.whole((), tuple(value.shape for value in literals))
            made = tuple(value.name for value in literals)
            operators.append(Operator("literals", "literals", (), made, rule))
        values = tuple(Value(n, tuple(aval(v).shape), str(aval(v).dtype)) for v, n in names.items())
        return Graph(
            (Phase("body"),),
            values + tuple(literals),
            tuple(operators),
            tuple(names[v] for v in body.jaxpr.invars),
            tuple(outputs_of),
        )

    def _rule_inside(self, equation: JaxprEqn) -> Rule:
        rule = self.rule_of(equation)
        if equation.primitive.name in _NOT_SPLIT or rule.sends:
            return autoshard.whole(rule.operand_shapes, rule.result_shapes)
        if equation.primitive.name.startswith("scatter"):  # its operand counts once
            return _without_sums(rule)
        return rule

    def _on_part(
        self,
        body: ClosedJaxpr,
        number: int,
        dims: Mapping[tuple[int, str], tuple[int | None, ...]],
        parts: Mapping[int, Fraction],
    ) -> ClosedJaxpr:
        """A body for parts of its arrays.

        Args:
            body: The body for whole arrays.
            number: Its number in `dims`.
            dims: By value, the factor that splits each of its dims.
            parts: By factor, how large a part is.
        """
        names = _names(body)

        def shape(v: Any) -> Shape:
            if isinstance(v, Literal):
                return aval(v).shape
            of_value = zip(aval(v).shape, dims[number, names[v]], strict=True)
            return tuple(n if f is None else int(n * parts.get(f, 1)) for n, f in of_value)

        def run(*inputs: Any) -> list[Any]:
            jaxpr = body.jaxpr
            values: dict[Any, Any] = dict(zip(jaxpr.constvars, body.consts, strict=True))
            values.update(zip(jaxpr.invars, inputs, strict=True))

            def read(v: Any) -> Any:
                return v.val if isinstance(v, Literal) else values[v]

            for equation in jaxpr.eqns:
                changed = self.parameters_of_part(
                    equation,
                    [shape(v) for v in equation.invars],
                    [shape(v) for v in equation.outvars],
                )
                params = {**equation.params, **changed}
                results = _compat.bind(equation, [read(v) for v in equation.invars], params)
                values.update(zip(equation.outvars, results, strict=True))
            return [read(v) for v in jaxpr.outvars]

        return jax.make_jaxpr(run)(
            *(_compat.variable_like(v, shape(v)).aval for v in body.jaxpr.invars)
        )


_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}
"""The parameters that hold the bodies, in the order of their graphs."""


def _without_sums(rule: Rule) -> Rule:
    """The rule, in which what is summed over stays whole."""
    factors = tuple(Factor(f.size, "whole") if f.kind == "reduce" else f for f in rule.factors)
    return replace(rule, factors=factors)


def _is_zeros(equation: JaxprEqn) -> bool:
    if equation.primitive.name != "broadcast_in_dim":
        return False
    (filled, *_) = equation.invars
    return isinstance(filled, Literal) and not np.any(filled.val)


def _each(value: Any) -> tuple[ClosedJaxpr, ...]:
    return value if isinstance(value, tuple) else (value,)


def _names(body: ClosedJaxpr) -> dict[Any, str]:
    """A name for each value of a body."""
    jaxpr = body.jaxpr
    made = [v for equation in jaxpr.eqns for v in equation.outvars]
    return {v: f"{i}" for i, v in enumerate((*jaxpr.constvars, *jaxpr.invars, *made))}


def _goes_on(equation: JaxprEqn) -> Var | None:
    """Of a `while_loop` under `vmap`: what says which examples go on; None if it is no such loop.

    Its condition is whether any of them goes on. Its body computes the same again, and takes the
    new value of a carry only for these examples.
    """
    params = equation.params
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    n, m = params["cond_nconsts"], params["body_nconsts"]
    made_in_body = {v: e for e in body.eqns for v in e.outvars}
    reduction = next((e for e in condition.eqns if e.outvars == condition.outvars), None)
    if reduction is None or reduction.primitive.name != "reduce_or":
        return None
    (going_on,) = reduction.invars
    numbers: dict[Any, int] = {}
    try:
        said = _Numbered(condition, (*equation.invars[:n], *range(len(body.outvars))), numbers)
        again = _Numbered(body, (*equation.invars[n : n + m], *range(len(body.outvars))), numbers)
        for before, after in zip(body.invars[m:], body.outvars, strict=True):
            if after is before:
                continue
            select = made_in_body.get(after) if isinstance(after, Var) else None
            if select is None or select.primitive.name != "select_n" or len(select.invars) != 3:
                return None
            which, old, _ = select.invars
            wide = made_in_body.get(which) if isinstance(which, Var) else None
            if wide is not None and wide.primitive.name == "broadcast_in_dim":
                which = wide.invars[0]
            if old is not before or again.of(which) != said.of(going_on):
                return None
    except TypeError:  # a parameter that cannot be hashed
        return None
    return going_on if isinstance(going_on, Var) else None


class _Numbered:
    """Numbers the values of a program: equal ones compute the same from the same.

    Args:
        jaxpr: The program.
        inputs: What its inputs are, for each: an operand, or anything that is equal only to itself.
        numbers: The numbers of all programs that are compared, to which this one adds.
    """

    def __init__(self, jaxpr: Jaxpr, inputs: Sequence[Any], numbers: dict[Any, int]) -> None:
        self._numbers = numbers
        self._of = {v: self._number(_key(x)) for v, x in zip(jaxpr.invars, inputs, strict=True)}
        for v in jaxpr.constvars:
            self._of[v] = self._number(("constant", v))
        for equation in jaxpr.eqns:
            read = tuple(map(self.of, equation.invars))
            key = equation.primitive.name, cache_key(equation.params), read
            for place, v in enumerate(equation.outvars):
                self._of[v] = self._number((*key, place))

    def of(self, atom: Any) -> int:
        """The number of a value."""
        return self._number(_key(atom)) if isinstance(atom, Literal) else self._of[atom]

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _key(atom: Any) -> Any:
    return ("literal", cache_key(atom.val)) if isinstance(atom, Literal) else ("input", atom)
