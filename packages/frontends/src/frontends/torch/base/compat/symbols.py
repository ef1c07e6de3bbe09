"""Symbols for numbers that a program is given or reads from tensors, and the answers Python gets.

Private interfaces of torch 2.13 in use: `ShapeEnv` of `fx.experimental.symbolic_shapes`, which
torch asks for the value of an expression of symbols; the node of a symbolic number; and what makes
torch take tensors for meta tensors (`_C._PreserveDispatchKeyGuard`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from frontends.torch.base.known import Known, Unknown
from frontends.torch.base.origins import calling_line
from frontends.torch.base.supposed import Answers, IsFinite


class Numbers(ShapeEnv):
    """Symbols for the numbers that may differ at each call, with their values during the capture.

    Where Python needs a value, as in `if weight_decay != 0`, it gets the answer for the current
    values, and the answer is recorded: the program is valid for all numbers that give the same
    answers. For a number of a tensor that is not known before the step runs, an answer is supposed.

    Args:
        answers: Gives the supposed answers.
    """

    def __init__(self, answers: Answers) -> None:
        super().__init__(allow_dynamic_output_shape_ops=False)
        self.known: dict[Any, float | int] = {}
        """By symbol, its current value."""

        self.answers: dict[Any, Any] = {}
        """By expression of known symbols, the answer that Python got."""

        self.looked_up: list[Any] = []
        """Those of the known symbols that are numbers of tensors."""

        self.supposed: dict[Any, bool] = {}
        """By condition with unknown symbols, the answer that Python got."""

        self.tensors: Known | None = None
        self._answers = answers
        self._alike: dict[Any, set[tuple[int, ...]]] | None = None

    def evaluate_expr(self, orig_expr: Any, *args: Any, **named: Any) -> Any:
        """Return the value of an expression.

        A condition on numbers of tensors that are not known before the step runs gets a supposed
        answer; any other expression of unknown numbers is an error, torch's own.
        """
        symbols = getattr(orig_expr, "free_symbols", None)
        if not symbols:
            return super().evaluate_expr(orig_expr, *args, **named)
        if self._are_known(symbols):
            if orig_expr not in self.answers:
                self.answers[orig_expr] = orig_expr.subs(self.known)
            return self.answers[orig_expr]
        conditions = sympy.core.relational.Relational, sympy.logic.boolalg.BooleanFunction
        is_condition = isinstance(orig_expr, conditions)
        if is_condition and named.get("fallback_value") is None and self._are_of_tensors(symbols):
            return sympy.true if self.suppose(orig_expr) else sympy.false
        return super().evaluate_expr(orig_expr, *args, **named)

    def suppose(self, condition: Any) -> bool:
        """Return the supposed answer to a condition; the same one if Python asks again."""
        if condition not in self.supposed:
            guess = self._guess(condition)
            self.supposed[condition] = self._answers.to(condition, calling_line, guess)
        return self.supposed[condition]

    def _guess(self, condition: Any) -> bool:
        """Guess an answer: checks of validity pass, comparisons with a limit are false."""
        if not isinstance(condition, sympy.Eq):
            return isinstance(condition, IsFinite)
        node = self._item(next(iter(condition.free_symbols)))
        source = None if node is None else node[0].args[0]
        name = str(getattr(source, "target", "")).split(".")[1:2]
        return name not in (["lt"], ["gt"], ["le"], ["ge"], ["any"], ["isnan"], ["isinf"])

    @property
    def computed(self) -> tuple[Any, ...]:
        """The symbols of unknown numbers that occur in a supposed answer."""
        asked = {symbol for condition in self.supposed for symbol in condition.free_symbols}
        return tuple(sorted(asked - self.known.keys(), key=str))

    def _are_known(self, symbols: Collection[Any]) -> bool:
        for symbol in symbols - self.known.keys():
            item = self._item(symbol)
            if item is None or item[1] is Unknown:
                return False
            self.known[symbol] = int(item[1]) if isinstance(item[1], bool) else item[1]
            self.looked_up.append(symbol)
        return True

    def _are_of_tensors(self, symbols: Collection[Any]) -> bool:
        unknown = symbols - self.known.keys()
        return all(self._item(symbol) is not None for symbol in unknown)

    def _item(self, symbol: Any) -> tuple[Node, Any] | None:
        # may be called inside an operator on stand-ins, where torch takes all tensors for meta ones
        with _disable_current_modes(), torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(False)
            return None if self.tensors is None else self.tensors.item(symbol)

    def holds(self, numbers: Sequence[float | int]) -> bool:
        """Return whether other numbers, in the symbols' order, give Python the same answers."""
        if self._alike is None:
            self._alike = _alike(self.answers, tuple(self.known))
        return all(
            template.subs(dict(zip(symbols, values, strict=True))) == answer
            for (template, symbols, answer), places in self._alike.items()
            for values in {tuple(numbers[at] for at in place) for place in places}
        )


def _alike(answers: Mapping[Any, Any], known: Sequence[Any]) -> dict[Any, set[tuple[int, ...]]]:
    """Group expressions that differ only in their symbols, as those of each parameter's update do.

    Returns:
        By template, its symbols and the answer: for each expression of the group, the indices among
        the known symbols of those that it has in the place of the template's.
    """
    place = {symbol: at for at, symbol in enumerate(known)}
    groups: dict[Any, set[tuple[int, ...]]] = {}
    for expression, answer in answers.items():
        symbols = sorted(expression.free_symbols, key=place.__getitem__)
        names = [sympy.Symbol(f"{i}", **symbol.assumptions0) for i, symbol in enumerate(symbols)]
        template = expression.xreplace(dict(zip(symbols, names, strict=True)))
        key = template, tuple(names), answer
        groups.setdefault(key, set()).add(tuple(place[symbol] for symbol in symbols))
    return groups
