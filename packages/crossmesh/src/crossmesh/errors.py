"""Errors of crossmesh; each also is the built-in error that a caller would expect."""


class CrossmeshError(Exception):
    """Base class of all errors that crossmesh raises by itself."""


class PlanError(CrossmeshError, ValueError):
    """The arguments do not describe a transfer."""


class PartialLayoutError(PlanError):
    """Partial results where there can be none: at the destination, or of what cannot be added."""


class RecordError(PlanError):
    """Text that is no plan as `TransferPlan.to_json` writes it."""


class ShardError(CrossmeshError, ValueError):
    """Shards that do not fit the plan that shall move them."""
