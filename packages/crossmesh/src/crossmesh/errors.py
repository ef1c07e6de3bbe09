"""The errors of crossmesh; each one also derives from the built-in error that a caller expects."""


class CrossmeshError(Exception):
    """Base class of all errors that crossmesh defines and raises.

    Attributes:
        culprits: If a transfer between ranks failed: the ranks to blame, sorted; at most 16. These
            are ranks that are gone (killed), that are silent (stopped, or not there yet), that
            raised an error of their own, or two with different plans; not those that noticed it.
            Empty if all ranks do their part, such as on a slow network. All ranks that raise for
            the same reason name the same culprits.
    """

    culprits: tuple[int, ...] = ()


class PlanError(CrossmeshError, ValueError):
    """The arguments do not describe a transfer."""


class PartialLayoutError(PlanError):
    """A layout has partial results where it may not.

    Either the destination is partial, or the elements of the tensor are no numbers, so that they
    cannot be added.
    """


class RecordError(PlanError):
    """The text is not a plan as `TransferPlan.to_json` writes it."""


class ShardError(CrossmeshError, ValueError):
    """The shards do not fit the plan that is to move them."""


class TransferError(CrossmeshError, RuntimeError):
    """A transfer did not complete, and returns nothing.

    Attributes:
        invalid: The destinations (tensor, device) that the caller passed on this rank and that may
            be partly overwritten, so that neither their old nor their new content can be relied
            on. Empty if the caller passed no destinations, or if no byte has moved yet.
    """

    invalid: tuple[tuple[str, int], ...] = ()


class MismatchError(TransferError):
    """The ranks do not all execute the same plan with the same options."""


class DeadlineError(TransferError, TimeoutError):
    """The deadline passed before all ranks were done; the message says which rank waits for which.

    Attributes:
        waiting_for: The ranks that this rank waits for.
    """

    waiting_for: tuple[int, ...] = ()


class StallError(DeadlineError):
    """A rank was silent for longer than the stall limit."""


class RankError(TransferError):
    """Another rank failed, and told this one why.

    Attributes:
        rank: The rank that failed.
        reason: The error that it raised, as text; a long text is cut off.
        is_silence: Whether it waited in vain for ranks that are silent.
    """

    rank: int = -1
    reason: str = ""
    is_silence: bool = False


class RankShardError(RankError, ShardError):
    """The shards of another rank do not fit the plan.

    That rank raises a ShardError; all other ranks raise this one, which is a ShardError too.
    """


class ChecksumError(TransferError):
    """The bytes that arrived differ from those that were sent."""


class TransportError(TransferError, ConnectionError):
    """A transport cannot send or receive: a rank is gone, or sent too few or too many bytes."""


class InternalError(CrossmeshError, RuntimeError):
    """A bug in crossmesh; the message says what went wrong, and where."""


class MissingExtraError(CrossmeshError, ImportError):
    """A library that an optional part of this package needs is not installed.

    Attributes:
        extra: The extra of this package that installs the library.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra {extra!r}; "
            f"install it with: pip install 'meshwright-crossmesh[{extra}]'"
        )
        self.extra = extra
