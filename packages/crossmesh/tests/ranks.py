"""The program of the ranks in test_transports.py.

`mpiexec -n N ranks.py mpi STORY FOLDER` runs it with MPI; `ranks.py N STORY FOLDER` forks N ranks
that use gloo. Each rank writes its results to FOLDER/rank.json.
"""

import dataclasses
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
from crossmesh import Execution, TransferPlan, execute, plan
from crossmesh.base.reduce import number_type
from crossmesh.base.tensor import item_bytes
from crossmesh.errors import CrossmeshError
from crossmesh.run.transport import CONTROL, DATA
from shardspec import Layout, Mesh, Spec, shard

PLENTY_S = 60.0
"""The time limit for what has to complete, on however busy a machine."""

FEW_S = 3.0
"""How long to wait for what must not complete; if it could, it would have completed long before."""

PATIENT_S = 4.0
"""An eighth of it, in which a rank must be heard, is long even for nine processes on two cores."""


def wait(transport, *pending):
    """Wait until all are complete, in the same way as an executor."""
    until = time.monotonic() + PLENTY_S
    while not all([p.test() for p in pending]):
        assert time.monotonic() < until, "not complete"
        transport.pause()


def outcome(call):
    """The result of a call, or the error that it raises."""
    try:
        return {"returned": call()}
    except CrossmeshError as error:
        return {
            "raised": type(error).__name__,
            "message": str(error),
            "waiting_for": getattr(error, "waiting_for", None),
            "culprits": list(error.culprits),
        }


def own_shards(made, rank_of, rank):
    wholes = {t.name: whole(t) for t in made.tensors}
    return {
        t.name: {d: a for d, a in shard(t.src, wholes[t.name]).items() if rank_of[d] == rank}
        for t in made.tensors
    }


def whole(tensor):
    """A whole tensor of small integers, whose sums are exact in every type."""
    size = int(np.prod(tensor.shape))
    return (1 + np.arange(size) % 4).reshape(tensor.shape).astype(number_type(tensor.dtype))


def messages(transport):
    """Send to and receive from every other rank with both tags; returns whether all arrives intact.

    All sends begin before any receive is tested.
    """
    others = [rank for rank in range(transport.n_ranks) if rank != transport.rank]
    sizes = [1, 256, 300_000, 7, 256, 70_001]  # above and below the eager limits of MPI and gloo

    def content(sender, receiver, tag, i):
        return np.arange(sizes[i], dtype=np.int64).astype(np.uint8) + np.uint8(
            sender + 8 * receiver + 64 * tag + 3 * i
        )

    pending, received = [], []
    for tag in (DATA, CONTROL):
        for i, size in enumerate(sizes):
            for other in others:
                data = np.zeros(size, np.uint8)
                pending.append(transport.receive(other, data, tag))
                received.append((data, content(other, transport.rank, tag, i)))
    for i in range(len(sizes)):
        for tag in (CONTROL, DATA):
            for other in others:
                data = content(transport.rank, other, tag, i)
                data.flags.writeable = False
                pending.append(transport.send(other, data, tag))
    wait(transport, *pending)
    return all(np.array_equal(data, expected) for data, expected in received)


def plans(transport, folder):
    """Execute all plans that the test wrote; returns the number of wrong shards."""
    wrong = 0
    for text in json.loads(Path(folder, "plans.json").read_text()):
        made = TransferPlan.from_json(text)
        shards = own_shards(made, transport.rank_of, transport.rank)
        received = execute(made, shards, transport, window=3, deadline_s=PLENTY_S, checksums=True)
        for t in made.tensors:
            expected = shard(t.dst, whole(t))
            mine = {d for d in expected if transport.rank_of[d] == transport.rank}
            assert set(received[t.name]) == mine
            wrong += sum(not np.array_equal(a, expected[d]) for d, a in received[t.name].items())
    return wrong


def batched(folder):
    """Like `plans`, but with torch tensors, and with plans of copies whose devices are ranks."""
    import torch
    import torch.distributed as dist
    from crossmesh.engines.torch_batched import execute_batched

    rank, wrong = dist.get_rank(), 0
    for text in json.loads(Path(folder, "copies.json").read_text()):
        made = TransferPlan.from_json(text)
        src, dst, expected = {}, {}, {}
        for t in made.tensors:
            bits = np.dtype(f"i{t.item_bytes}")  # not all types of torch are types of numpy
            dtype = getattr(torch, t.dtype)
            held, needed = shard(t.src, whole(t)), shard(t.dst, whole(t))
            if rank in held:
                src[t.name] = torch.from_numpy(held[rank].view(bits)).view(dtype)
            if rank in needed:
                expected[t.name] = torch.from_numpy(needed[rank].view(bits)).view(dtype)
                dst[t.name] = torch.zeros_like(expected[t.name])
        execute_batched(made, src, dst, dist.group.WORLD, window=2)
        wrong += sum(not torch.equal(dst[name], expected[name]) for name in expected)
    return wrong


