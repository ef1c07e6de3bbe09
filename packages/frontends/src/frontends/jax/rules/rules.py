"""The rule of each primitive, those of JAX and those of users alike.

A primitive without an entry runs unsharded, which is always right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import autoshard
from autoshard import Rule
from jax.extend.core import Primitive

from frontends.base.rule_table import Linear, OperatorEntry, Reduction, RuleTable, touched
from frontends.errors import RegistrationError
from frontends.jax.base._compat import JaxprEqn, Literal
from frontends.jax.base.described import Described, Shape
from frontends.jax.base.loops import bodies_of
from frontends.jax.rules.custom_op import CustomOp
from frontends.jax.rules.table import ENTRIES

_TABLE: RuleTable[Primitive | str, Described] = RuleTable(ENTRIES.items(), "frontends.jax.rules")
"""JAX's primitives by name, those of users themselves: others may have the same name."""


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
    """Let all plans that are made from now on shard a primitive.

    A distribution need not be imported for its rules: each entry point of the group
    `frontends.jax.rules` is a function without arguments that registers them.

    Without a rule every device runs all of a primitive. With one, a device runs it on its parts of
    the operands, and makes its parts of the results.

    Args:
        primitive: Of the user or of a library, or what `custom_op` makes of a function.
        rule: As einsum writes it, a letter a dim and `...` for any others: `"...k,kn->...n"`. A dim
            whose letter a result lacks is summed over. Or a function that makes an
            `autoshard.Rule` of an equation, of its shapes (`operands`, `results`) and its
            parameters (`attributes`), for what has no formula.
        whole: Letters of dims that no device may have only a part of, as softmax's.
        reduction: How the parts of a dim that a result lacks become one, if not by a sum.
        linear: Sets of operands in which the primitive is jointly linear, so that it may run on
            addends of a sum: `((0,), (1,))` of a product, `((0, 1),)` of a sum, none of `tanh`.
        flops: Floating-point operations of an equation; by default one an element that it touches.
        part: The parameters that hold shapes of whole arrays, as they are for the parts whose
            shapes the `operands` and `results` of its argument are.

    Raises:
        RegistrationError: It has another rule already, or this is none.
    """
    if isinstance(primitive, CustomOp):
        primitive = primitive.primitive
    if not isinstance(primitive, Primitive):
        raise RegistrationError(
            "a rule is that of a primitive, or of a function in frontends.jax.custom_op, which "
            f"makes one of it; got {primitive!r}"
        )
    _TABLE.add(primitive, OperatorEntry.of(rule, whole, reduction, linear, flops, part))


def has_rule(primitive: Primitive) -> bool:
    """Whether a primitive can be sharded; without a rule it runs whole on every device."""
    return entry_of(primitive) is not None


def entry_of(primitive: Primitive) -> OperatorEntry[Described] | None:
    """What is known of a primitive."""
    return _TABLE.get(primitive) or _TABLE.get(primitive.name)


def rule_of(equation: JaxprEqn, *, masked: bool = True) -> Rule:
    """The sharding rule of an equation over its operands that are not literals.

    Args:
        equation: Any.
        masked: Whether what is indexed may be split, as devices can; microbatches cannot.
    """
    call, found = Described.of(equation, masked=masked), entry_of(equation.primitive)
    if found is None:
        rule = autoshard.whole(call.operands, call.results)
    else:
        rule = found.rule_of(equation.primitive.name, call)
    return rule.without({i for i, atom in enumerate(equation.invars) if isinstance(atom, Literal)})


def flops_of(equation: JaxprEqn) -> float:
    """Floating-point operations: 2 a multiply-add of products, else one an element touched.

    Those of a loop are its body's in each iteration, in one if nobody knows how many there will be;
    those of branches are the dearest branch's.
    """
    found = entry_of(equation.primitive)
    if found is None and (bodies := bodies_of(equation)):
        flops = [sum(map(flops_of, body.jaxpr.eqns)) for body in bodies]
        together = max(flops) if equation.primitive.name == "cond" else sum(flops)
        return float(equation.params.get("length", 1) * together)
    call = Described.of(equation)
    return touched(call) if found is None else found.flops_of(call)


def parameters_of_part(
    equation: JaxprEqn, operands: Sequence[Shape], results: Sequence[Shape]
) -> dict[str, Any]:
    """The parameters that differ for a part of an equation: those that hold shapes.

    Args:
        equation: The primitive and its parameters, for whole arrays.
        operands: Shapes of the parts of its operands.
        results: Shapes of the parts of its results.
    """
    found = entry_of(equation.primitive)
    call = Described(equation, tuple(operands), tuple(results))
    return {} if found is None or found.part is None or call.is_whole else {**found.part(call)}


def whole_share(equations: Iterable[JaxprEqn]) -> float:
    """The share of some equations' floating-point operations that run whole for lack of a rule."""
    return sum(shares_of_whole(equations).values())


def shares_of_whole(equations: Iterable[JaxprEqn]) -> dict[str, float]:
    """The same for each primitive without a rule, the largest first."""
    flops: dict[str, float] = defaultdict(float)
    total = 0.0
    for equation in equations:
        count = flops_of(equation)
        total += count
        if not has_rule(equation.primitive):
            flops[equation.primitive.name] += count
    whole = {name: count / (total or 1.0) for name, count in flops.items()}
    return dict(sorted(whole.items(), key=lambda item: (-item[1], item[0])))
