"""`execute`: one rank's part of a plan, over any transport, with all other ranks or not at all."""

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import overload

from shardspec import Layout

from crossmesh.base.reduce import number_type
from crossmesh.base.whole import whole_number
from crossmesh.errors import DeadlineError, PlanError, TransferError, TransportError
from crossmesh.run.agreement import DONE, READY, Agreement
from crossmesh.run.carrier import Carrier
from crossmesh.run.channels import Channels
from crossmesh.run.packing import Array
from crossmesh.run.transport import Transport
from crossmesh.search.planner import FUSE_BYTES
from crossmesh.transfer import arrays as arrays
from crossmesh.transfer.arrays import Shards
from crossmesh.transfer.plan import TransferPlan

STAGING_BYTES = 2 * FUSE_BYTES
"""Two of the largest fused tasks: one on its way in, one on its way out."""

REASON_S = 0.5
"""How long a rank that lost a connection waits for the reason, which passes from rank to rank; and
one whose deadline has passed for the others to take note of it."""


@overload
def execute(
    plan: TransferPlan,
    shards: Mapping[int, Array],
    transport: Transport,
    *,
    window: int,
    deadline_s: float,
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
    staging_bytes: int = STAGING_BYTES,
    checksums: bool = False,
    out: Shards | None = None,
) -> dict[int, Array] | dict[str, dict[int, Array]]:
    """Move tensors between the devices of all ranks; each rank calls it with the same plan.

    Args:
        plan: What goes where.
        shards: The source shard of each device of this rank, of any strides: {device: array}, or
            {name: {device: array}} where the plan has several tensors. Not changed.
        transport: What connects the ranks.
        window: How many tasks are open at a time. Of a plan of order "all_at_once" all are.
        deadline_s: Seconds from now until all ranks are done.
        staging_bytes: How many bytes may be held on their way in and out, besides the shards; one
            chunk may always be. What lies contiguous in a shard goes straight from it and to it.
        checksums: Whether each chunk is followed by its CRC-32.
        out: Where to put the destination shards, like `shards`. None: new arrays.

    Returns:
        The destination shard of each device of this rank, with names if `shards` has some. Of a
        plan of strategy "signal" what would have been sent is undefined.

    Raises:
        ShardError: shards or `out` do not fit the plan: other devices, shapes or dtypes. On ranks
            whose own do, it is a RankShardError.
        PlanError: `window` below 1, a device that has no rank, or a deadline that is no number of
            seconds.
        MissingExtraError: partial results are of a type of ml_dtypes, which is not installed.
        MismatchError: ranks have different plans.
        DeadlineError: the deadline passed.
        RankError: another rank raised an error.
        ChecksumError: bytes arrived that were not sent.
        TransportError: the transport failed.

        Whatever one rank raises, all others raise, RankError or RankShardError, before any of them
        returns; by the deadline, and half a second after it, the transport is closed in any case.
        Nothing is returned then; arrays of `out` that may have changed are in the error's
        `invalid`, and are left as they are. What a rank raises before all are ready, such as for
        shards that do not fit, it raises before anything moved.
    """
    execution = Execution(
        plan,
        shards,
        transport,
        window=window,
        deadline_s=deadline_s,
        staging_bytes=staging_bytes,
        checksums=checksums,
        out=out,
    )
    try:
        while not execution.done:
            if not execution.step():
                transport.pause()
    except BaseException:  # also when interrupted, nothing may write to arrays any more
        transport.close()
        raise
    return execution.result


