"""`TransferPlan`: everything that decides how tensors get from their layouts to others."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from shardspec import Layout

from crossmesh.base.links import Links
from crossmesh.base.task import Copy, TaskStrategy, UnitTask
from crossmesh.base.tensor import Tensor
from crossmesh.errors import RecordError
from crossmesh.transfer import plan_json
from crossmesh.transfer.solver import Order


@dataclass(frozen=True)  # without slots, as it keeps its digest
class TransferPlan:
    """How tensors get from their layouts to others; `plan` makes it.

    A device that holds what it needs keeps it (`copies`); all else moves in `tasks`.
    """

    tensors: tuple[Tensor, ...]
    """Sorted by name."""
    hosts: tuple[tuple[int, int], ...]
    """(device, host) of every device, sorted."""
    links: Links | None
    """How fast hosts and devices talk; None if all hosts are equal."""
    strategy: TaskStrategy
    """How bytes reach several receivers."""
    order: Order
    """How senders and the order of tasks were searched; "all_at_once" has none."""
    copies: tuple[Copy, ...]
    """Sorted by device, one each."""
    tasks: tuple[UnitTask, ...]
    """In their order."""

    @property
    def host_of(self) -> dict[int, int]:
        """The host of every device."""
        return dict(self.hosts)

    @property
    def sent_bytes(self) -> tuple[tuple[int, int], ...]:
        """(host, bytes it sends to other hosts), sorted; what it passes on counts too."""
        return self._crossing(0)

    @property
    def received_bytes(self) -> tuple[tuple[int, int], ...]:
        """(host, bytes it gets from other hosts), sorted; what it passes on counts too."""
        return self._crossing(1)

    def _crossing(self, end: int) -> tuple[tuple[int, int], ...]:
        host_of = self.host_of
        crossing = dict.fromkeys(sorted(set(host_of.values())), 0)
        for task in self.tasks:
            for hop in task.hops:
                if host_of[hop.sender] != host_of[hop.receiver]:
                    crossing[host_of[hop[end]]] += hop.n_bytes
        return tuple(crossing.items())

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of everything that decides what is sent.

        Ranks that plan for themselves compare it before they communicate. Names of mesh axes do
        not enter, nor the links, which show in what was chosen.
        """
        tensors = [(t.name, t.dtype, _layout_key(t.src), _layout_key(t.dst)) for t in self.tensors]
        tasks = [
            (
                t.pieces,
                t.part,
                t.terms,
                t.reduction,
                t.receivers,
                t.strategy,
                t.path,
                t.n_chunks,
                t.tree,
            )
            for t in self.tasks
        ]
        at_once = self.order == "all_at_once"
        content = json.dumps([tensors, self.hosts, at_once, self.copies, tasks])
        return hashlib.sha256(content.encode()).hexdigest()

    def to_json(self) -> str:
        """The plan as JSON, which `from_json` reads back to an equal one."""
        return plan_json.write(
            self.tensors,
            self.hosts,
            self.links,
            self.strategy,
            self.order,
            self.copies,
            self.tasks,
            self.digest,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan from the JSON that `to_json` writes.

        Raises:
            RecordError: the text is no such JSON, its parts do not fit together, or they are not
                those that were written.
        """
        parts, digest = plan_json.read(text)
        plan = cls(*parts)
        if plan.digest != digest:
            raise RecordError(
                "a plan's digest is that of what it sends; "
                f"got {digest[:64]!r}, but that of the other parts is {plan.digest!r}: "
                "the text was changed after it was written; plan again"
            )
        return plan

    def __str__(self) -> str:
        heads = (
            f"{i} {t.name}: {t.dtype}{list(t.shape)} {t.src.spec} on {t.src.mesh.shape} -> "
            f"{t.dst.spec} on {t.dst.mesh.shape}"
            for i, t in enumerate(self.tensors)
        )
        return "\n".join([*heads, *(f"  {task}" for task in self.tasks)])


def _layout_key(layout: Layout) -> tuple[object, ...]:
    mesh = layout.mesh
    return layout.shape, mesh.shape, tuple(mesh.device_ids), str(layout.spec), layout.rules
