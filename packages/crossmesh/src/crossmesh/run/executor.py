"""`execute`: does one rank's part of a plan, over any transport; all ranks complete it or none."""

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import overload

from shardspec import Layout

from crossmesh.base.reasons import culprits_of, silent_of
from crossmesh.base.reduce import number_type
from crossmesh.base.whole import whole_number
from crossmesh.errors import (
    CrossmeshError,
    DeadlineError,
    PlanError,
    StallError,
    TransferError,
    TransportError,
)
from crossmesh.run.agreement import BEATS, DONE, READY, Agreement
from crossmesh.run.carrier import Carrier
from crossmesh.run.channels import Channels
from crossmesh.run.packing import Array
from crossmesh.run.transport import Transport
from crossmesh.search.planner import FUSE_BYTES
from crossmesh.transfer import arrays
from crossmesh.transfer.arrays import Shards
from crossmesh.transfer.plan import TransferPlan

STAGING_BYTES = 2 * FUSE_BYTES
"""The bytes of the two largest fused tasks: one that arrives and one that leaves."""

REASON_S = 0.5
"""How long a rank that lost a connection waits for the reason, which passes from rank to rank; and
how long a rank whose deadline has passed waits for the others to learn of it."""

_SILENT = 1 / 8
"""A rank from which nothing comes for this part of the deadline is silent when the deadline has
passed. Without a stall limit, ranks say that they are there only in its second half."""


@overload
def execute(
    plan: TransferPlan,
    shards: Mapping[int, Array],
    transport: Transport,
    *,
    window: int,
    deadline_s: float,
    stall_s: float | None = None,
    staging_bytes: int = STAGING_BYTES,
    checksums: bool = False,
    out: Mapping[int, Array] | None = None,
) -> dict[int, Array]: ...
@overload
def execute(
    plan: TransferPlan,
    shards: Mapping[str, Mapping[int, Array]],
    transport: Transport,
    *,
    window: int,
    deadline_s: float,
    stall_s: float | None = None,
    staging_bytes: int = STAGING_BYTES,
    checksums: bool = False,
    out: Mapping[str, Mapping[int, Array]] | None = None,
) -> dict[str, dict[int, Array]]: ...
def execute(
    plan: TransferPlan,
    shards: Shards,
    transport: Transport,
    *,
    window: int,
    deadline_s: float,
    stall_s: float | None = None,
    staging_bytes: int = STAGING_BYTES,
    checksums: bool = False,
    out: Shards | None = None,
) -> dict[int, Array] | dict[str, dict[int, Array]]:
    """Move tensors between the devices of all ranks; each rank calls it with the same plan.

    Args:
        plan: The plan.
        shards: The source shard of each device of this rank, with any strides: {device: array}, or
            {name: {device: array}} for a plan of several tensors. They are not changed.
        transport: Connects the ranks.
        window: The most tasks that are open at a time; ignored if the plan has the order
            "all_at_once", in which all are.
        deadline_s: Seconds from now until which all ranks have to be done.
        stall_s: Seconds for which a rank may be silent once all have begun; the same on all ranks.
            Ranks tell their neighbours four times as often that they are there. A rank is silent if
            its process is stopped, or hangs elsewhere, not if the network is slow. None: only the
            deadline counts.
        staging_bytes: The most bytes of temporary buffers for data that arrives or leaves, besides
            the shards; a single chunk may exceed it. Bytes that are contiguous in a shard need no
            buffer.
        checksums: Whether each chunk is followed by its CRC-32.
        out: The arrays for the destination shards, in the form of `shards`. None: new arrays.

    Returns:
        The destination shard of each device of this rank, by name if `shards` is by name. For a
        plan with the strategy "signal", the content that would have been sent is undefined.

    Raises:
        ShardError: `shards` or `out` do not fit the plan: they have other devices, shapes or
            dtypes. On ranks whose shards do fit, it is a RankShardError.
        PlanError: `window` is below 1, a device has no rank, the deadline is not a finite number
            of seconds, or the stall limit not a positive one.
        MissingExtraError: Partial results have a dtype of ml_dtypes, which is not installed.
        MismatchError: Ranks have different plans.
        DeadlineError: The deadline passed.
        StallError: A rank was silent for longer than `stall_s`.
        RankError: Another rank raised an error.
        ChecksumError: The bytes that arrived differ from those that were sent.
        TransportError: The transport failed.

        If one rank raises an error, all others raise RankError or RankShardError before any of them
        returns. `error.culprits` are the ranks to blame, the same on all ranks. The transport is
        then closed, at the latest half a second after the deadline. Nothing is returned then.
        Arrays of `out` that may have changed are listed in the error's `invalid`, and stay as they
        are. Errors that a rank raises before all are ready, for example because shards do not fit,
        are raised before anything moves.
    """
    execution = Execution(
        plan,
        shards,
        transport,
        window=window,
        deadline_s=deadline_s,
        stall_s=stall_s,
        staging_bytes=staging_bytes,
        checksums=checksums,
        out=out,
    )
    try:
        while not execution.done:
            if not execution.step():
                transport.pause()
    except BaseException:  # after an interrupt too, nothing may write to the arrays any more
        transport.close()
        raise
    return execution.result


