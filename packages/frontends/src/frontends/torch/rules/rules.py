"""Looks up the sharding rule of an operator, whether PyTorch's or registered by a user.

An operator without an entry runs unsharded, which is always correct.
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
from frontends.torch.base.flat import TensorType
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
    """Register the sharding rule of an operator, for all plans that are made from now on.

    Without a rule, every device runs the whole operator. With one, a device runs it on its shards
    of the operands, and gets its shards of the results.

    A distribution can register its rules without being imported: each entry point of the group
    `frontends.torch.rules` is a function without arguments that registers them.

    Args:
        operator: The result of `torch.library.custom_op`, an operator in `torch.ops`, or its name,
            such as `mylib::norm`. The rule holds for all overloads.
        rule: A formula in einsum notation, with a letter for each dim and `...` for any others:
            `"...k,kn->...n"`. A dim whose letter a result lacks is summed over. For operators
            without such a formula, a function from a call, with its shapes (`operands`, `results`)
            and other arguments (`attributes`), to an `autoshard.Rule`.
        whole: Letters of dims that cannot be split, such as softmax's.
        reduction: How shards of a dim that a result lacks are combined, if not by a sum.
        linear: Sets of operands in which the operator is jointly linear, so that it can run on
            addends of a partial sum: `((0,), (1,))` for a product, `((0, 1),)` for a sum, none for
            `tanh`.
        flops: Floating-point operations of a call; by default one for each element that it touches.
        part: For a call whose arguments hold shapes of whole tensors: returns these arguments for
            a call on parts, which have the shapes `operands` and `results` of its argument.

    Raises:
        RegistrationError: There is no such operator, it has a rule already, or the rule is invalid.
    """
    name = name_of(_overload(operator))
    _TABLE.add(name, OperatorEntry.of(rule, whole, reduction, linear, flops, part))


def has_rule(name: str) -> bool:
    """Return whether an operator has a rule; without one it runs whole on every device."""
    return _TABLE.get(name) is not None


def rule_of(
    call: Call,
    operands: Sequence[TensorType],
    results: Sequence[TensorType],
    *,
    masked: bool = True,
) -> Rule:
    """Return the sharding rule of a call.

    Args:
        call: The call.
        operands: Shapes and types of its operands.
        results: Shapes and types of its results.
        masked: Whether indexed dims may be split: devices can mask, microbatches cannot.
    """
    described = Described.of(call, operands, results, masked=masked)
    entry = _TABLE.get(call.name)
    if entry is None:
        return autoshard.whole(described.operands, described.results)
    return entry.rule_of(call.name, described)


def flops_of(call: Call, operands: Sequence[TensorType], results: Sequence[TensorType]) -> float:
    """Return the FLOP: 2 for a multiply-add of a product, else 1 for each element touched."""
    described, entry = Described.of(call, operands, results), _TABLE.get(call.name)
    return touched(described) if entry is None else entry.flops_of(described)


def call_of_part(call: Call, operands: Shapes, results: Shapes) -> Call:
    """Return the call that computes a part of the results from parts of the operands.

    Args:
        call: The call on whole tensors.
        operands: Shapes of the parts of its operands.
        results: Shapes of the parts of its results.
    """
    entry = _TABLE.get(call.name)
    if entry is None or entry.part is None:
        return call
    return call.replace(**entry.part(Described(call, operands, results)))


class Rules:
    """Rules and FLOP of calls, cached: equal calls share them.

    Args:
        masked: As in `rule_of`.
    """

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        self._known: dict[Any, tuple[Rule, float]] = {}

    def of(
        self, call: Call, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> tuple[Rule, float]:
        """Return the rule of a call, and its floating-point operations."""
        entry = _TABLE.get(call.name)  # in the key, as it may be registered later
        key = (call.key, entry, tuple(operands), tuple(results))
        known = self._known.get(key)
        if known is None:
            rule = rule_of(call, operands, results, masked=self._masked)
            known = self._known[key] = rule, flops_of(call, operands, results)
        return known


def shares_of_whole(graph: autoshard.Graph, calls: Mapping[str, Call]) -> dict[str, float]:
    """Return the share of the step's FLOP of each operator without a rule, the largest first.

    Args:
        graph: The step.
        calls: Its calls, by the names of the graph's operators.
    """
    flops: dict[str, float] = defaultdict(float)
    for op in graph.operators:
        if op.name in calls:
            flops[calls[op.name].name] += op.flops
    total = sum(flops.values()) or 1.0
    whole = {name: count / total for name, count in flops.items() if not has_rule(name)}
    return dict(sorted(whole.items(), key=lambda item: (-item[1], item[0])))


def _overload(operator: Any) -> torch._ops.OpOverload:
    """Return an overload of what the user passes as operator."""
    packet = getattr(operator, "_opoverload", operator)  # the attribute is that of a custom_op
    if isinstance(operator, str) and operator.count("::") == 1:
        namespace, name = operator.split("::")
        packet = getattr(getattr(torch.ops, namespace), name, None)
    if isinstance(packet, torch._ops.OpOverloadPacket):
        names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
        packet = getattr(packet, names[0])
    if not isinstance(packet, torch._ops.OpOverload):
        raise RegistrationError(
            "a rule belongs to an operator that torch.library.custom_op has made, or that "
            f"torch.ops has, such as 'mylib::norm'; got {operator!r}"
        )
    return packet
