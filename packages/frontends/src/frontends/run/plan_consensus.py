"""Make sure that all processes run the same plan and program.

Process 0 makes the plan. Each process has captured its own program, so that a number which one of
them took from elsewhere, such as an attribute of a module, may be another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from frontends.answer.plan import Plan
from frontends.errors import PlanError
from frontends.search.plan_options import PlanOptions
from frontends.search.plan_step import Planned, TracedT


def plan_together(
    plan_for: Callable[[PlanOptions], Planned[TracedT]],
    options: PlanOptions,
    process: int | None,
    share: Callable[[str | None], str],
) -> Planned[TracedT]:
    """Let process 0 search a plan for all processes, as searches with a time limit may differ.

    Args:
        plan_for: Plans with some options; with the option `plan`, returns that plan.
        options: The options of the user.
        process: The number of this process; None if it is the only one.
        share: A broadcast that all processes call: process 0 with a text, the others with None. It
            returns the text to all.

    Raises:
        PlanError: Planning failed in process 0.
        FrontendsError: Other errors that `plan_for` raises.
    """
    if process is None or options.plan is not None:
        return plan_for(options)
    if process > 0:
        text = share(None)
        if not text.startswith("{"):
            raise PlanError(f"process 0 makes the plan of all processes, and failed: {text}")
        return plan_for(options.with_plan(Plan.from_json(text)))
    try:
        planned = plan_for(options)
    except BaseException as error:  # the others wait for a plan or a reason
        share(f"{type(error).__name__}: {error}")
        raise
    share(planned.plan.to_json())
    return planned


def word_of(plan: Plan, program: Mapping[str, int]) -> str:
    """What a process says of its plan and its program, for `check_consensus`.

    Args:
        plan: Its plan.
        program: A checksum of each operator and constant, by name.
    """
    digest = hashlib.sha256(plan.to_json().encode()).hexdigest()
    return " ".join([digest, *(f"{crc:08x}" for crc in program.values())])


def check_consensus(
    words: Sequence[str], names: Iterable[str], line_of: Callable[[str], str | None]
) -> None:
    """Check that all processes have the same plan and the same program.

    Args:
        words: By process, what it says.
        names: The names in this process's program.
        line_of: Returns where in the user's code a name is from, if that is known.

    Raises:
        PlanError: A process has another plan or another program than process 0.
    """
    plans, *programs = zip(*map(str.split, words), strict=False)
    if others := _others(plans):
        raise PlanError(
            f"all processes run the same plan; process 0 and {others} have different ones: call "
            "the step with equal shapes and options everywhere"
        )
    for name, checksums in zip(names, programs, strict=True):
        if others := _others(checksums):
            where = line_of(name)
            raise PlanError(
                f"all processes run the same program; process 0 and {others} have different "
                f"numbers in {name}{f' ({where})' if where else ''}: let the code read equal "
                "numbers and arrays in all of them, or pass them to the step"
            )


def _others(said: Sequence[str]) -> str:
    """The processes that say something else than process 0; empty if none does."""
    others = [str(process) for process, word in enumerate(said) if word != said[0]]
    return f"process {', '.join(others)}" if others else ""