def refuse(transport: Transport, error: Exception, deadline_s: float) -> None:
    """Tell all ranks that this one takes no part in a transfer that they may be about to begin.

    They raise then what they would if `execute` had raised the error. Closes the transport.
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
    """Say why this rank failed, until all ranks know, or the deadline has passed."""
    latest_s = max(until_s, clock() + REASON_S)
    agreement.say_failed(error)
    while not agreement.told() and clock() < latest_s:
        yield False


class Execution:
    """A call of `execute`, step by step: so a process can do other things meanwhile.

    Arguments are those of `execute`, and `clock`: seconds that go by.
    """

    def __init__(
        self,
        plan: TransferPlan,
        shards: Shards,
        transport: Transport,
        *,
        window: int,
        deadline_s: float,
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
        self._clock = clock
        self._until_s = clock() + (deadline_s if _is_finite(deadline_s) else 0.0)
        how = f"{plan.digest} {bool(checksums)}"
        self._agreement = Agreement(transport, hashlib.sha256(how.encode()).digest())
        self._channels = Channels(transport, checksums)
        self._dst: dict[str, dict[int, Array]] = {}
        self._wrote = False
        self._rounds = self._run()
        self.done = False
        """Whether the transfer is complete, on all ranks."""

    def step(self) -> bool:
        """Do what can be done now; False if there was nothing but to wait.

        Raises:
            CrossmeshError: as `execute` does; then it is over.
        """
        return next(self._rounds, False)

    @property
    def result(self) -> dict[int, Array] | dict[str, dict[int, Array]]:
        """What `execute` returns, once it is done."""
        if arrays.has_names(self._plan, self._shards):
            return self._dst
        (found,) = self._dst.values()
        return found

    def _run(self) -> Iterator[bool]:
        try:
            try:
                yield from self._transfer()
            except TransportError as error:
                yield from self._ask_why()
                if self._agreement.reached >= READY:
                    raise
                raise TransportError(
                    "no rank leaves before all are ready, unless its deadline passes or it ends; "
                    f"rank {self._transport.rank} came too late to hear why: {error}"
                ) from error
        except Exception as error:
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
            yield carrier.advance() or self._wait()
            self._check_time()
        self._agreement.say(DONE)
        while self._agreement.reached < DONE or not self._agreement.sent():
            yield self._wait()

    def _wait(self) -> bool:
        self._agreement.hear()
        if self._clock() > self._until_s - self._deadline_s / 2:
            self._agreement.say_waiting()
        self._check_time()
        return False

    def _ask_why(self) -> Iterator[bool]:
        """A rank that failed says why before it leaves, and what it says may be on its way."""
        until_s = min(self._until_s, self._clock() + REASON_S)
        while self._clock() < until_s and not self._agreement.is_alone:
            with contextlib.suppress(TransportError):
                self._agreement.hear()
            yield False

    def _carrier(self) -> Carrier:
        plan, transport = self._plan, self._transport
        rank_of = transport.rank_of
        if not _is_finite(self._deadline_s):
            raise PlanError(f"a deadline is some seconds; got deadline_s={self._deadline_s!r}")
        known = {d for d, rank in rank_of.items() if 0 <= rank < transport.n_ranks}
        missing = [device for device, _ in plan.hosts if device not in known]
        if missing:
            raise PlanError(
                f"every device of a plan has a rank, of {transport.n_ranks}; "
                f"rank_of lacks {missing[:4]}"
            )
        window = whole_number("window", self._window)
        staging_bytes = whole_number("staging_bytes", self._staging_bytes)
        if window < 1:
            raise PlanError(f"at least one task is open at a time; got {window=}")
        reduced = (task.pieces[0].tensor for task in plan.tasks if task.reduction)
        for added in {plan.tensors[i].dtype for i in reduced if plan.strategy != "signal"}:
            number_type(added)  # what is not there is found out before anything moved
        src = arrays.by_name(plan, self._shards)
        out = None if self._out is None else arrays.by_name(plan, self._out)
        for tensor in plan.tensors:
            given, shapes = src[tensor.name], self._shapes(tensor.dst)
            arrays.check(tensor, tensor.src, self._shapes(tensor.src), given)
            if out is None:
                dtype = arrays.dtype_of(tensor, given)
                made = {d: arrays.new(tensor, shape, dtype) for d, shape in shapes.items()}
            else:
                made = dict(out[tensor.name])
                arrays.check(tensor, tensor.dst, shapes, made)
            self._dst[tensor.name] = made
        if out is not None:
            arrays.check_apart(out, src)
        window = len(plan.tasks) if plan.order == "all_at_once" else window
        return Carrier(plan, src, self._dst, transport, self._channels, window, staging_bytes)

    def _shapes(self, layout: Layout) -> dict[int, tuple[int, ...]]:
        rank, rank_of = self._transport.rank, self._transport.rank_of
        return arrays.shapes(layout, (d for d in layout.mesh.device_ids if rank_of[d] == rank))

    def _check_time(self) -> None:
        if self._clock() < self._until_s:
            return
        rank, agreement = self._transport.rank, self._agreement
        waits = list(self._channels.waiting())
        if agreement.reached < READY:
            waits = [(peer, "to begin") for peer in agreement.lacking]
        elif not waits:
            waits = [(peer, "to be done") for peer in agreement.lacking]
        shown = "; ".join(f"rank {rank} waits for rank {peer} {what}" for peer, what in waits[:4])
        error = DeadlineError(
            f"all ranks are done within the deadline; {self._deadline_s} s passed, and "
            f"{shown or f'rank {rank} is not done itself'}"
            + (f"; and for {len(waits) - 4} more" if len(waits) > 4 else "")
            + "; see what became of them, or give more time as deadline_s"
        )
        error.waiting_for = tuple(sorted({peer for peer, _ in waits}))
        raise error


def _is_finite(seconds: float) -> bool:
    return isinstance(seconds, Real) and math.isfinite(seconds)
