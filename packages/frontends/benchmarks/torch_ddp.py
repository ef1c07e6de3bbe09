"""The processes of test_torch_ddp.py: `torchrun --nproc-per-node 2 torch_ddp.py PORT SIZES`. What
the test asks for by a socket is one step each time, by our runtime or by hand."""

import contextlib
import copy
import gc
import json
import socket
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import frontends.torch as mw
import torch
import torch.distributed as dist
from costmodel import Cluster
from frontends.torch.run.processes import join
from torch import nn

WORDS = ("end", "ours", "by hand")
FUNCTIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather_single",
    "reduce_scatter": "reduce_scatter_single",
    "all_to_all": "all_to_all_single",
}
"""Torch's for each kind of collective; the first argument is what a device gets."""


@dataclass(frozen=True)
class Sizes:
    """Of a GPT and its batch."""

    width: int
    blocks: int
    sequence: int
    vocabulary: int
    batch: int


class Block(nn.Module):
    """Attention and a perceptron, each on what is normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (*x.shape[:2], 4, self.width // 4)
        qkv = (part.view(heads).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    """From tokens to logits."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Parameter(torch.randn(sizes.sequence, sizes.width))
        self.blocks = nn.Sequential(*(Block(sizes.width) for _ in range(sizes.blocks)))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places)))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens)[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())


def cluster() -> Cluster:
    """Two hosts with a slow link, on which memory costs nothing.

    So the plan is what DDP does, if the model is not tiny. Else it is not quite: a gradient is
    split over devices before it is transposed, and made whole after, as that is priced like a copy.
    """
    found = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=1)
    device = replace(
        found.hosts[0].device,
        memory_bandwidth_bytes_per_s=1e18,
        memory_bytes=2**40,
    )
    return replace(found, hosts=tuple(replace(host, device=device) for host in found.hosts))


@contextlib.contextmanager
def recorded() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """How many collectives torch is told to run meanwhile, and the bytes that a device gets."""
    calls: Counter[str] = Counter()
    n_bytes: Counter[str] = Counter()

    def noting(kind: str, original: Any) -> Any:
        def call(result: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            calls[kind] += 1
            n_bytes[kind] += result.numel() * result.element_size()
            return original(result, *args, **kwargs)

        return call

    with contextlib.ExitStack() as patched:
        for kind, name in FUNCTIONS.items():
            new = noting(kind, getattr(dist, name))
            patched.enter_context(mock.patch.object(dist, name, new))
        yield calls, n_bytes


def serve(rank: int, port: int, sizes: Sizes) -> weakref.ref[nn.Module]:
    """Do what the test asks for, until it says that it is over; DDP's module, if it is there."""
    torch.manual_seed(0)
    model = GPT(sizes)
    theirs = copy.deepcopy(model)
    tokens = torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.sequence))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    options: dict[str, Any] = {"strategy": "data_parallel", "microbatches": 1}
    step = mw.parallelize(model, optimizer, loss_of, cluster=cluster(), **options)
    step.compile(tokens)
    with recorded() as (calls, n_bytes):
        first = float(step(tokens))

    replica = nn.parallel.DistributedDataParallel(theirs)
    its_optimizer = torch.optim.AdamW(theirs.parameters(), 1e-3)
    own = tokens.chunk(2)[rank]

    def by_hand() -> torch.Tensor:
        its_optimizer.zero_grad()
        loss = loss_of(replica, own)
        loss.backward()
        its_optimizer.step()
        return loss.detach()

    total = by_hand()
    dist.all_reduce(total)
    planned: Counter[str] = Counter()
    for one in step.plan.stages[0].collectives:
        planned[one.kind] += one.n_bytes
    facts = {
        "losses": [first, float(total) / 2],
        "bytes": [dict(n_bytes), dict(planned)],
        "calls": [sum(calls.values()), len(step.plan.stages[0].collectives)],
    }
    steps = {"ours": lambda: step(tokens), "by hand": by_hand}
    line = socket.create_connection(("localhost", port)).makefile("rw") if rank == 0 else None
    while True:
        word = torch.tensor(0)
        if line is not None:
            print(json.dumps(facts), file=line, flush=True)
            word.fill_(WORDS.index(line.readline().strip()))
        dist.broadcast(word, 0)
        if WORDS[word] == "end":
            return weakref.ref(replica)
        start_s = time.process_time()
        steps[WORDS[word]]()
        seconds = torch.tensor(time.process_time() - start_s, dtype=torch.float64)
        dist.all_reduce(seconds)
        facts = {"cpu_s": float(seconds)}


def main(port: int, sizes: Sizes) -> None:
    torch.set_num_threads(1)
    rank = join()
    assert rank is not None
    replica = serve(rank, port, sizes)
    # DDP's reducer goes before the group: if it were the last to hold it, it would join gloo's
    # threads with the GIL, which they need to let go of the tensors of their last collective, and
    # the process would hang (torch 2.13).
    gc.collect()
    assert replica() is None
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Sizes(*map(int, sys.argv[2].split(","))))
