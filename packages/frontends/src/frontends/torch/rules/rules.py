"""The rule of each operator, those of PyTorch and those of users alike.

An operator without an entry runs unsharded, which is always right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import autoshard
import torch
from autoshard import Rule

from frontends.base.rule_table import Linear, OperatorEntry, Reduction, RuleTable, touched
from frontends.errors import RegistrationError
from frontends.torch.base.calls import Call, name_of
from frontends.torch.base.described import Described, Shapes
from frontends.torch.base.flat import Kind
from frontends.torch.rules.table import ENTRIES

_TABLE: RuleTable[str, Described] = RuleTable(ENTRIES.items(), "frontends.torch.rules")


def register_rule(
    operator: str | Callable[..., Any],
    rule: str | Callable[[Described], Rule],
    *,
    whole: str = "",
    reduction: Reduction = "sum",
    linear: Linear = (),
    flops: Callable[[Described], float] | None = None,
    part: Callable[[Described], Mapping[str, Any]] | None = None,
) -> None:
    """Let all plans that are made from now on shard an operator.

    A distribution need not be imported for its rules: each entry point of the group
    `frontends.torch.rules` is a function without arguments that registers them.

    Without a rule every device runs all of an operator. With one, a device runs it on its parts of
    the operands, and makes its parts of the results.

    Args:
        operator: What `torch.library.custom_op` makes, an operator in `torch.ops`, or its name, as
            `mylib::norm`. All overloads have the same rule.
        rule: As einsum writes it, a letter a dim and `...` for any others: `"...k,kn->...n"`. A dim
            whose letter a result lacks is summed over. Or a function that makes an
            `autoshard.Rule` of a call, of its shapes (`operands`, `results`) and of its other
            arguments (`attributes`), for what has no formula.
        whole: Letters of dims that no device may have only a part of, as softmax's.
        reduction: How the parts of a dim that a result lacks become one, if not by a sum.
        linear: Sets of operands in which the operator is jointly linear, so that it may run on
            addends of a sum: `((0,), (1,))` of a product, `((0, 1),)` of a sum, none of `tanh`.
        flops: Floating-point operations of a call; by default one an element that it touches.
        part: The arguments that hold shapes of whole tensors, as they are for the parts whose
            shapes the `operands` and `results` of its argument are.

    Raises:
        RegistrationError: There is no such operator, it has another rule already, or this is none.
    """
    name = name_of(_overload(operator))
    _TABLE.add(name, OperatorEntry.of(rule, whole, reduction, linear, flops, part))


def has_rule(name: str) -> bool:
    """Whether an operator can be sharded; without a rule it runs whole on every device."""
    return _TABLE.get(name) is not None


def rule_of(
    call: Call, operands: Sequence[Kind], results: Sequence[Kind], *, masked: bool = True
) -> Rule:
    """The sharding rule of a call.

    Args:
        call: Any.
        operands: Shapes and types of its operands.
        results: Those of what it makes.
        masked: Whether what is indexed may be split, as devices can; microbatches cannot.
    """
    described = Described.of(call, operands, results, masked=masked)
    entry = _TABLE.get(call.name)
    if entry is None:
        return autoshard.whole(described.operands, described.results)
    return entry.rule_of(call.name, described)


def flops_of(call: Call, operands: Sequence[Kind], results: Sequence[Kind]) -> float:
    """Floating-point operations: 2 a multiply-add of products, else one an element touched."""
    described, entry = Described.of(call, operands, results), _TABLE.get(call.name)
    return touched(described) if entry is None else entry.flops_of(described)


def call_of_part(call: Call, operands: Shapes, results: Shapes) -> Call:
    """The call that makes a part of its results out of parts of its operands.

    Args:
        call: On whole tensors.
        operands: Shapes of the parts of its operands.
        results: Shapes of the parts of its results.
    """
    entry = _TABLE.get(call.name)
    if entry is None or entry.part is None:
        return call
    return call.replace(**entry.part(Described(call, operands, results)))


class Rules:
    """Rules and FLOP of calls; those of equal calls are made once.

    Args:
        masked: As in `rule_of`.
    """

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        self._known: dict[Any, tuple[Rule, float]] = {}

    def of(
        self, call: Call, operands: Sequence[Kind], results: Sequence[Kind]
    ) -> tuple[Rule, float]:
        """The rule of a call, and its floating-point operations."""
        entry = _TABLE.get(call.name)  # which may have come since
        key = (call.key, entry, tuple(operands), tuple(results))
        found = self._known.get(key)
        if found is None:
            rule = rule_of(call, operands, results, masked=self._masked)
            found = self._known[key] = rule, flops_of(call, operands, results)
        return found


def shares_of_whole(graph: autoshard.Graph, calls: Mapping[str, Call]) -> dict[str, float]:
    """The share of FLOP of each operator without a rule, the largest first.

    Args:
        graph: Of a step.
        calls: By the names of its operators.
    """
    flops: dict[str, float] = defaultdict(float)
    for op in graph.operators:
        if op.name in calls:
            flops[calls[op.name].name] += op.flops
    total = sum(flops.values()) or 1.0
    whole = {name: count / total for name, count in flops.items() if not has_rule(name)}
    return dict(sorted(whole.items(), key=lambda item: (-item[1], item[0])))


def _overload(operator: Any) -> torch._ops.OpOverload:
    """One of the overloads of what a user calls an operator."""
    packet = getattr(operator, "_opoverload", operator)  # of what custom_op makes
    if isinstance(operator, str) and operator.count("::") == 1:
        namespace, name = operator.split("::")
        packet = getattr(getattr(torch.ops, namespace), name, None)
    if isinstance(packet, torch._ops.OpOverloadPacket):
        names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
        packet = getattr(packet, names[0])
    if not isinstance(packet, torch._ops.OpOverload):
        raise RegistrationError(
            "a rule is that of an operator that torch.library.custom_op has made, or that "
            f"torch.ops has, as in 'mylib::norm'; got {operator!r}"
        )
    return packet
