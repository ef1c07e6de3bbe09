"""How a plan runs each primitive of JAX, as the tables of `frontends.jax` say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import frontends.jax  # noqa: F401  # brings the primitives of this package
import jax
import jax.experimental.pallas
import jax.experimental.sparse
import jax.scipy.linalg
from frontends.jax.base import _compat, cudnn
from frontends.jax.rules.control_flow import KINDS
from frontends.jax.rules.rules import has_rule
from frontends.jax.trace.effects import CALLBACKS
from frontends.jax.trace.flat import PASSED_ON, WRITTEN_OUT
from jax._src.interpreters import mlir
from jax.extend.core import Primitive

WIDTH = 132

_HEAD = (
    "# Primitives of JAX\n\n"
    "How a plan runs each of the {n} primitives that JAX {version} can compile on CPUs. Written by "
    "`python integration/primitives`;\na test compares this page with the tables of the code. "
    "[`register_rule`](extending.md) says how a primitive may be split that has\nno rule here, or "
    "one of your own.\n"
)

_INSIDE = "jax._src.lax.parallel", "jax._src.shard_map", "jax._src.pallas", "jax._src.state"
"""Modules of primitives that are met only in a map over a mesh, or in a kernel."""


def primitives() -> list[Primitive]:
    """All primitives that can be lowered, by name."""
    found = set(mlir._lowerings)
    for of_platform in mlir._platform_specific_lowerings.values():
        found |= set(of_platform)
    return sorted((p for p in found if not p.name.startswith("meshwright_")), key=lambda p: p.name)


def _modules() -> dict[Primitive, set[str]]:
    """By primitive: the modules of JAX that have it."""
    modules: dict[Primitive, set[str]] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("jax."):
            for value in list(vars(module).values()):
                if isinstance(value, Primitive):
                    modules.setdefault(value, set()).add(name)
    return modules


def rows() -> list[tuple[str, str, list[str]]]:
    """A title, what it means, and the names of the primitives; each primitive is in one row."""
    modules = _modules()

    def is_inside(p: Primitive) -> bool:
        return any(name.startswith(_INSIDE) for name in modules.get(p, ()))

    kinds: list[tuple[str, str, Callable[[Primitive], bool]]] = [
        (
            "Loops and branches",
            "A scan of at most 128 steps is written out. Others are split by what their bodies can "
            "be split by ([loops over time](jax.md#loops-over-time)).",
            lambda p: p.name in KINDS,
        ),
        ("Split by a rule", "Each device runs it on its part.", has_rule),
        (
            "Calls",
            "They are replaced by what they call.",
            lambda p: p.name in _compat.BODY_OF_CALL,
        ),
        (
            "Written out",
            "They are replaced by primitives that have rules: keys by their numbers, a product of "
            "ragged groups by products of groups, if the rows are those of an expert each.",
            lambda p: p.name in {*WRITTEN_OUT, "ragged_dot_general"},
        ),
        (
            "Fused attention",
            "It is planned as attention ([attention](attention.md)).",
            lambda p: p.name in (cudnn.FORWARD, cudnn.BACKWARD),
        ),
        (
            "Passed through",
            "They say where an array lies or when it is computed, which the plan decides.",
            lambda p: p.name in PASSED_ON,
        ),
        (
            "Called after the step",
            "Once, with whole arrays; refused if the step reads what they return, or within a loop "
            "that is not written out.",
            lambda p: p.name in CALLBACKS,
        ),
        (
            "Not in a step for one device",
            "They belong to a map over a mesh, which is refused (`shard_map`), or to the inside of "
            "a kernel or of JAX.",
            is_inside,
        ),
    ]
    left, found = primitives(), []
    for title, what, is_of in kinds:
        names = [p.name for p in left if is_of(p)]
        left = [p for p in left if not is_of(p)]
        found.append((title, what, names))
    whole = (
        "Every device runs it on whole arrays. In microbatches, it is refused if it reads weights "
        "and examples."
    )
    return [*found, ("Whole", whole, [p.name for p in left])]


def page() -> str:
    """The text of docs/primitives.md."""
    table = rows()
    n = sum(len(names) for _, _, names in table)
    parts = [_HEAD.format(n=n, version=jax.__version__)]
    for title, what, names in table:
        parts.append(f"## {title}\n\n{what}\n\n{_wrapped(f'`{name}`' for name in names)}\n")
    return "\n".join(parts)


def _wrapped(words: Iterable[str]) -> str:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 2 > WIDTH:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{word}"
    return ",\n".join(lines)
