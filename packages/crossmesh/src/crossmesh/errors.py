"""Errors of crossmesh; each also is the built-in error that a caller would expect."""


class CrossmeshError(Exception):
    """Base class of all errors that crossmesh raises by itself."""


class PlanError(CrossmeshError, ValueError):
    """The arguments do not describe a transfer."""


class PartialLayoutError(PlanError):
    """A layout holds partial sums, which no copy can move."""


class ShardError(CrossmeshError, ValueError):
    """Shards that do not fit the plan that shall move them."""
