"""Prints and callbacks of a step, which are called after the step has run.

A plan runs an operator once for each microbatch, on parts of arrays, in an order of its own. A
callback must get whole arrays, once. So its operands become results of the step, and it is called
with them after the step, in the order of the program, as under `jit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from frontends.base.boundary import first_line
from frontends.errors import RunError, UnsupportedStepError
from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, JaxprEqn

CALLBACKS = ("debug_callback", "debug_print", "io_callback")


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a step, in order."""

    equations: tuple[JaxprEqn, ...] = ()

    def call(self, operands: Sequence[Any]) -> None:
        """Call each callback with its operands.

        Args:
            operands: Those of all callbacks, one after the other.

        Raises:
            RunError: A callback raises.
        """
        at = 0
        for equation in self.equations:
            arguments = operands[at : at + len(equation.invars)]
            at += len(arguments)
            try:
                _compat.bind(equation, arguments, dict(equation.params))
                jax.effects_barrier()
            except Exception as error:
                raise RunError(
                    f"the step has run, and its {equation.primitive.name}, at "
                    f"{_compat.line_of(equation)}, raised {type(error).__name__}: "
                    f"{first_line(error)}"
                ) from error


def without_callbacks(flat: ClosedJaxpr) -> tuple[ClosedJaxpr, Callbacks]:
    """The program without its callbacks, and the callbacks.

    The operands of the callbacks follow the program's other results.

    Raises:
        UnsupportedStepError: The program reads what a callback with effects returns, or calls it in
            a loop or branch that is one operator.
    """
    jaxpr = flat.jaxpr
    if not jaxpr.effects:
        return flat, Callbacks()
    callbacks = [equation for equation in jaxpr.eqns if equation.effects]
    for equation in callbacks:
        if equation.primitive.name not in CALLBACKS or equation.outvars:
            inner = [*_compat.effects_of(ClosedJaxpr(jaxpr.replace(eqns=[equation]), ()))]
            what = [f"{e.primitive.name}, at {_compat.line_of(e)}" for e in inner]
            raise UnsupportedStepError(
                "prints and callbacks of a step are called once, after it has run; this one calls "
                f"some within a loop or a branch, or reads what they return "
                f"({'; '.join(dict.fromkeys(what))}): return what they are to get from the loop or "
                "branch, or use jax.pure_callback for what the step reads"
            )
    operands = [v for equation in callbacks for v in equation.invars]
    rest = jaxpr.replace(
        eqns=[equation for equation in jaxpr.eqns if not equation.effects],
        outvars=[*jaxpr.outvars, *operands],
        debug_info=jaxpr.debug_info.with_unknown_names(),
        effects=frozenset(),
    )
    return ClosedJaxpr(rest, flat.consts), Callbacks(tuple(callbacks))
