"""A solution as JSON: what `python -m autoshard solve --out` writes."""

from __future__ import annotations

import json
import math
from typing import Any

from autoshard.errors import RecordError
from autoshard.problem.solution import Incumbent, Solution


def solution_to_json(solution: Solution, **more: Any) -> str:
    """The text of a solution; infinite numbers are `null`.

    Args:
        solution: What is written.
        more: Further entries.
    """
    record = {
        "method": solution.method,
        "objective": solution.objective,
        "lower_bound": _finite(solution.lower_bound),
        "seconds": solution.seconds,
        "choice": solution.choice,
        "trace": [
            {
                "seconds": at.seconds,
                "objective": _finite(at.objective),
                "lower_bound": _finite(at.lower_bound),
                "steps": at.steps,
            }
            for at in solution.trace
        ],
    }
    return json.dumps(record | more)


def solution_from_json(text: str) -> Solution:
    """Read what `solution_to_json` wrote; further entries are passed over.

    Raises:
        RecordError: the text is no such JSON.
    """
    try:
        record = json.loads(text)
        return Solution(
            tuple(map(int, record["choice"])),
            float(record["objective"]),
            _infinite(record["lower_bound"], -math.inf),
            str(record["method"]),
            float(record["seconds"]),
            tuple(
                Incumbent(
                    float(at["seconds"]),
                    _infinite(at["objective"], math.inf),
                    _infinite(at["lower_bound"], -math.inf),
                    int(at["steps"]),
                )
                for at in record["trace"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            "a solution has choice, objective, lower_bound, method, seconds and trace; got "
            f"{type(error).__name__}: {error}"
        ) from error


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _infinite(number: float | None, missing: float) -> float:
    return missing if number is None else float(number)