def refuse(transport: Transport, error: Exception, deadline_s: float) -> None:
    """Tell all ranks that this one takes no part in a transfer that they may be about to begin.

    The others then raise the same as if `execute` had raised `error` here. Closes the transport.
    """
    try:
        until_s = time.monotonic() + deadline_s
        for _ in tell(Agreement(transport, b""), error, until_s, time.monotonic):
            transport.pause()
    finally:
        transport.close()


def tell(
    agreement: Agreement, error: Exception, until_s: float, clock: Callable[[], float]
) -> Iterator[bool]:
    """Tell all ranks why this one failed; yields until they know or the deadline has passed.

    If a rank is silent, the others find it out by themselves, and are not waited for as long.
    """
    latest_s = clock() + REASON_S
    if not silent_of(error):
        latest_s = max(until_s, latest_s)
    agreement.say_failed(error)
    while not agreement.told() and clock() < latest_s:
        yield False


class Execution:
    """A call of `execute` that runs step by step, so that a process can do other things meanwhile.

    The arguments are those of `execute`, and `clock`, which returns a monotonic time in seconds.
    """

    def __init__(
        self,
        plan: TransferPlan,
        shards: Shards,
        transport: Transport,
        *,
        window: int,
        deadline_s: float,
        stall_s: float | None = None,
        staging_bytes: int = STAGING_BYTES,
        checksums: bool = False,
        out: Shards | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._transport = transport
        self._shards = shards
        self._out = out
        self._window = window
        self._staging_bytes = staging_bytes
        self._deadline_s = deadline_s
        self._stall_s = stall_s
        self._clock = clock
        self._until_s = clock() + (deadline_s if _is_finite(deadline_s) else 0.0)
        self._listen_at_s = 0.0
        limit_s = float(stall_s) if stall_s is not None and _is_finite(stall_s) else stall_s
        how = f"{plan.digest} {bool(checksums)} {limit_s}"
        self._agreement = Agreement(transport, hashlib.sha256(how.encode()).digest())
        self._channels = Channels(transport, checksums)
        self._dst: dict[str, dict[int, Array]] = {}
        self._wrote = False
        self._rounds = self._run()
        self.done = False
        """Whether the transfer is complete on all ranks."""

    def step(self) -> bool:
        """Do what can be done now; False if there was nothing to do but wait.

        Raises:
            CrossmeshError: As for `execute`; then the execution is over.
        """
        return next(self._rounds, False)

    @property
    def result(self) -> dict[int, Array] | dict[str, dict[int, Array]]:
        """The result of `execute`, once the execution is done."""
        if arrays.has_names(self._plan, self._shards):
            return self._dst
        (received,) = self._dst.values()
        return received

    def _run(self) -> Iterator[bool]:
        try:
            try:
                yield from self._transfer()
            except TransportError as error:
                yield from self._ask_why()
                if self._agreement.reached >= READY:
                    raise
                lost = TransportError(
                    "no rank leaves before all are ready, unless its deadline passes or its "
                    f"process ends; one left before rank {self._transport.rank} could receive its "
                    f"reason: {error}"
                )
                lost.culprits = error.culprits
                raise lost from error
        except Exception as error:
            if isinstance(error, CrossmeshError):
                error.culprits = culprits_of(self._transport.rank, error)
            if isinstance(error, TransferError) and self._wrote and self._out is not None:
                error.invalid = tuple((name, d) for name, of in self._dst.items() for d in of)
            yield from tell(self._agreement, error, self._until_s, self._clock)
            self._transport.close()
            raise
        self.done = True

    def _transfer(self) -> Iterator[bool]:
        carrier = self._carrier()
        self._agreement.say(READY)
        while self._agreement.reached < READY:
            yield self._wait()
        self._wrote = True
        carrier.copy()
        while not carrier.done:
            has_moved = carrier.advance()
            if not has_moved or self._clock() >= self._listen_at_s:
                self._listen()
            self._check_time()
            yield has_moved
        self._agreement.say(DONE)
        while self._agreement.reached < DONE or not self._agreement.sent():
            yield self._wait()

    def _wait(self) -> bool:
        self._listen()
        self._check_time()
        return False

    def _listen(self) -> None:
        """Hear what other ranks say, and say that this one is there, if it is time for that."""
        self._agreement.hear()
        now_s, every_s = self._clock(), 0.0
        if self._stall_s is not None and self._agreement.reached >= READY:
            every_s = self._stall_s / BEATS
        elif now_s > self._until_s - self._deadline_s / 2:
            every_s = self._deadline_s * _SILENT / BEATS
        if now_s > self._until_s - self._deadline_s / 2:
            self._agreement.say_waiting()
        if every_s > 0:
            self._agreement.beat(now_s, every_s)
            self._listen_at_s = now_s + every_s / 2

    def _ask_why(self) -> Iterator[bool]:
        """Wait for the reason; a rank that fails sends it before it leaves, so it may yet come."""
        until_s = min(self._until_s, self._clock() + REASON_S)
        while self._clock() < until_s and not self._agreement.is_alone:
            with contextlib.suppress(TransportError):
                self._agreement.hear()
            yield False

    def _carrier(self) -> Carrier:
        plan, transport = self._plan, self._transport
        rank_of = transport.rank_of
        if not _is_finite(self._deadline_s):
            raise PlanError(
                f"a deadline is a finite number of seconds; got deadline_s={self._deadline_s!r}"
            )
        if self._stall_s is not None and not (_is_finite(self._stall_s) and self._stall_s > 0):
            raise PlanError(
                "a stall limit is a positive, finite number of seconds, or None; "
                f"got stall_s={self._stall_s!r}"
            )
        known = {d for d, rank in rank_of.items() if 0 <= rank < transport.n_ranks}
        missing = [device for device, _ in plan.hosts if device not in known]
        if missing:
            raise PlanError(
                f"every device of a plan has one of the {transport.n_ranks} ranks; "
                f"rank_of lacks devices {missing[:4]}"
            )
        window = whole_number("window", self._window)
        staging_bytes = whole_number("staging_bytes", self._staging_bytes)
        if window < 1:
            raise PlanError(f"at least one task is open at a time; got {window=}")
        reduced = (task.pieces[0].tensor for task in plan.tasks if task.reduction)
        for added in {plan.tensors[i].dtype for i in reduced if plan.strategy != "signal"}:
            number_type(added)  # raises if ml_dtypes is missing, before anything moves
        src = arrays.by_name(plan, self._shards)
        out = None if self._out is None else arrays.by_name(plan, self._out)
        for tensor in plan.tensors:
            sources, shapes = src[tensor.name], self._shapes(tensor.dst)
            arrays.check(tensor, tensor.src, self._shapes(tensor.src), sources)
            if out is None:
                dtype = arrays.dtype_of(tensor, sources)
                targets = {d: arrays.new(tensor, shape, dtype) for d, shape in shapes.items()}
            else:
                targets = dict(out[tensor.name])
                arrays.check(tensor, tensor.dst, shapes, targets)
            self._dst[tensor.name] = targets
        if out is not None:
            arrays.check_apart(out, src)
        window = len(plan.tasks) if plan.order == "all_at_once" else window
        return Carrier(plan, src, self._dst, transport, self._channels, window, staging_bytes)

    def _shapes(self, layout: Layout) -> dict[int, tuple[int, ...]]:
        rank, rank_of = self._transport.rank, self._transport.rank_of
        return arrays.shapes(layout, (d for d in layout.mesh.device_ids if rank_of[d] == rank))

    def _check_time(self) -> None:
        rank, agreement = self._transport.rank, self._agreement
        if self._stall_s is not None and agreement.reached >= READY and agreement.silent:
            names = ", ".join(map(str, agreement.silent))
            stalled = StallError(
                "no rank is silent for longer than the stall limit; nothing has come from rank "
                f"{names} for {self._stall_s} s: find out whether its process was stopped or "
                "hangs, or raise stall_s"
            )
            stalled.waiting_for = stalled.culprits = agreement.silent
            raise stalled
        if self._clock() < self._until_s:
            return
        waits = list(self._channels.waiting())
        if agreement.reached < READY:
            waits = [(peer, "to begin") for peer in agreement.lacking]
        elif not waits:
            waits = [(peer, "to be done") for peer in agreement.lacking]
        silent = ", ".join(map(str, agreement.silent))
        shown = "; ".join(f"rank {rank} waits for rank {peer} {what}" for peer, what in waits[:4])
        error = DeadlineError(
            f"all ranks are done within the deadline; {self._deadline_s} s passed, and "
            f"{shown or f'rank {rank} is not done itself'}"
            + (f"; and for {len(waits) - 4} more" if len(waits) > 4 else "")
            + (f"; nothing comes from rank {silent}" if silent else "")
            + "; find out why these ranks are late, or raise deadline_s"
        )
        error.waiting_for = tuple(sorted({peer for peer, _ in waits}))
        error.culprits = agreement.silent
        raise error


def _is_finite(seconds: float) -> bool:
    return isinstance(seconds, Real) and math.isfinite(seconds)
