"""Numbers that a program is given, or takes out of tensors, and what Python asks of them.

Of torch 2.13 it touches `ShapeEnv` of `fx.experimental.symbolic_shapes`, which is asked for what an
expression of symbols is, the node of a symbolic number, and what lets tensors be taken for meta
ones (`_C._PreserveDispatchKeyGuard`).
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
    """Numbers that a program is given anew at each call: names in it, which have values meanwhile.

    Where Python asks for one, as `if weight_decay != 0` does, the answer is that of now, and is
    kept: the program is one for all numbers that give the same answers. Of a tensor's number that
    is not known before the step runs, an answer is supposed.

    Args:
        answers: What to suppose.
    """

    def __init__(self, answers: Answers) -> None:
        super().__init__(allow_dynamic_output_shape_ops=False)
        self.known: dict[Any, float | int] = {}
        """By symbol, what it is now."""

        self.answers: dict[Any, Any] = {}
        """By expression of known symbols, what Python was told."""

        self.looked_up: list[Any] = []
        """Those of the known symbols that are numbers of tensors."""

        self.supposed: dict[Any, bool] = {}
        """By expression of other symbols, what Python was told."""

        self.tensors: Known | None = None
        self._answers = answers
        self._alike: dict[Any, set[tuple[int, ...]]] | None = None

    def evaluate_expr(self, orig_expr: Any, *args: Any, **named: Any) -> Any:
        """What an expression is; of numbers that are not known before the step runs, an error."""
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
        """What to tell Python of numbers that are not known; the same if it asks again."""
        if condition not in self.supposed:
            guess = self._guess(condition)
            self.supposed[condition] = self._answers.to(condition, calling_line, guess)
        return self.supposed[condition]

    def _guess(self, condition: Any) -> bool:
        """People check that all is well, and compare with what is too large or too small."""
        if not isinstance(condition, sympy.Eq):
            return isinstance(condition, IsFinite)
        node = self._item(next(iter(condition.free_symbols)))
        source = None if node is None else node[0].args[0]
        name = str(getattr(source, "target", "")).split(".")[1:2]
        return name not in (["lt"], ["gt"], ["le"], ["ge"], ["any"], ["isnan"], ["isinf"])

    @property
    def computed(self) -> tuple[Any, ...]:
        """The symbols of numbers that are not known, of which something was supposed."""
        asked = {symbol for condition in self.supposed for symbol in condition.free_symbols}
        return tuple(sorted(asked - self.known.keys(), key=str))

    def _are_known(self, symbols: Collection[Any]) -> bool:
        for symbol in symbols - self.known.keys():
            found = self._item(symbol)
            if found is None or found[1] is Unknown:
                return False
            self.known[symbol] = int(found[1]) if isinstance(found[1], bool) else found[1]
            self.looked_up.append(symbol)
        return True

    def _are_of_tensors(self, symbols: Collection[Any]) -> bool:
        unknown = symbols - self.known.keys()
        return all(self._item(symbol) is not None for symbol in unknown)

    def _item(self, symbol: Any) -> tuple[Node, Any] | None:
        # a stand-in's operator may ask, inside of which all tensors are taken for meta ones
        with _disable_current_modes(), torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(False)
            return None if self.tensors is None else self.tensors.item(symbol)

    def value_of(self, number: Any) -> float | int | bool:
        """What a number of Python's is that was computed from known ones.

        Raises:
            KeyError: It depends on more.
        """
        if not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
            return number  # type: ignore[no-any-return]
        expression = number.node.expr
        if not self.known.keys() >= expression.free_symbols:
            raise KeyError(str(expression))
        python: type = number.node.pytype
        return python(expression.subs(self.known))  # type: ignore[no-any-return]

    def holds(self, numbers: Sequence[float | int]) -> bool:
        """Whether Python would be told the same of other numbers, given in the symbols' order."""
        if self._alike is None:
            self._alike = _alike(self.answers, tuple(self.known))
        return all(
            template.subs(dict(zip(symbols, values, strict=True))) == answer
            for (template, symbols, answer), places in self._alike.items()
            for values in {tuple(numbers[at] for at in place) for place in places}
        )


def _alike(answers: Mapping[Any, Any], known: Sequence[Any]) -> dict[Any, set[tuple[int, ...]]]:
    """Expressions that differ in their symbols alone, as those of each parameter's update.

    Returns:
        By an expression, its symbols and its value: the places, among the known symbols, of those
        for which they stand.
    """
    place = {symbol: at for at, symbol in enumerate(known)}
    found: dict[Any, set[tuple[int, ...]]] = {}
    for expression, answer in answers.items():
        mine = sorted(expression.free_symbols, key=place.__getitem__)
        names = [sympy.Symbol(f"{i}", **symbol.assumptions0) for i, symbol in enumerate(mine)]
        template = expression.xreplace(dict(zip(mine, names, strict=True)))
        key = template, tuple(names), answer
        found.setdefault(key, set()).add(tuple(place[symbol] for symbol in mine))
    return found
