"""The errors of this package, with the numbers that a caller needs to react to them."""


class StagecutError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidInputError(StagecutError, ValueError):
    """An argument that no search can start from, such as a negative size or a cost that is NaN."""


class SubmeshError(StagecutError, ValueError):
    """The submeshes of the stages do not tile the cluster."""


class InvalidBoundError(StagecutError, ValueError):
    """A stage costs less than the lower bound that the caller gave for it."""


class UnknownNameError(StagecutError, KeyError):
    """No model or schedule has this name."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class RecordError(StagecutError, ValueError):
    """A text is not a stage plan as `StagePlan.to_json` writes it."""


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
        """Peak memory of the slicing with the smallest peak, or a lower bound of it.

        It is only a lower bound if not every stage was priced. None if memory is not the reason.
        """
        self.stage = stage
        """The stage with this peak, counted from 0."""
        self.layers = layers
        """First and last layer of that stage."""


class UnfinishedSearchError(StagecutError, RuntimeError):
    """A search was stopped before it found a solution or proved that there is none."""


class InternalError(StagecutError, RuntimeError):
    """Something failed that should not have; the message says what failed, and where."""


class MissingExtraError(StagecutError, ImportError):
    """An optional part of this package needs a library that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra {extra!r}; "
            f"install it with: pip install 'meshwright-stagecut[{extra}]'"
        )
        self.extra = extra
        """The extra of this package that installs the library."""
