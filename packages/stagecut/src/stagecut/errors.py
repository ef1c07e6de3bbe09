"""What can go wrong, and the numbers a caller needs to react."""


class StagecutError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidInputError(StagecutError, ValueError):
    """A size, cost or graph that no search could start from."""


class SubmeshError(StagecutError, ValueError):
    """Submeshes that do not tile the cluster."""


class InvalidBoundError(StagecutError, ValueError):
    """A stage cost less than the lower bound the caller had given for it."""


class UnknownNameError(StagecutError, KeyError):
    """No model or schedule has this name."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class RecordError(StagecutError, ValueError):
    """A text that is no stage plan as `StagePlan.to_json` writes it."""


class InfeasibleClusteringError(StagecutError, ValueError):
    """No clustering keeps every layer within the allowed share of the FLOPs."""

    def __init__(self, message: str, smallest_delta: float) -> None:
        super().__init__(message)
        self.smallest_delta = smallest_delta
        """The smallest `delta` for which the same call succeeds."""


class InfeasibleStagesError(StagecutError, ValueError):
    """No slicing fits the memory, or none has a price."""

    def __init__(
        self,
        message: str,
        peak_bytes: int | None = None,
        stage: int | None = None,
        layers: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.peak_bytes = peak_bytes
        """What the leanest slicing needs, or a bound below it if not every stage was priced.

        None if the memory is not the reason.
        """
        self.stage = stage
        """The stage that needs it, counted from 0."""
        self.layers = layers
        """First and last layer of that stage."""


class UnfinishedSearchError(StagecutError, RuntimeError):
    """A search was stopped before it found anything, and before it proved that there is nothing."""


class InternalError(StagecutError, RuntimeError):
    """Something went wrong that should not have; the message says what, and where."""


class MissingExtraError(StagecutError, ImportError):
    """A library is not installed that an optional part of this package needs."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra {extra!r}; "
            f"install it with: pip install 'meshwright-stagecut[{extra}]'"
        )
        self.extra = extra
        """The extra of this package that has it."""
