"""Says which stage a cost function was asked for when it raises."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stagecut.base.types import Submesh


@dataclass(frozen=True, slots=True, repr=False)
class NamedCost:
    """A cost function whose errors say, in a note, what they are about; types and texts stay."""

    function: Callable[..., Any]

    def __call__(self, first: int, last: int, submesh: Submesh, *count: int) -> Any:
        """What the function returns."""
        try:
            return self.function(first, last, submesh, *count)
        except Exception as error:
            hosts, devices = submesh
            error.add_note(
                f"raised when the cost function was asked for layers {first} to {last} on a "
                f"submesh of {hosts} x {devices} devices (hosts x devices of each)"
            )
            raise

    def __repr__(self) -> str:
        return repr(self.function)
