"""The errors that pipesched raises, except for those of the checkers (`judge.broken`)."""


class PipeschedError(Exception):
    """Base of all errors of this package."""


class ArgumentError(PipeschedError, ValueError):
    """An argument is not allowed, such as a size, a time or a file name."""


class InfeasibleError(PipeschedError, ValueError):
    """No schedule keeps within the memory."""


class UnknownScheduleError(PipeschedError, ValueError):
    """No schedule is known by this name."""


class RegistrationError(PipeschedError, ValueError):
    """The table of schedules cannot have this entry; the message says what an entry is."""


class ParseError(PipeschedError, ValueError):
    """A text or JSON document does not have the format that is read."""


class EdgeError(PipeschedError, ValueError):
    """An edge points backwards in time, joins a stage to itself, or leaves the pipeline."""


class InternalError(PipeschedError, RuntimeError):
    """Something failed that should not have; the message says what failed, and where."""


class MissingExtraError(PipeschedError, ImportError):
    """An optional dependency is not installed."""
