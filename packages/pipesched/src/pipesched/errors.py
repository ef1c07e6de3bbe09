"""Every error that pipesched raises on purpose, but for what the checkers find (`judge.broken`)."""


class PipeschedError(Exception):
    """Base of all errors of this package."""


class ArgumentError(PipeschedError, ValueError):
    """A size, a time or a file name that no schedule or timeline can have."""


class InfeasibleError(PipeschedError, ValueError):
    """No schedule keeps within the memory."""


class UnknownScheduleError(PipeschedError, ValueError):
    """No schedule is known by this name."""


class RegistrationError(PipeschedError, ValueError):
    """A table cannot have this entry; the message says what an entry is."""


class ParseError(PipeschedError, ValueError):
    """A text or JSON document that is not what it should be."""


class EdgeError(PipeschedError, ValueError):
    """An edge that goes backwards in time, stays in its stage, or leaves the pipeline."""


class InternalError(PipeschedError, RuntimeError):
    """Something went wrong that should not have; the message says what, and where."""


class MissingExtraError(PipeschedError, ImportError):
    """An optional dependency is not installed."""