def broadcast(n_ranks, n_bytes, chunks):
    """The plan of a broadcast from rank 0 along all other ranks."""
    src = Layout((n_bytes,), Mesh((1,), ("x",), (0,)), Spec.parse("R"))
    dst = Layout(
        (n_bytes,), Mesh((n_ranks - 1,), ("x",), tuple(range(1, n_ranks))), Spec.parse("R")
    )
    return plan(src, dst, "int8", chunks=chunks, chunk_bytes=1)


def carry(transport, made, deadline_s, stall_s=None):
    shards = own_shards(made, transport.rank_of, transport.rank)
    execute(made, shards, transport, window=2, deadline_s=deadline_s, stall_s=stall_s)


def another_plan(transport):
    """Execute with one rank that has the plan of another tensor."""
    made = broadcast(transport.n_ranks, 1001 if transport.rank == 3 else 1000, 4)
    carry(transport, made, PLENTY_S)


def late(transport, which):
    """Let one rank begin, but continue only long after the others know that plans differ."""
    made = broadcast(transport.n_ranks, 1001 if transport.rank in (0, 3) else 1000, 4)
    shards = own_shards(made, transport.rank_of, transport.rank)
    execution = Execution(made, shards, transport, window=2, deadline_s=PLENTY_S)
    if transport.rank == which:
        time.sleep(FEW_S / 4)
    while not execution.done:
        if not execution.step():
            transport.pause()


