"""Why a rank failed, in the bytes of a message: what all other ranks raise."""

from crossmesh.errors import RankError, RankShardError, ShardError

REASON_BYTES = 255
"""Of the rank, what kind of error it was, and the beginning of its text."""

_RANK_BYTES = 4
_SHARDS, _OTHER = b"s", b"o"


def reason_of(rank: int, error: BaseException) -> bytes:
    """What a rank tells the others of its error; of what it was told itself, the same again."""
    kind = _SHARDS if isinstance(error, ShardError) else _OTHER
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, RankError):
        rank, text = error.rank, error.reason
    return (rank.to_bytes(_RANK_BYTES, "little") + kind + text.encode())[:REASON_BYTES]


def error_of(reason: bytes) -> RankError:
    """What a rank raises that was told so.

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
