"""The typed errors of autoshard."""

from __future__ import annotations


class AutoshardError(Exception):
    """Base class of every error that autoshard raises on purpose."""


class RuleError(AutoshardError, ValueError):
    """A rule contradicts itself or the shapes it is made for."""


class GraphError(AutoshardError, ValueError):
    """A graph breaks one of the rules that `verify` checks."""


class ProblemError(AutoshardError, ValueError):
    """A problem's arrays, edges and intervals do not fit together."""


class WidthError(AutoshardError, ValueError):
    """A problem is too wide to eliminate exactly.

    Attributes:
        digits: The logarithm to base 10 of the entries of the largest table.
    """

    def __init__(self, digits: float, most: float) -> None:
        super().__init__(
            f"elimination has room for tables of {most:.0e} entries, and 512 MB of them; this "
            f"problem, narrowest first, needs one of 10**{digits:.1f}; the method 'auto' "
            "searches and bounds what is wider"
        )
        self.digits = digits


class RecordError(AutoshardError, ValueError):
    """A text is not the JSON of a graph or a sharding."""


class VerificationError(AutoshardError, ValueError):
    """A sharding is not what it says: its parts, its seconds or its bytes do not fit together."""


class PictureError(AutoshardError, ValueError):
    """A picture cannot be written so."""


class InternalError(AutoshardError, RuntimeError):
    """Something went wrong that should not have; the message says what, and where."""


class MissingExtraError(AutoshardError, ImportError):
    """A library is not installed that an optional part of this package needs.

    Attributes:
        extra: The extra of this package that has it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra {extra!r}; "
            f"install it with: pip install 'meshwright-autoshard[{extra}]'"
        )
        self.extra = extra


class BaselineError(AutoshardError, ValueError):
    """A baseline is unknown or has no meaning for the graph or mesh."""


class OptionError(AutoshardError, ValueError):
    """An option of `shard` has a value that means nothing."""


class PinError(AutoshardError, ValueError):
    """What is pinned is not there, or cannot be as it is pinned."""


class InfeasibleError(AutoshardError, ValueError):
    """No choice of strategies that satisfies the problem was found.

    Attributes:
        smallest_usage: The lowest peak usage of any choice (bytes for a sharding problem), or
            `None` where forbidden pairs leave no choice at all, whatever the limit.
        largest: The largest tensors of a sharding problem, with the least bytes that a device can
            hold of each, most first.
        is_proved: Whether there is none; else the search ended before it knew.
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
