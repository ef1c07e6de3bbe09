"""What a caller gives to plan with, checked before anything takes time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.errors import BatchError, PlanError


def argnums_of(given: Any) -> tuple[int, ...]:
    """`batch_argnums` as a tuple; one number is one, as `jax.jit` takes it.

    Raises:
        BatchError: It is no number, and no sequence of numbers.
    """
    numbers = (given,) if _is_number(given) else given
    is_several = isinstance(numbers, Sequence) and not isinstance(numbers, str)
    if not is_several or not all(map(_is_number, numbers)):
        raise BatchError(
            "batch_argnums is the number of an argument, or several, as (2,) or -1, or () if there "
            f"is no batch; got batch_argnums={given!r}"
        )
    return tuple(numbers)


def check_given(
    cluster: Any,
    plan: Any,
    pin: Any,
    microbatches: Any,
    memory_bytes: Any,
    n_layers: Any,
    hold: Any = None,
) -> None:
    """Refuse what cannot be planned with.

    Raises:
        PlanError: Something is of another kind; the message says which and how to make one.
        BatchError: `microbatches` is not a number of parts, or not the plan's.
    """
    for name, given, kind, how in (
        ("cluster", cluster, Cluster, "Cluster.preset('two-hosts') makes one"),
        ("plan", plan, Plan | None, "Plan.load('plan.json') reads one"),
        ("hold", hold, Plan | None, "the plan of a step is its plan"),
        ("pin", pin, Mapping | None, "as pin={\"params['w']\": 'RS0'}"),
    ):
        if not isinstance(given, kind):
            raise PlanError(f"{name} is a {_named(kind)}; got {name}={given!r}: {how}")
    for name, given in (("memory_bytes", memory_bytes), ("n_layers", n_layers)):
        if given is not None and not (_is_number(given) and given > 0):
            raise PlanError(f"{name} is a whole number from 1 on, or None; got {name}={given!r}")
    if microbatches is not None and not (_is_number(microbatches) and microbatches > 0):
        raise BatchError(
            "microbatches is how many parts a batch is cut into, a whole number from 1 on, or "
            f"None; got microbatches={microbatches!r}"
        )
    if plan is not None and microbatches not in (None, plan.microbatches):
        raise BatchError(
            f"a plan runs with its own microbatches; got microbatches={microbatches}, and the plan "
            f"has {plan.microbatches}: leave one of them out"
        )


def _is_number(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _named(kind: Any) -> str:
    return " or ".join(
        each.__name__ for each in getattr(kind, "__args__", (kind,)) if each is not type(None)
    )
