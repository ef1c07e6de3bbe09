"""Measures collectives of MPI (mpi4py) and matrix products of numpy; runs under mpiexec."""

from __future__ import annotations

import time
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from costmodel.calibrate.backend import KINDS, Repeat, idle, repeating

_NAP_S = 0.0005  # waiting inside MPI would keep a core busy that the timed processes need


class MpiBackend:
    """A rank of the world communicator."""

    kinds = KINDS
    dtypes = ("float32", "float64")

    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.rank, self.n_processes = self._world.Get_rank(), self._world.Get_size()
        library = MPI.Get_library_version().splitlines()[0]
        self.versions = (
            ("mpi4py", mpi4py.__version__),
            ("MPI", " ".join(library.split())),
            ("numpy", np.__version__),
        )
        self._groups: dict[int, Any] = {}

    def collective(self, kind: str, n: int, n_bytes: int) -> Repeat:
        """See `Backend`."""
        if n not in self._groups:  # all ranks take part in the split; those outside get None
            self._groups[n] = self._world.Split(0 if self.rank < n else MPI.UNDEFINED, self.rank)
        if self.rank >= n:
            return idle
        group, rank = self._groups[n], self.rank
        whole, other = np.zeros(n_bytes // 4, np.float32), np.zeros(n_bytes // 4, np.float32)
        part = np.zeros(n_bytes // 4 // n, np.float32)

        def once(i: int) -> None:
            match kind:
                case "point_to_point":  # there and back: each message waits for the one before
                    if i % 2 == rank:
                        group.Send(whole, 1 - rank)
                    else:
                        group.Recv(whole, 1 - rank)
                case "all_reduce":
                    group.Allreduce(whole, other)
                case "all_gather":
                    group.Allgather(part, whole)
                case "reduce_scatter":
                    group.Reduce_scatter_block(whole, part)
                case "all_to_all":
                    group.Alltoall(whole, other)
                case "broadcast":  # the root moves on, so that no rank runs ahead
                    group.Bcast(whole, i % n)
                case "permute":
                    group.Sendrecv(whole, (rank + 1) % n, recvbuf=other, source=(rank - 1) % n)

        return repeating(once)

    def matmul(self, m: int, n: int, k: int, dtype: str) -> Repeat:
        """See `Backend`."""
        a, b, c = np.ones((m, k), dtype), np.ones((k, n), dtype), np.ones((m, n), dtype)
        return repeating(lambda i: np.matmul(a, b, out=c))

    def stream(self, n_bytes: int) -> Repeat:
        """See `Backend`."""
        a, b = np.zeros(n_bytes // 8, np.float32), np.zeros(n_bytes // 8, np.float32)
        return repeating(lambda i: np.multiply(a, np.float32(2), out=b))

    def slowest(self, seconds: list[float]) -> list[float]:
        """See `Backend`."""
        largest = np.empty(len(seconds))
        request = self._world.Iallreduce(np.array(seconds), largest, MPI.MAX)
        while not request.Test():
            time.sleep(_NAP_S)
        return [float(value) for value in largest]

    def message(self, first: int, second: int, n_bytes: int) -> Repeat:
        """See `Backend`."""
        if self.rank not in (first, second):
            return idle
        whole, other = np.zeros(n_bytes // 4, np.float32), first + second - self.rank

        def once(i: int) -> None:
            if (i % 2 == 0) == (self.rank == first):
                self._world.Send(whole, other)
            else:
                self._world.Recv(whole, other)

        return repeating(once)

    def gather(self, text: str) -> list[str]:
        """See `Backend`."""
        texts: list[str] = self._world.allgather(text)
        return texts

    def close(self) -> None:
        """See `Backend`; mpi4py itself leaves when the process ends."""


def join(deadline_s: float) -> MpiBackend:
    """See `costmodel.calibrate.backend.join`; the import of mpi4py has waited for the others."""
    return MpiBackend()
