"""One process of the measurement; writes how long each version took, by method, to a folder.

    python rank.py FOLDER RANK ADDRESS:PORT

Ranks below `N_TRAINERS` train: each holds an eighth of the rows of all weights in float32. The
others are two replicas of an engine of two ranks each, with tensor parallelism and fused
projections in bfloat16. All processes begin a version at the same time.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from crossmesh.sync import maps
from crossmesh.torch import Publisher, Subscriber
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

N_TRAINERS, N_ENGINES, TENSOR_PARALLEL = 8, 4, 2
BUCKET_BYTES = 64 * 2**20
RECEIVED = Path("/sys/class/net/eth0/statistics/rx_bytes")
"""The bytes that the host has received, headers included, as the kernel counts them."""
TIMEOUT = datetime.timedelta(minutes=10)

Weights = dict[str, torch.Tensor]
Method = Callable[[int], None]
"""Brings a version to the engines; all processes call it."""


def shapes(mib: int) -> dict[str, tuple[int, ...]]:
    """The weights of a Llama of so many MiB in float32, with a width of 1,024."""
    width, inner = 1024, 2816
    layer = {
        **dict.fromkeys(
            (f"self_attn.{name}_proj.weight" for name in "qkvo"),
            (width, width),
        ),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    n_layers = max(1, round(mib * 2**20 / 4 / (4 * width * width + 3 * width * inner)))
    return {
        f"model.layers.{i}.{name}": shape for i in range(n_layers) for name, shape in layer.items()
    }


def engine_state(published: dict[str, tuple[int, ...]]) -> Weights:
    """What a rank of the engine has: fused projections, cut by rows or columns."""
    state: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns) in published.items():
        path, module, _ = name.rsplit(".", 2)
        if module in ("o_proj", "down_proj"):
            state[name] = (rows, columns // TENSOR_PARALLEL)
        else:
            fused = "qkv_proj" if "attn" in path else "gate_up_proj"
            before = state.get(f"{path}.{fused}.weight", (0, columns))[0]
            state[f"{path}.{fused}.weight"] = (before + rows // TENSOR_PARALLEL, columns)
    return {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in state.items()}


class World:
    """All processes: who this one is, and what it has."""

    def __init__(self, rank: int, mib: int) -> None:
        self.rank = rank
        self.shapes = shapes(mib)
        self.trains = rank < N_TRAINERS
        self.trainers = dist.new_group(list(range(N_TRAINERS)), backend="gloo")
        self.readers = dist.new_group(
            [0, *range(N_TRAINERS, N_TRAINERS + N_ENGINES)], backend="gloo"
        )
        mesh = DeviceMesh("cpu", list(range(N_TRAINERS)))
        self.held: dict[str, DTensor] = {}
        self.state: Weights = {}
        self.part = (rank - N_TRAINERS) % TENSOR_PARALLEL
        if self.trains:
            for name, (rows, columns) in self.shapes.items():
                local = torch.zeros(rows // N_TRAINERS, columns)
                self.held[name] = DTensor.from_local(local, mesh, [Shard(0)])
        else:
            self.state = engine_state(self.shapes)

    def write(self, name: str, whole: torch.Tensor) -> None:
        """Put a whole weight where an engine has it."""
        path, module, tail = name.rsplit(".", 2)
        if module in ("o_proj", "down_proj"):
            self.state[name].copy_(whole.chunk(TENSOR_PARALLEL, 1)[self.part])
            return
        fused = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")}
        modules = fused[path.rpartition(".")[2]]
        target = self.state[f"{path}.{'qkv' if len(modules) == 3 else 'gate_up'}_proj.{tail}"]
        rows = whole.chunk(TENSOR_PARALLEL, 0)[self.part]
        target.chunk(len(modules), 0)[modules.index(module)].copy_(rows)

    def check(self, version: int) -> None:
        """Compare all elements of the engine with those of a version."""
        for name, value in self.state.items():
            if not value.eq(version).all():
                raise RuntimeError(f"{name} is not that of version {version} on rank {self.rank}")


class Ours:
    """A publisher and subscribers."""

    def __init__(self, world: World, store: Store) -> None:
        self._publisher: Publisher | None = None
        if world.trains:
            self._publisher = Publisher(
                world.held, store, run_id="t", rank=world.rank, size=N_TRAINERS
            )
            return
        index, part = divmod(world.rank - N_TRAINERS, TENSOR_PARALLEL)
        self._subscriber = Subscriber(
            world.state,
            store,
            maps.engine(part, TENSOR_PARALLEL),
            replica=f"engine {index}",
            run_id="e",
            rank=part,
            size=TENSOR_PARALLEL,
        )

    def __call__(self, version: int) -> None:
        """See `Method`."""
        if self._publisher:
            self._publisher.wait_for(N_ENGINES // TENSOR_PARALLEL)
            self._publisher.publish().wait()
        else:
            self._subscriber.wait(self._subscriber.version + 1)
            self._subscriber.apply()

    def close(self) -> None:
        """Stop."""
        (self._publisher or self._subscriber).close()


def gathered(world: World, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Gather weights on rank 0, in one message, and broadcast them to the engines in another."""
    sizes = [world.shapes[name] for name in names]
    counts = [rows * columns for rows, columns in sizes]
    whole = torch.empty(sum(counts), dtype=torch.bfloat16)
    if world.trains:
        own = torch.cat([world.held[name].to_local().bfloat16().flatten() for name in names])
        parts = [torch.empty_like(own) for _ in range(N_TRAINERS)] if world.rank == 0 else None
        dist.gather(own, parts, dst=0, group=world.trainers)
        if parts:
            ends = [0, *torch.tensor(counts).div(N_TRAINERS).long().cumsum(0).tolist()]
            starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
            for i, (start, stop) in enumerate(pairwise(ends)):
                pieces = [part[start:stop] for part in parts]
                torch.cat(pieces, out=whole[starts[i] : starts[i + 1]])
    if world.rank == 0 or not world.trains:
        dist.broadcast(whole, src=0, group=world.readers)
    for name, size, content in zip(names, sizes, torch.split(whole, counts), strict=True):
        yield name, content.view(size)


