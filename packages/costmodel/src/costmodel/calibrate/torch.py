"""Measures collectives of `torch.distributed` over gloo, and matrix products of torch on the CPU.

The processes find each other by the environment variables that torchrun sets.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from costmodel.calibrate.backend import KINDS, Repeat, idle, repeating


class TorchBackend:
    """A rank of `torch.distributed`."""

    kinds = KINDS
    dtypes = ("float32", "float64", "bfloat16")

    def __init__(self, deadline_s: float) -> None:
        torch.set_num_threads(1)
        self._timeout = timedelta(seconds=deadline_s)
        dist.init_process_group("gloo", timeout=self._timeout)
        self.rank, self.n_processes = dist.get_rank(), dist.get_world_size()
        self.versions = (("torch", torch.__version__),)
        self._groups: dict[int, Any] = {}

    def collective(self, kind: str, n: int, n_bytes: int) -> Repeat:
        """See `Backend`."""
        if n not in self._groups:
            self._groups[n] = dist.new_group(list(range(n)), self._timeout)  # all ranks take part
        if self.rank >= n:
            return idle
        group, rank = self._groups[n], self.rank
        whole = torch.zeros(n_bytes // 4)
        part = torch.zeros(n_bytes // 4 // n)
        other = torch.zeros_like(whole)

        def once(i: int) -> None:
            match kind:
                case "point_to_point":  # there and back: each message waits for the one before
                    act = dist.send if i % 2 == rank else dist.recv
                    act(whole, 1 - rank, group=group)
                case "all_reduce":
                    dist.all_reduce(whole, group=group)
                case "all_gather":
                    dist.all_gather_single(whole, part, group=group)
                case "reduce_scatter":
                    dist.reduce_scatter_single(part, whole, group=group)
                case "all_to_all":
                    dist.all_to_all_single(other, whole, group=group)
                case "broadcast":  # the root moves on, so that no rank runs ahead
                    dist.broadcast(whole, i % n, group=group)
                case "permute":
                    sent = dist.isend(whole, (rank + 1) % n, group=group)
                    dist.recv(other, (rank - 1) % n, group=group)
                    if sent is not None:  # None only outside the group
                        sent.wait()

        return repeating(once)

    def matmul(self, m: int, n: int, k: int, dtype: str) -> Repeat:
        """See `Backend`."""
        of = getattr(torch, dtype)
        a, b, c = torch.ones(m, k, dtype=of), torch.ones(k, n, dtype=of), torch.ones(m, n, dtype=of)
        return repeating(lambda i: torch.mm(a, b, out=c))

    def stream(self, n_bytes: int) -> Repeat:
        """See `Backend`."""
        a, b = torch.zeros(n_bytes // 8), torch.zeros(n_bytes // 8)
        return repeating(lambda i: torch.mul(a, 2.0, out=b))

    def slowest(self, seconds: list[float]) -> list[float]:
        """See `Backend`."""
        values = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        largest: list[float] = values.tolist()
        return largest

    def message(self, first: int, second: int, n_bytes: int) -> Repeat:
        """See `Backend`."""
        if self.rank not in (first, second):
            return idle
        whole, other = torch.zeros(n_bytes // 4), first + second - self.rank

        def once(i: int) -> None:
            act = dist.send if (i % 2 == 0) == (self.rank == first) else dist.recv
            act(whole, other)

        return repeating(once)

    def gather(self, text: str) -> list[str]:
        """See `Backend`."""
        texts = [""] * self.n_processes
        dist.all_gather_object(texts, text)
        return texts

    def close(self) -> None:
        """See `Backend`."""
        dist.destroy_process_group()


def join(deadline_s: float) -> TorchBackend:
    """See `costmodel.calibrate.backend.join`."""
    return TorchBackend(deadline_s)
