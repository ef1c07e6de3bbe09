"""The error of a release that cannot be made."""


class ReleaseError(ValueError):
    """A release cannot be made from this tree; the message says why and what to do."""
