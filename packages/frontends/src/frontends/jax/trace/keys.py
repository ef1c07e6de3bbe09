"""What the keys are by which a program sorts rows, and which it counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from frontends.jax.base._compat import JaxprEqn, Literal, Var, aval
from frontends.step.sorted_rows import EXACT

_AS_IT_IS = ("reshape", "copy", "convert_element_type", "squeeze")
_PARTS = ("slice", "transpose", "broadcast_in_dim", "rev", "split")
"""Primitives whose results have no elements that the operand lacks."""


class Keys:
    """The keys of a program.

    Args:
        made_by: By variable, the equation that makes it.
    """

    def __init__(self, made_by: Mapping[Var, JaxprEqn]) -> None:
        self._made_by = made_by
        self._permuted: dict[Var, Var] = {}

    def let_permuted(self, variable: Var, of: Var) -> None:
        """Let it be known that a variable has the elements of another one, in another order."""
        self._permuted[variable] = of

    def root(self, atom: Any) -> Any:
        """The variable whose elements, in any order, an operand consists of."""
        if atom in self._permuted:
            return self.root(self._permuted[atom])
        same = self._same(atom)
        return atom if same is None else self.root(same)

    def are_natural(self, atom: Any) -> bool:
        """Whether an operand consists of integers that are not negative."""
        if isinstance(atom, Literal):
            return self._is_at_least_zero(atom)
        if atom in self._permuted:
            return self.are_natural(self._permuted[atom])
        equation = self._made_by.get(atom)
        if equation is None:
            return False
        name = equation.primitive.name
        if name in ("argmax", "argmin") or (name == "top_k" and atom is equation.outvars[1]):
            return True
        if name == "max":
            return any(self._is_at_least_zero(v) for v in equation.invars)
        if name == "concatenate":
            return all(map(self.are_natural, equation.invars))
        same = equation.invars[0] if name in _PARTS else self._same(atom)
        return same is not None and self.are_natural(same)

    def of_one_hot(self, atom: Any) -> Any | None:
        """The keys that an operand has as one-hot vectors along its last dim, by their root."""
        equation = self._made_by.get(atom) if isinstance(atom, Var) else None
        if equation is None:
            return None
        if equation.primitive.name == "convert_element_type":
            return self.of_one_hot(equation.invars[0])
        if equation.primitive.name != "eq":
            return None
        for keys, classes in (equation.invars, equation.invars[::-1]):
            source = self._source_of_copies(keys)
            if source is not None and self._counts_classes(classes) and self.are_natural(source):
                return self.root(source)
        return None

    def are_ones(self, atom: Any) -> bool:
        """Whether an operand is filled with ones."""
        equation = self._made_by.get(atom) if isinstance(atom, Var) else None
        if equation is None or equation.primitive.name != "broadcast_in_dim":
            return False
        return self._literal(equation.invars[0]) == 1

    def _literal(self, atom: Any) -> Any | None:
        """The number that an operand is or is converted from; None if it is no literal."""
        equation = self._made_by.get(atom) if isinstance(atom, Var) else None
        if equation is not None and equation.primitive.name == "convert_element_type":
            return self._literal(equation.invars[0])
        return atom.val if isinstance(atom, Literal) and not np.shape(atom.val) else None

    def _is_at_least_zero(self, atom: Any) -> bool:
        value = self._literal(atom)
        return value is not None and aval(atom).dtype.kind in "iu" and bool(value >= 0)

    def _same(self, atom: Any) -> Any | None:
        """What an operand has the elements of, with equal ones equal, in the same order."""
        equation = self._made_by.get(atom) if isinstance(atom, Var) else None
        if equation is None:
            return None
        name, operands = equation.primitive.name, equation.invars
        if name == "sort" and atom is equation.outvars[0] and equation.params["num_keys"] == 1:
            return operands[0]
        if name == "broadcast_in_dim":
            is_reshape = isinstance(operands[0], Var) and math.prod(
                aval(operands[0]).shape
            ) == math.prod(aval(atom).shape)
            return operands[0] if is_reshape else None
        if name in _AS_IT_IS:
            before, after = (aval(v).dtype for v in (operands[0], atom))
            is_kept = before == after or (before.kind in "iu" and str(after) in EXACT)
            return operands[0] if is_kept and isinstance(operands[0], Var) else None
        if name == "max":  # with 0, as negative keys are clipped
            others = [v for v in operands if self._literal(v) is None]
            is_clipped = len(others) == 1 and any(self._literal(v) == 0 for v in operands)
            return others[0] if is_clipped and self.are_natural(others[0]) else None
        if name == "select_n":  # negative indices count from the end; none of these does
            is_below, kept, *_ = operands
            compared = self._made_by.get(is_below) if isinstance(is_below, Var) else None
            if compared is None or compared.primitive.name != "lt":
                return None
            is_zero = self._literal(compared.invars[1]) == 0
            is_kept = is_zero and compared.invars[0] is kept and self.are_natural(kept)
            return kept if is_kept else None
        return None

    def _source_of_copies(self, keys: Any) -> Any | None:
        """The keys of which a value has copies along its last dim, or that have one there."""
        if not isinstance(keys, Var):
            return None
        if aval(keys).shape[-1:] == (1,):
            return keys
        equation = self._made_by.get(keys)
        if equation is None or equation.primitive.name != "broadcast_in_dim":
            return None
        source, shape = equation.invars[0], aval(keys).shape
        if not isinstance(source, Var) or math.prod(aval(source).shape) * shape[-1] != math.prod(
            aval(keys).shape
        ):
            return None
        dims = equation.params["broadcast_dimensions"]
        last = [d for d, there in enumerate(dims) if there == len(shape) - 1]
        return source if all(aval(source).shape[d] == 1 for d in last) else None

    def _counts_classes(self, atom: Any) -> bool:
        """Whether an operand counts from 0 along its last dim, and is equal along all others."""
        equation = self._made_by.get(atom) if isinstance(atom, Var) else None
        if equation is None:
            return False
        name, shape, operands = equation.primitive.name, aval(atom).shape, equation.invars
        if name == "iota":
            return bool(equation.params["dimension"] == len(shape) - 1)
        if name == "broadcast_in_dim" and isinstance(operands[0], Var):
            before, dims = aval(operands[0]).shape, equation.params["broadcast_dimensions"]
            is_last = bool(dims) and dims[-1] == len(shape) - 1 and before[-1] == shape[-1]
            return is_last and self._counts_classes(operands[0])
        is_moved = name == "reshape" and math.prod(aval(operands[0]).shape) == shape[-1]
        return (is_moved or name == "convert_element_type") and self._counts_classes(operands[0])
