"""The reason why a rank failed: as the bytes of a message, and as the error of all other ranks."""

from crossmesh.errors import RankError, RankShardError, ShardError

REASON_BYTES = 255
"""The most bytes of a reason: the rank, the kind of error, and the beginning of its text."""

_RANK_BYTES = 4
_SHARDS, _OTHER = b"s", b"o"


def reason_of(rank: int, error: BaseException) -> bytes:
    """The reason that a rank sends to the others for its error.

    If the error is itself what another rank reported, that reason is passed on unchanged.
    """
    kind = _SHARDS if isinstance(error, ShardError) else _OTHER
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, RankError):
        rank, text = error.rank, error.reason
    return (rank.to_bytes(_RANK_BYTES, "little") + kind + text.encode())[:REASON_BYTES]


def error_of(reason: bytes) -> RankError:
    """The error that a rank raises when it receives this reason.

    Examples:
        >>> told = error_of(reason_of(2, ShardError("too short")))
        >>> type(told).__name__, told.rank, str(told)
        ('RankShardError', 2, 'all ranks complete a transfer, or none; rank 2 failed: \
ShardError: too short')
    """
    rank = int.from_bytes(reason[:_RANK_BYTES], "little")
    kind = reason[_RANK_BYTES : _RANK_BYTES + 1]
    text = reason[_RANK_BYTES + 1 :].rstrip(b"\0").decode(errors="replace")
    error = (RankShardError if kind == _SHARDS else RankError)(
        f"all ranks complete a transfer, or none; rank {rank} failed: {text}"
    )
    error.rank, error.reason = rank, text
    return error
