"""Every kind of operator in the table with a numpy program for it, a file for each family."""

from __future__ import annotations

from hypothesis import strategies as st

from autoshard.rules import RULES
from autoshard.testing.cases import (
    control,
    indexing,
    layers,
    movement,
    ordered,
    pointwise,
    products,
    reductions,
)
from autoshard.testing.cases.case import Case, Maker

__all__ = ["CASES", "Case", "cases"]

CASES: dict[str, Maker] = {
    **pointwise.CASES,
    **products.CASES,
    **reductions.CASES,
    **movement.CASES,
    **indexing.CASES,
    **ordered.CASES,
    **layers.CASES,
    **control.CASES,
}


@st.composite
def cases(draw: st.DrawFn, kind: str | None = None) -> Case:
    """Operators of a kind (by default any kind of the table) with random shapes and attributes."""
    chosen = draw(st.sampled_from(sorted(RULES))) if kind is None else kind
    return CASES[chosen](draw, chosen)
