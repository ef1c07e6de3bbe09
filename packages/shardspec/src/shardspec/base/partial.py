"""`Partial`: results that are still to be combined along an axis, and what may be done before."""

from dataclasses import dataclass
from typing import Literal, get_args

from shardspec.base.axis import Axis, SubAxis
from shardspec.base.integers import natural, shown
from shardspec.errors import SpecError

Reduction = Literal["sum", "max", "min", "product", "avg"]
"""How partial results combine."""

Operation = Literal["slice", "add", "add_whole", "scale", "scale_positive", "multiply"]
"""What a program may want to do with a tensor before its partial results are combined."""

# Each entry says that combining commutes with the operation, if every device applies it to the
# partial result that it holds:
#   slice           cutting, transposing, reshaping, gathering: no arithmetic
#   add             adding another tensor that is partial in the same way
#   add_whole       adding a tensor that is not partial (every device adds all of it)
#   scale           multiplying by a number that all devices know
#   scale_positive  the same with a number >= 0, which keeps the order
#   multiply        multiplying elementwise by another tensor that is partial in the same way
_ALLOWED: dict[Reduction, frozenset[Operation]] = {
    "sum": frozenset(["slice", "add", "scale", "scale_positive"]),
    "avg": frozenset(["slice", "add", "add_whole", "scale", "scale_positive"]),
    "max": frozenset(["slice", "add_whole", "scale_positive"]),
    "min": frozenset(["slice", "add_whole", "scale_positive"]),
    "product": frozenset(["slice", "multiply"]),
}


@dataclass(frozen=True, slots=True, order=True)
class Partial:
    """Devices along `axis` hold partial results that combine by `kind` (P of AutoDDL 4.1).

    Raises:
        SpecError: an unknown kind, or an axis that is neither an index >= 0 nor a sub-axis.

    Examples:
        >>> Partial(0).allows("add"), Partial(0).allows("add_whole")
        (True, False)
        >>> Partial(0, "max").commutes_with(Partial(1, "sum"))
        False
    """

    axis: Axis
    """Mesh axis index, or a sub-axis."""
    kind: Reduction = "sum"
    """How the partial results combine."""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in _ALLOWED:
            raise SpecError(
                f"partial results combine by one of {get_args(Reduction)}; "
                f"got kind={shown(self.kind)}"
            )
        if not isinstance(self.axis, SubAxis):
            axis = natural(self.axis)
            if axis < 0:
                raise SpecError(
                    "partial results lie along an axis, an index >= 0, or a sub-axis; "
                    f"got axis={shown(self.axis)}"
                )
            object.__setattr__(self, "axis", axis)

    def allows(self, operation: Operation) -> bool:
        """Whether `operation` may be done before combining, with the same result as after it.

        Reference:
            Sum and average are linear (torch's `Partial.LINEAR_REDUCE_OPS`); AutoDDL 4.1.

        Raises:
            SpecError: an unknown operation.
        """
        if operation not in get_args(Operation):
            raise SpecError(f"an operation is one of {get_args(Operation)}; got {shown(operation)}")
        return operation in _ALLOWED[self.kind]

    def commutes_with(self, other: "Partial") -> bool:
        """Whether the result is the same whichever of the two is combined first."""
        return self.kind == other.kind or {self.kind, other.kind} == {"sum", "avg"}
