"""Solutions as JSON, as `python -m autoshard solve --out` writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autoshard.errors import RecordError
from autoshard.problem.solution import Incumbent, Solution

_ENTRIES = ("method", "objective", "lower_bound", "seconds", "choice", "trace")
"""The entries of a solution, in their order."""


def solution_to_json(solution: Solution, **more: Any) -> str:
    """The JSON of a solution; infinite numbers are `null`.

    Args:
        solution: The solution.
        more: Further entries of the object.
    """
    record = asdict(solution)
    record["trace"] = [finite(at) for at in record["trace"]]
    return json.dumps(finite({name: record[name] for name in _ENTRIES}) | more)


def solution_from_json(text: str) -> Solution:
    """The solution that `solution_to_json` wrote; further entries are ignored.

    Raises:
        RecordError: the text is not such JSON.
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
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise RecordError(
            "a solution has choice, objective, lower_bound, method, seconds and trace; got "
            f"{type(error).__name__}: {error}"
        ) from error


def finite(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries, with `None` for numbers that JSON lacks."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in entries.items()
    }


def _infinite(number: float | None, missing: float) -> float:
    return missing if number is None else float(number)
