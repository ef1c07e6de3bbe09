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


class TransferError(CrossmeshError, RuntimeError):
    """A transfer did not complete. Nothing is returned.

    Attributes:
        invalid: The destinations (tensor, device) of this rank, among those that the caller gave,
            that hold neither what they held before nor all that they should; empty if the caller
            gave none, or before the first byte.
    """

    invalid: tuple[tuple[str, int], ...] = ()


class MismatchError(TransferError):
    """Ranks do not execute the same plan in the same way."""


class DeadlineError(TransferError, TimeoutError):
    """The deadline passed before all ranks were done; the message says who waits for whom.

    Attributes:
        waiting_for: The ranks that this one waits for.
    """

    waiting_for: tuple[int, ...] = ()


class RankError(TransferError):
    """Another rank failed, and said why.

    Attributes:
        rank: Which.
        reason: What it raised, or the beginning of it.
    """

    rank: int = -1
    reason: str = ""


class RankShardError(RankError, ShardError):
    """The shards of another rank do not fit the plan: a ShardError on all ranks, as on that one."""


class ChecksumError(TransferError):
    """Bytes arrived that were not sent."""


class TransportError(TransferError, ConnectionError):
    """A transport cannot send or receive: a rank is gone, or sent too few bytes or too many."""


class InternalError(CrossmeshError, RuntimeError):
    """Something went wrong that should not have; the message says what, and where."""


class MissingExtraError(CrossmeshError, ImportError):
    """A library is not installed that an optional part of this package needs.

    Attributes:
        extra: The extra of this package that has it.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra {extra!r}; "
            f"install it with: pip install 'meshwright-crossmesh[{extra}]'"
        )
        self.extra = extra
