"""What the processes of one run have together: lanes for what they send, and a watch."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import crossmesh
import jax
from shardspec import Layout, Mesh, Spec

from frontends.errors import DeviceError, PlanError
from frontends.instructions import Instruction, Send
from frontends.jax import _compat
from frontends.jax.compile import Shards, Submeshes
from frontends.jax.courier import Courier, Lane, Message
from frontends.jax.watch import Watch
from frontends.plan import Plan

_RESULTS = -1
"""In the place of a transfer's number: what every process is given at the end of a step."""


_PLANNED_S = 3600
"""How much later than others a process may have its plan, or its programs, if it is alive."""


class Watched:
    """Where a step is, for the watch."""

    def __init__(self, watch: Watch, step: int) -> None:
        self._watch, self._step = watch, step
        self.place = 0

    @property
    def place(self) -> int:
        """Of the instruction that runs."""
        return self._watch.position[1]

    @place.setter
    def place(self, place: int) -> None:
        self._watch.position = self._step, place


class Team:
    """All processes of a run, as this one sees them.

    Args:
        plan: The same in all of them.
        submeshes: Where the stages are.
        instructions: Of all processes, in their order.
        planned: How each transfer goes from device to device.
        results: What all processes are given at the end of a step: by name, its stage and form.
        deadline_s: How long a step may stand still.
    """

    def __init__(
        self,
        plan: Plan,
        submeshes: Submeshes,
        instructions: Sequence[Instruction],
        planned: Sequence[crossmesh.TransferPlan],
        results: Mapping[str, tuple[int, jax.ShapeDtypeStruct]],
        deadline_s: float,
    ) -> None:
        self._submeshes = submeshes
        self._process_of = {i: d.process_index for i, d in enumerate(submeshes.devices)}
        _check_mpi()
        self._client = _compat.coordination_client()
        self._watch = Watch(self._client, jax.process_index(), jax.process_count(), deadline_s)
        self._check_plan(plan)
        lanes = self._lanes(plan, instructions, planned)
        self._has_results = bool(results)
        if results:
            lanes.append(self._results_lane(results))
        self.courier = Courier(lanes, self._process_of)
        self._n_steps = 0

    def wait_for_all(self) -> None:
        """Until all processes are ready for the first step: some have more to compile."""
        self._client.wait_at_barrier(f"{self._watch.folder}ready", _PLANNED_S * 1000)

    @contextmanager
    def step(self) -> Iterator[Watched]:
        """A step of this process; errors become known to all processes."""
        self.courier.begin()
        try:
            yield Watched(self._watch, self._n_steps)
        except (jax.errors.JaxRuntimeError, crossmesh.TransferError):
            self._watch.wait_for_reason()
            raise
        except BaseException as error:
            self._watch.fail(error)
            raise
        self._n_steps += 1
        self._watch.position = self._n_steps, -1

    def share(self, mine: Mapping[str, Shards]) -> dict[str, jax.Array]:
        """Give results to all processes, and get all of them, each whole on one device."""
        if not self._has_results:
            return {}
        if mine:
            self.courier.send(_RESULTS, None, mine)
        received = self.courier.receive_all(_RESULTS, None)
        device = jax.local_devices()[0]
        return {
            name: jax.device_put(next(iter(shards.values())), device)
            for name, shards in received.items()
        }

    def _lanes(
        self,
        plan: Plan,
        instructions: Sequence[Instruction],
        planned: Sequence[crossmesh.TransferPlan],
    ) -> list[Lane]:
        messages: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
        for item in instructions:
            if isinstance(item, Send):
                transfer = plan.transfers[item.transfer]
                between = transfer.source, transfer.destination
                messages[between].append((item.transfer, item.microbatch))
        lanes = []
        for (source, destination), sent in messages.items():
            ends = [self._submeshes.processes(plan.stages[s].mesh) for s in (source, destination)]
            processes = tuple(sorted(frozenset[int]().union(*ends)))
            if len(processes) > 1:
                plans = {index: planned[index] for index, _ in sent}
                lanes.append(Lane(processes, tuple(sent), plans, ends[0]))
        return lanes

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

    def _check_plan(self, plan: Plan) -> None:
        digest = hashlib.sha256(plan.to_json().encode()).hexdigest()
        mine, first = (f"{self._watch.folder}plan/{p}" for p in (jax.process_index(), 0))
        self._client.key_value_set(mine, digest)
        others = self._client.blocking_key_value_get(first, _PLANNED_S * 1000)
        if others != digest:
            raise PlanError(
                "all processes run the same plan; process 0 and process "
                f"{jax.process_index()} have different ones: call the step with equal shapes and "
                "options everywhere, or give all of them one plan as plan="
            )


def _check_mpi() -> None:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            "stages of several processes exchange values by MPI; mpi4py or its library is not "
            "there: pip install mpi4py mpich, and start the processes with mpiexec"
        ) from error
    found = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if found != (jax.process_index(), jax.process_count()):
        raise DeviceError(
            "MPI and JAX number the same processes alike; MPI has process {} of {}, JAX {} of {}: "
            "start them with mpiexec or srun, and let frontends.jax.init join them".format(
                *found, jax.process_index(), jax.process_count()
            )
        )
