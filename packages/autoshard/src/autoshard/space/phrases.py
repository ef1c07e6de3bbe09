"""Texts for people: rules, and what a strategy does with each mesh axis."""

from __future__ import annotations

from string import ascii_lowercase

from shardspec import Mesh

from autoshard.graph.rule import Dims, Rule
from autoshard.space.strategy import Strategy


def formula(rule: Rule) -> str:
    """A rule in einsum's notation: a letter for each factor; brackets if a dim has several.

    Examples:
        >>> from autoshard import einsum, reshape
        >>> formula(einsum("ik,kj->ij", (2, 3), (3, 4))), formula(reshape((2, 12), (24,)))
        ('ab,bc->ac', 'ab->(ab)')
    """

    def word(dims: Dims) -> str:
        return "".join(_dim(dim) for dim in dims) or "()"

    return ",".join(map(word, rule.operands)) + "->" + ",".join(map(word, rule.results))


def _dim(factors: tuple[int, ...]) -> str:
    letters = "".join(map(letter, factors))
    return letters if len(factors) == 1 else f"({letters})" if factors else "1"


def letter(factor: int) -> str:
    """The letter that `formula` has for a factor: a to z, then a1, b1, ..."""
    turn, place = divmod(factor, len(ascii_lowercase))
    return ascii_lowercase[place] + (str(turn) if turn else "")


def strategy_text(strategy: Strategy, mesh: Mesh) -> str:
    """What each mesh axis does: split a factor, or carry partial sums; axes left out repeat work.

    Examples:
        >>> from autoshard import einsum, enumerate_strategies
        >>> mesh = Mesh((2, 2), ("x", "y"))
        >>> for strategy in enumerate_strategies(einsum("ik,k->i", (2, 4), (4,)), mesh.shape)[:6:2]:
        ...     print(strategy_text(strategy, mesh))
        repeated
        b/y
        partial/y
    """
    parts = [
        f"{letter(target) if isinstance(target, int) else target[0]}/{name}"
        for name, target in zip(mesh.axis_names, strategy.mapping, strict=True)
        if target is not None
    ]
    return " ".join(parts) or "repeated"


def specs_text(strategy: Strategy) -> str:
    """The specs of a strategy's operands and results."""
    operands, results = (
        ", ".join(map(str, specs)) for specs in (strategy.operand_specs, strategy.result_specs)
    )
    return f"{operands} -> {results}" if operands else f"-> {results}"
