"""Communication among all processes of a run: transfers, results, and gathering state."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import crossmesh
import torch
import torch.distributed as dist

from frontends.answer.plan import Plan
from frontends.base.heartbeat import Watched
from frontends.base.present import present
from frontends.errors import DeviceError
from frontends.program.instructions import Key
from frontends.program.program import LoweredPlan
from frontends.program.state_locations import Result
from frontends.run import mpi
from frontends.run.lanes import Lane, lanes_of
from frontends.run.mailbox import Courier
from frontends.run.plan_consensus import check_consensus, word_of
from frontends.torch.base.calls import Tensor
from frontends.torch.base.compat.process_groups import new_group
from frontends.torch.lower.local import differing_axes, like, local_shape
from frontends.torch.run.engine import TorchEngine, assemble
from frontends.torch.run.lockstep import Shards
from frontends.torch.run.processes import by_mpi, gather
from frontends.torch.run.watch import GROUP_TIMEOUT, exchanging, is_anothers, watch
from frontends.torch.trace.trace import Trace


class Team:
    """All processes of a run, as seen by this one; each process is one device.

    Args:
        plan: The plan, the same in all processes.
        program: The plan's program.
        trace: What the program runs, the same in all processes.
        engine: The engine of this process.
        planned: For each transfer of the plan, how crossmesh sends it from device to device.
        results: The results that all processes get at the end of a step, by name.
        deadline_s: How long a step may make no progress.

    Raises:
        DeviceError: There are fewer processes than devices.
        PlanError: Another process has another plan, or another program.
    """

    def __init__(
        self,
        plan: Plan,
        program: LoweredPlan,
        trace: Trace,
        engine: TorchEngine,
        planned: Sequence[crossmesh.TransferPlan],
        results: Mapping[str, Result],
        deadline_s: float,
    ) -> None:
        self._watch = watch()
        self._watch.deadline_s = deadline_s
        _check(plan, trace)
        self._plan, self._graph = plan, program.step.graph
        self._results = {name: results[name].key for name in sorted(results)}
        lanes = lanes_of(program, planned, engine.processes)
        process_of = {device: device for device in plan.device_ids}
        if by_mpi():
            connect = functools.partial(mpi.connect, process_of=process_of)
        else:
            connect = functools.partial(_connect, process_of=process_of)
        self.courier = Courier(lanes, dist.get_rank(), connect, deadline_s)

    @contextmanager
    def step(self) -> Iterator[Watched]:
        """Inside, this process runs a step; an error is reported to all processes.

        Raises:
            ExchangeError: Another process failed or is gone, and it is not known which.
        """
        with exchanging(), self._watch.step(is_anothers) as watched:
            self.courier.begin()
            yield watched
            self.courier.end()

    def share(self, mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send this process's results to all processes; return the results of all."""
        return {
            name: self._from(self._plan.stages[stage].mesh.device_ids[0], slot.value, mine)
            for name, (stage, slot, _) in self._results.items()
        }

    def _from(self, rank: int, name: str, mine: Mapping[str, Tensor]) -> Tensor:
        value = self._graph.value(name)
        if rank == dist.get_rank():
            tensor = mine[name].contiguous()
        else:
            tensor = torch.empty(value.shape, dtype=getattr(torch, value.dtype))
        dist.broadcast(tensor, rank)
        return tensor

    def whole(self, key: Key, mine: Shards | None) -> Tensor:
        """Return a value of a stage, whole, in every process; all of them have to call it.

        Args:
            key: The stage and layout of the value.
            mine: This process's shard of it, if it has one.
        """
        stage, slot, _ = key
        mesh, value = self._plan.stages[stage].mesh, self._graph.value(slot.value)
        shape, dtype = local_shape(value.shape, slot.spec, mesh), getattr(torch, value.dtype)
        coordinates = [tuple(mesh.coordinates(device)) for device in mesh.device_ids]
        first_of = like(coordinates, differing_axes([slot.spec]))
        shards: dict[int, Tensor] = {}
        for position, device in enumerate(mesh.device_ids):
            if first_of[position] != position:
                shards[device] = shards[mesh.device_ids[first_of[position]]]
                continue
            if device == dist.get_rank():
                shard = present(mine, "a device has a shard of each value of its stage")
                shards[device] = shard[0].contiguous()
            else:
                shards[device] = torch.empty(shape, dtype=dtype)
            dist.broadcast(shards[device], device)
        return assemble(mesh, slot.spec, shards)


def _check(plan: Plan, trace: Trace) -> None:
    if max(plan.device_ids) >= dist.get_world_size():
        raise DeviceError(
            f"each device of a plan is a process; the plan uses device {max(plan.device_ids)}, and "
            f"there are {dist.get_world_size()} processes: start more, or plan for a cluster with "
            "fewer devices"
        )
    program = trace.checksums
    check_consensus(gather(word_of(plan, program)), program, trace.line_of)


def _connect(number: int, lane: Lane, process_of: Mapping[int, int]) -> crossmesh.Transport:
    from crossmesh.engines.torch_transport import TorchTransport

    group = new_group(lane.processes, GROUP_TIMEOUT, "gloo")
    rank = {process: i for i, process in enumerate(lane.processes)}
    return TorchTransport(group, {d: rank[p] for d, p in process_of.items() if p in rank})