class Kept:
    """A transport that is used again after a failure, which left no messages behind."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def close(self):
        """Do nothing, so that the transport stays open."""


def dtypes(transport, folder):
    """Execute with shards of another type of the same size on one rank, which is another each time.

    Returns the outcomes.
    """
    kept = Kept(transport)
    outcomes = []
    for number, (planned, given, side) in enumerate(json.loads(Path(folder, "pairs").read_text())):
        wrong = number % transport.n_ranks
        first = (wrong + (side == "dst")) % transport.n_ranks
        made = broadcast_of(transport.n_ranks, 48 // item_bytes(planned), planned, first)
        bits = np.random.default_rng(number).integers(256, size=48, dtype=np.uint8)
        held = {"src": {}, "dst": {}}
        for own, layout in (("src", made.tensors[0].src), ("dst", made.tensors[0].dst)):
            if transport.rank in layout.mesh.device_ids:
                of_wrong = transport.rank == wrong and own == side
                dtype = number_type(given if of_wrong else planned)
                held[own][transport.rank] = (bits if own == "src" else 0 * bits).view(dtype)
        outcomes.append(
            outcome(
                lambda made=made, held=held: execute(
                    made, held["src"], kept, window=2, deadline_s=PLENTY_S, out=held["dst"]
                )
            )
        )
        arrived = [array.tobytes() for array in held["dst"].values()]
        expected = bits if "returned" in outcomes[-1] else 0 * bits
        assert arrived in ([], [expected.tobytes()]), (planned, given, side)
        outcomes[-1].pop("returned", None)
    return outcomes


def broadcast_of(n_ranks, n_elements, dtype, first):
    """The plan of a broadcast from rank `first` to all others."""
    others = tuple((first + 1 + i) % n_ranks for i in range(n_ranks - 1))
    src, dst = (
        Layout((n_elements,), Mesh((len(devices),), ("x",), devices), Spec.parse("R"))
        for devices in ((first,), others)
    )
    return plan(src, dst, dtype)


def missing(transport, which):
    """Execute without one rank."""
    if transport.rank == which:
        time.sleep(PATIENT_S)  # as long as the others wait, so that all begin the next story
    else:
        carry(transport, broadcast(transport.n_ranks, 1000, 4), PATIENT_S)


def other_length(transport, n_sent):
    """Let rank 0 send `n_sent` bytes to a receive of another length on rank 1.

    Rank 1 returns whether its receive completes.
    """
    data = np.zeros(100_000, np.uint8)
    if transport.rank == 0:
        transport.send(1, np.zeros(n_sent, np.uint8), DATA)
    elif transport.rank == 1:
        pending = transport.receive(0, data, DATA)
        until = time.monotonic() + FEW_S / 2
        while not pending.test() and time.monotonic() < until:
            transport.pause()
        return pending.test()


def closed(transport):
    """Use a transport after closing it; rank 0 returns the errors."""
    if transport.rank == 0:
        pending = transport.receive(1, np.zeros(10, np.uint8), DATA)
        transport.close()
        outcomes = [
            outcome(pending.test),
            outcome(lambda: transport.receive(1, np.zeros(10, np.uint8), DATA)),
            outcome(lambda: transport.send(1, np.zeros(10, np.uint8), DATA)),
        ]
        transport.close()
        return [found["raised"] for found in outcomes]


@dataclasses.dataclass
class Dying:
    """A transport whose process is killed or stopped by a signal in the middle of a message."""

    inner: object
    with_signal: int
    sends: int = 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def send(self, rank, data, tag):
        pending = self.inner.send(rank, data, tag)
        self.sends += tag == DATA
        if self.sends == 3:
            os.kill(os.getpid(), self.with_signal)
        return pending


def healthy(make, folder, more):
    """Run all stories after which the processes can go on; each has its own transport."""
    stories = {
        "messages": messages,
        "plans": lambda transport: plans(transport, folder),
        "another_plan": another_plan,
        "late 0": lambda transport: late(transport, 0),
        "late 1": lambda transport: late(transport, 1),
        "late 6": lambda transport: late(transport, 6),
        "dtypes": lambda transport: dtypes(transport, folder),
        "missing 5": lambda transport: missing(transport, 5),
        "missing 0": lambda transport: missing(transport, 0),
        "shorter": lambda transport: other_length(transport, 90_000),
        "longer": lambda transport: other_length(transport, 110_000),
        "closed": closed,
    } | more
    transports = [make() for _ in stories]
    return {
        name: outcome(lambda story=story, transport=transport: story(transport))
        for (name, story), transport in zip(stories.items(), transports, strict=True)
    }


def killed(make, victim, with_signal, deadline_s, stall_s):
    """Execute a broadcast in which a rank is killed or stopped while it passes bytes on."""
    transport = make()
    if transport.rank == victim:
        transport = Dying(transport, with_signal)
    made = broadcast(transport.n_ranks, 8_000_000, 20)
    return {"killed": outcome(lambda: carry(transport, made, deadline_s, stall_s=stall_s))}


def run(make, rank, n_ranks, story, folder, with_signal, more):
    rank_of = {device: device % n_ranks for device in range(200)}
    what, _, victim = story.partition(" ")
    limits = (PLENTY_S, FEW_S / 3) if what == "stalled" else (FEW_S, None)
    found = (
        healthy(lambda: make(rank_of), folder, more)
        if story == "healthy"
        else killed(lambda: make(rank_of), int(victim), with_signal, *limits)
    )
    part = Path(folder, f"{rank}.part")
    part.write_text(json.dumps(found))
    part.rename(Path(folder, f"{rank}.json"))


def mpi_rank(story, folder):
    from crossmesh.mpi import MpiTransport
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    # If a rank is killed, mpiexec ends the whole job; if it is only stopped, the others can report.
    run(
        lambda rank_of: MpiTransport(world.Dup(), rank_of),
        world.rank, world.size, story, folder, signal.SIGSTOP, {},
    )  # fmt: skip
    if story != "healthy":
        until = time.monotonic() + PLENTY_S
        while len(list(Path(folder).glob("*.json"))) < world.size - 1 and time.monotonic() < until:
            time.sleep(0.05)
        world.Abort(3)


def gloo_rank(rank, n_ranks, story, folder):
    import torch.distributed as dist
    from crossmesh.engines.torch_transport import TorchTransport

    where = f"file://{folder}/store"
    timeout = timedelta(seconds=PLENTY_S)
    dist.init_process_group("gloo", where, timeout, rank=rank, world_size=n_ranks)
    run(
        lambda rank_of: TorchTransport(dist.new_group(backend="gloo"), rank_of),
        rank, n_ranks, story, folder, signal.SIGKILL,
        {"batched": lambda transport: batched(folder)},
    )  # fmt: skip
    if story == "healthy":
        dist.barrier()  # otherwise a rank that ends first breaks its connections to others
        dist.destroy_process_group()


def fork_gloo_ranks(n_ranks, story, folder):
    import crossmesh.engines.torch_transport  # noqa: F401  # once for all: importing torch is slow

    for rank in range(n_ranks):
        if not os.fork():
            gloo_rank(rank, n_ranks, story, folder)
            if story != "healthy" and rank in (1, 3):
                return 0  # the neighbours of the killed rank end as any process does
            os._exit(0)  # without torch's shutdown, which takes long
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(n_ranks)]
    return int(sorted(codes) != [-signal.SIGKILL] * (story != "healthy") + [0] * codes.count(0))


if __name__ == "__main__":
    engine, story, folder = sys.argv[1:]
    if engine == "mpi":
        mpi_rank(story, folder)
    else:
        sys.exit(fork_gloo_ranks(int(engine), story, folder))