def by_tensor(world: World, version: int) -> None:
    """Gather and broadcast one weight after the other."""
    for name in world.shapes:
        for _, whole in gathered(world, [name]):
            if not world.trains:
                world.write(name, whole)


def by_bucket(world: World, version: int) -> None:
    """Gather and broadcast buckets of weights."""
    bucket: list[str] = []
    for name, (rows, columns) in [*world.shapes.items(), ("", (0, 0))]:
        full = sum(2 * world.shapes[n][0] * world.shapes[n][1] for n in bucket) + 2 * rows * columns
        if bucket and (full > BUCKET_BYTES or not name):
            for written, whole in gathered(world, bucket):
                if not world.trains:
                    world.write(written, whole)
            bucket = []
        bucket.append(name)


def main(folder: str, rank: int, address: str) -> None:
    """Measure all methods, in turns."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address}",
        rank=rank,
        world_size=N_TRAINERS + N_ENGINES,
        timeout=TIMEOUT,
    )
    job = json.loads(Path(folder, "job.json").read_text())
    world = World(rank, job["mib"])
    host, _, port = address.partition(":")
    store = TCPStore(host, int(port) + 1, is_master=rank == 0, timeout=TIMEOUT)
    ours = Ours(world, store)
    methods: dict[str, Method] = {
        "ours": ours,
        "gather and broadcast": lambda version: by_tensor(world, version),
        "buckets": lambda version: by_bucket(world, version),
    }
    spans: dict[str, list[tuple[float, float, int]]] = {name: [] for name in methods}
    version = 0
    for turn in range(job["versions"]):
        for name, method in methods.items():
            if name != "ours" and turn >= job["baseline_versions"]:
                continue
            version += 1
            for value in world.held.values():
                value.to_local().fill_(version)
            dist.barrier()
            before, began = int(RECEIVED.read_text()), time.time()
            method(version)
            ended = time.time()
            dist.barrier()
            spans[name].append((began, ended, int(RECEIVED.read_text()) - before))
            world.check(version)
    ours.close()
    Path(folder, f"{rank}.json").write_text(json.dumps(spans))
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
