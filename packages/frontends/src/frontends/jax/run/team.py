"""What connects the processes of one run: lanes by which they send data, and a watch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import crossmesh
import jax
from shardspec import Layout, Mesh, Spec

from frontends.answer.plan import Plan
from frontends.base.heartbeat import Watched
from frontends.errors import DeviceError
from frontends.jax.base import _compat
from frontends.jax.lower.compile import Submeshes
from frontends.jax.run.processes import gather
from frontends.jax.run.watch import is_anothers, watch
from frontends.jax.trace.trace import Trace
from frontends.program.program import LoweredPlan
from frontends.program.register_allocation import Shards
from frontends.run.lanes import Lane, lanes_of
from frontends.run.mailbox import Courier
from frontends.run.mpi import connect, import_mpi
from frontends.run.plan_consensus import check_consensus, word_of

_RESULTS = -1
"""Stands for the number of a transfer: the results that every process gets after a step."""


class Team:
    """All processes of a run, as this one sees them.

    Args:
        plan: The plan, the same in all of them.
        program: The program of the plan.
        trace: What the program runs, the same in all of them.
        submeshes: The devices of the stages.
        planned: How each transfer goes from device to device.
        results: What all processes get at the end of a step: by name, its stage, and its shape,
            dtype and sharding there.
        deadline_s: How long a step may stand still.
    """

    def __init__(
        self,
        plan: Plan,
        program: LoweredPlan,
        trace: Trace,
        submeshes: Submeshes,
        planned: Sequence[crossmesh.TransferPlan],
        results: Mapping[str, tuple[int, jax.ShapeDtypeStruct]],
        deadline_s: float,
    ) -> None:
        self._submeshes = submeshes
        self._process_of = {i: d.process_index for i, d in enumerate(submeshes.devices)}
        _check_mpi()
        self._watch = watch()
        self._watch.deadline_s = deadline_s
        words = gather(word_of(plan, trace.checksums), "have its plan")
        check_consensus(words, trace.checksums, trace.line_of)
        lanes = lanes_of(program, planned, submeshes.processes)
        self._has_results = bool(results)
        if results:
            lanes.append(self._results_lane(results))
        self.courier = Courier(lanes, jax.process_index(), self._connect, deadline_s)

    def wait_for_all(self) -> None:
        """Wait until all processes are ready for the first step; some have more to compile."""
        gather("", "compile its programs")

    @contextmanager
    def step(self) -> Iterator[Watched]:
        """Context of a step of this process; its errors become known to all processes."""
        with self._watch.step(is_anothers) as watched:
            self.courier.begin()
            yield watched
            self.courier.end()

    def share(self, results: Mapping[str, Shards]) -> dict[str, jax.Array]:
        """Send this process's results to all processes, and receive those of all.

        Args:
            results: By name, all results that are returned whole; those of other stages are empty.

        Returns:
            By name, each result whole on one device of this process.
        """
        if not self._has_results:
            return {}
        if any(results.values()):
            self.courier.send(_RESULTS, None, results)
        received = self.courier.receive_all(_RESULTS, None)
        return {
            name: _compat.free(next(iter(shards.values()))) for name, shards in received.items()
        }

    def _connect(self, number: int, lane: Lane) -> crossmesh.Transport:
        return connect(number, lane, self._process_of)

    def _results_lane(self, results: Mapping[str, tuple[int, jax.ShapeDtypeStruct]]) -> Lane:
        n_processes = jax.process_count()
        first = {process: device for device, process in reversed(self._process_of.items())}
        everyone = Mesh((n_processes,), ("process",), tuple(first[p] for p in range(n_processes)))
        src, dst, senders = {}, {}, frozenset[int]()
        for name, (stage, abstract) in results.items():
            mesh, whole = self._submeshes.meshes[stage], Spec.replicated(len(abstract.shape))
            src[name] = Layout(abstract.shape, mesh, whole)
            dst[name] = Layout(abstract.shape, everyone, whole)
            senders |= self._submeshes.processes(mesh)
        dtypes = {name: str(abstract.dtype) for name, (_, abstract) in results.items()}
        planned = crossmesh.plan(src, dst, dtypes, self._process_of)
        return Lane(tuple(range(n_processes)), ((_RESULTS, None),), {_RESULTS: planned}, senders)


def _check_mpi() -> None:
    world = import_mpi().COMM_WORLD
    if (world.rank, world.size) != (jax.process_index(), jax.process_count()):
        raise DeviceError(
            f"MPI and JAX must number the processes alike; this is process {world.rank} of "
            f"{world.size} in MPI, and {jax.process_index()} of {jax.process_count()} in JAX: "
            "start the processes with mpiexec or srun, and let frontends.jax.init join them"
        )
