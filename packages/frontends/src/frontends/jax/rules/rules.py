"""The rules of all primitives, those of JAX and those that users register.

A primitive without an entry runs unsharded, which is always correct.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import autoshard
from autoshard import Accesses, Rule
from jax.extend.core import Primitive

from frontends.base.rule_table import Linear, OperatorEntry, Reduction, RuleTable, touched
from frontends.errors import RegistrationError
from frontends.jax.base._compat import JaxprEqn, Literal
from frontends.jax.base.described import Described, Shape
from frontends.jax.base.loops import bodies_of
from frontends.jax.rules.control_flow import KINDS, Flows
from frontends.jax.rules.copies import Equal, equal_dims
from frontends.jax.rules.custom_op import CustomOp
from frontends.jax.rules.table import ENTRIES

_TABLE: RuleTable[Primitive | str, Described] = RuleTable(ENTRIES.items(), "frontends.jax.rules")
"""JAX's primitives are keyed by name. Those of users are keyed by the primitive itself, as another
one may have the same name."""


def register_rule(
    primitive: Primitive | CustomOp,
    rule: str | Callable[[Described], Rule],
    *,
    whole: str = "",
    reduction: Reduction = "sum",
    linear: Linear = (),
    flops: Callable[[Described], float] | None = None,
    part: Callable[[Described], Mapping[str, Any]] | None = None,
) -> None:
    """Tell all plans that are made from now on how a primitive may be sharded.

    Without a rule, every device runs the primitive on whole arrays. With a rule, a device runs it
    on its parts of the operands and gets its parts of the results.

    A distribution can offer rules without being imported: each entry point of the group
    `frontends.jax.rules` is a function without arguments that registers them.

    Args:
        primitive: A primitive of the user or of a library, or the result of `custom_op`.
        rule: An einsum formula with a letter for each dim and `...` for any others:
            `"...k,kn->...n"`. A dim whose letter a result lacks is summed over. For what has no
            formula, a function that makes an `autoshard.Rule` from an equation, namely from its
            shapes (`operands`, `results`) and its parameters (`attributes`).
        whole: Letters of dims that must not be split, such as the dim of a softmax.
        reduction: How partial results over a dim that a result lacks are combined, if not by a sum.
        linear: Sets of operands in which the primitive is jointly linear, so that it may run on
            partial sums: `((0,), (1,))` for a product, `((0, 1),)` for a sum, `()` for `tanh`.
        flops: Floating-point operations of an equation. Default: one for each element that it
            touches.
        part: For parameters that hold shapes of whole arrays: returns them as they are for parts.
            The shapes of the parts are the `operands` and `results` of its argument.

    Raises:
        RegistrationError: The primitive has another rule already, or `rule` is not a rule.
    """
    if isinstance(primitive, CustomOp):
        primitive = primitive.primitive
    if not isinstance(primitive, Primitive):
        raise RegistrationError(
            "a rule is registered for a primitive, or for a function that frontends.jax.custom_op "
            f"has made one; got {primitive!r}"
        )
    _TABLE.add(primitive, OperatorEntry.of(rule, whole, reduction, linear, flops, part))


def has_rule(primitive: Primitive) -> bool:
    """Whether a primitive can be sharded; without a rule, every device runs all of it."""
    return entry_of(primitive) is not None


def entry_of(primitive: Primitive) -> OperatorEntry[Described] | None:
    """The rule and the costs of a primitive; None if it has no entry."""
    return _TABLE.get(primitive) or _TABLE.get(primitive.name)


def rule_of(equation: JaxprEqn, *, masked: bool = True) -> Rule:
    """The sharding rule of an equation, for its operands that are not literals.

    Args:
        equation: Any equation on whole arrays.
        masked: Whether dims that are indexed may be split: devices can mask indices, microbatches
            cannot.
    """
    call, entry = Described.of(equation, masked=masked), entry_of(equation.primitive)
    if entry is None:
        rule = autoshard.whole(call.operands, call.results)
    else:
        rule = entry.rule_of(equation.primitive.name, call)
    return rule.without({i for i, atom in enumerate(equation.invars) if isinstance(atom, Literal)})


def flops_of(equation: JaxprEqn) -> float:
    """Floating-point operations: 2 per multiply-add in products, else one per element touched.

    A loop counts its body once per iteration, or once if the number of iterations is not known. A
    `cond` counts its most expensive branch.
    """
    entry = entry_of(equation.primitive)
    if bodies := bodies_of(equation) if entry is None or equation.primitive.name in KINDS else []:
        flops = [sum(map(flops_of, body.jaxpr.eqns)) for body in bodies]
        together = max(flops) if equation.primitive.name == "cond" else sum(flops)
        return float(equation.params.get("length", 1) * together)
    call = Described.of(equation)
    return touched(call) if entry is None else entry.flops_of(call)


def parameters_of_part(
    equation: JaxprEqn, operands: Sequence[Shape], results: Sequence[Shape]
) -> dict[str, Any]:
    """The parameters that change if an equation runs on parts: those that hold shapes.

    Args:
        equation: The equation on whole arrays.
        operands: Shapes of the parts of its operands.
        results: Shapes of the parts of its results.
    """
    entry = entry_of(equation.primitive)
    call = Described(equation, tuple(operands), tuple(results))
    return {} if entry is None or entry.part is None or call.is_whole else {**entry.part(call)}


def summands_of(equation: JaxprEqn) -> dict[int, int]:
    """Operands that are added once to the sum of what devices or microbatches compute.

    Returns:
        For each, the result that is this sum.
    """
    if equation.primitive.name in KINDS:
        return _FLOWS.summands(equation)
    return {0: 0} if equation.primitive.name == "scatter-add" else {}


def equal_dims_of(equation: JaxprEqn, operands: Sequence[Equal]) -> tuple[Equal, ...]:
    """For each result: the dims along which all slices are equal, given those of the operands."""
    return equal_dims(equation, operands, functools.partial(rule_of, masked=False))


def accesses_of(equation: JaxprEqn) -> Accesses | None:
    """What a loop or a branch launches, which is priced; None for any other equation."""
    return _FLOWS.accesses(equation)


def whole_share(equations: Iterable[JaxprEqn]) -> float:
    """The share of the equations' floating-point operations that run unsharded, without a rule."""
    return sum(shares_of_whole(equations).values())


def shares_of_whole(equations: Iterable[JaxprEqn]) -> dict[str, float]:
    """The same share for each primitive without a rule, the largest first; also within loops."""
    flops: dict[str, float] = defaultdict(float)
    total = 0.0

    def add(equation: JaxprEqn, times: float) -> None:
        if equation.primitive.name in KINDS:
            for body in bodies_of(equation):
                for inner in body.jaxpr.eqns:
                    add(inner, times * equation.params.get("length", 1))
        elif not has_rule(equation.primitive):
            flops[equation.primitive.name] += times * flops_of(equation)

    for equation in equations:
        total += flops_of(equation)
        add(equation, 1.0)
    whole = {name: count / (total or 1.0) for name, count in flops.items()}
    return dict(sorted(whole.items(), key=lambda item: (-item[1], item[0])))


_FLOWS = Flows(functools.partial(rule_of, masked=False), parameters_of_part)
for _kind in KINDS:
    _TABLE.add(_kind, OperatorEntry(lambda call: _FLOWS.of(call.equation).rule, part=_FLOWS.part))
