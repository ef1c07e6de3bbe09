"""The reason why a rank failed: as the bytes of a message, and as the error of all other ranks."""

from crossmesh.errors import DeadlineError, RankError, RankShardError, ShardError, TransferError

REASON_BYTES = 255
"""The most bytes of a reason: the rank, the kind of error, the culprits, and the beginning of its
text."""

_RANK_BYTES = 4
_MOST_CULPRITS = 16
"""The most culprits of an error. All ranks name the same, so a rank names no more than it tells."""

_SHARDS, _SILENCE, _OTHER = b"s", b"q", b"o"


def reason_of(rank: int, error: BaseException) -> bytes:
    """The reason that a rank sends to the others for its error.

    If the error is itself what another rank reported, that reason is passed on unchanged.
    """
    kind = _SHARDS if isinstance(error, ShardError) else _OTHER
    kind = _SILENCE if silent_of(error) else kind
    text = f"{type(error).__name__}: {error}"
    culprits = culprits_of(rank, error)
    if isinstance(error, RankError):
        rank, text = error.rank, error.reason
    numbers = b"".join(one.to_bytes(_RANK_BYTES, "little") for one in (rank, *culprits))
    return (kind + bytes([len(culprits)]) + numbers + text.encode())[:REASON_BYTES]


def culprits_of(rank: int, error: BaseException) -> tuple[int, ...]:
    """The ranks to blame for an error of a rank: itself, unless it is about a transfer."""
    return error.culprits[:_MOST_CULPRITS] if isinstance(error, TransferError) else (rank,)


def silent_of(error: BaseException) -> tuple[int, ...]:
    """The ranks that are to blame for an error because nothing comes from them."""
    is_silence = isinstance(error, DeadlineError) or getattr(error, "is_silence", False)
    return error.culprits if is_silence and isinstance(error, TransferError) else ()


def error_of(reason: bytes) -> RankError:
    """The error that a rank raises when it receives this reason.

    Examples:
        >>> told = error_of(reason_of(2, ShardError("too short")))
        >>> type(told).__name__, told.rank, str(told)
        ('RankShardError', 2, 'all ranks complete a transfer, or none; rank 2 failed: \
ShardError: too short')
    """
    kind, n_culprits = reason[:1], reason[1]
    text_at = 2 + _RANK_BYTES * (1 + n_culprits)
    numbers = range(2, text_at, _RANK_BYTES)
    rank, *culprits = (int.from_bytes(reason[i : i + _RANK_BYTES], "little") for i in numbers)
    text = reason[text_at:].rstrip(b"\0").decode(errors="replace")
    error = (RankShardError if kind == _SHARDS else RankError)(
        f"all ranks complete a transfer, or none; rank {rank} failed: {text}"
    )
    error.rank, error.reason, error.culprits = rank, text, tuple(culprits)
    error.is_silence = kind == _SILENCE
    return error
