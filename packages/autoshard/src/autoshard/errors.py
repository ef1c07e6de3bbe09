"""The typed errors of autoshard."""

from __future__ import annotations


class AutoshardError(Exception):
    """Base class of every error that autoshard raises on purpose."""


class RuleError(AutoshardError, ValueError):
    """A rule contradicts itself, or does not fit the shapes of its operator."""


class GraphError(AutoshardError, ValueError):
    """A graph breaks one of the rules that `verify` checks."""


class ProblemError(AutoshardError, ValueError):
    """A problem's arrays, edges and intervals do not fit together."""


class WidthError(AutoshardError, ValueError):
    """A problem is too wide to eliminate exactly.

    Attributes:
        digits: Logarithm to base 10 of the number of entries that the largest table would have.
    """

    def __init__(self, digits: float, most: float) -> None:
        super().__init__(
            f"elimination allows tables of {most:.0e} entries, and 512 MB in all; eliminating this "
            f"problem, narrowest node first, needs one of 10**{digits:.1f}; use the method 'auto', "
            "which searches wider problems and bounds their cost"
        )
        self.digits = digits


class RecordError(AutoshardError, ValueError):
    """A text is not the JSON that this package writes for a graph or a sharding."""


class VerificationError(AutoshardError, ValueError):
    """A sharding contradicts itself: its parts, its seconds or its bytes do not fit together."""


class PictureError(AutoshardError, ValueError):
    """A picture cannot be drawn, or not in the format that the file name asks for."""


class InternalError(AutoshardError, RuntimeError):
    """Something went wrong that should not have; the message says what, and where."""


class MissingExtraError(AutoshardError, ImportError):
    """An optional part of this package needs a library that is not installed.

    Attributes:
        extra: The extra of this package that installs the library.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra {extra!r}; "
            f"install it with: pip install 'meshwright-autoshard[{extra}]'"
        )
        self.extra = extra


class BaselineError(AutoshardError, ValueError):
    """A baseline is unknown, or is not defined for the graph or mesh."""


class OptionError(AutoshardError, ValueError):
    """An option of `shard` has a value of the wrong type or out of its range."""


class PinError(AutoshardError, ValueError):
    """A pin names something that the graph does not have, or a choice that is not possible."""


class InfeasibleError(AutoshardError, ValueError):
    """No choice of strategies that satisfies the problem was found.

    Attributes:
        smallest_usage: The lowest peak usage of any choice (bytes for a sharding problem), or
            `None` where forbidden pairs leave no choice at all, whatever the limit.
        largest: The largest tensors of a sharding problem, with the least bytes that a device can
            hold of each, largest first.
        is_proved: True if provably no choice satisfies the problem; False if the search ended
            before it could tell.
    """

    def __init__(
        self,
        message: str,
        smallest_usage: float | None = None,
        largest: tuple[tuple[str, int], ...] = (),
        *,
        is_proved: bool = True,
    ) -> None:
        super().__init__(message)
        self.smallest_usage = smallest_usage
        self.largest = largest
        self.is_proved = is_proved
