"""The random draws of a captured program, which are made before the step runs, each once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from frontends.errors import UnsupportedStepError
from frontends.torch.base.flat import FlatProgram, known_from


def draw_once(flat: FlatProgram, draws: Mapping[str, Any]) -> tuple[FlatProgram, tuple[str, ...]]:
    """Merge equal draws into one value: activation checkpointing draws the same numbers twice.

    Args:
        flat: The program.
        draws: By the name of a random value, a key that is equal for equal draws.

    Returns:
        The program, and the names of its random values.
    """
    first: dict[Any, str] = {}
    produced = {name for line in flat.lines for name in line.outputs}
    instead = {name: first.setdefault(key, name) for name, key in draws.items() if name in produced}
    flat = flat.renamed({a: b for a, b in instead.items() if a != b})
    kept = replace(flat, outputs=(*flat.outputs, *first.values())).live()
    return replace(kept, outputs=flat.outputs), tuple(first.values())


def check_draws(flat: FlatProgram, draws: Collection[str], free: Collection[str]) -> None:
    """Check that draws depend on nothing that the step computes or updates.

    Args:
        flat: The program.
        draws: The names of its random values.
        free: Inputs that draws may depend on.

    Raises:
        UnsupportedStepError: A draw depends on weights.
    """
    known = known_from(flat.lines, {*free, *flat.constants})
    for name in draws:
        if name not in known:
            raise UnsupportedStepError(
                "random numbers are drawn before the step runs, so that they are those of one "
                f"device; {name}{_made(flat, name)} depends on weights: draw uniform numbers and "
                "compare them"
            )


def _made(flat: FlatProgram, name: str) -> str:
    """Return where a value is computed, as a part of a message; empty if the step does not."""
    origin = next((line.origin for line in flat.lines if name in line.outputs), None)
    return "" if origin is None else f", made {origin},"
