"""`TransferPlan`: everything that decides how tensors get from their layouts to new ones."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from crossmesh.base import no_gc
from crossmesh.base.links import Links
from crossmesh.base.task import Copy, TaskStrategy, UnitTask
from crossmesh.base.tensor import Tensor
from crossmesh.errors import RecordError
from crossmesh.transfer import plan_json
from crossmesh.transfer.digest import digest_of, digest_of_version_1
from crossmesh.transfer.solver import Order


@dataclass(frozen=True)  # without slots, because `digest` is cached in the instance
class TransferPlan:
    """How tensors get from their layouts to new ones; `plan` makes such a plan.

    What a device needs and already holds, it copies locally (`copies`); everything else moves in
    `tasks`.
    """

    tensors: tuple[Tensor, ...]
    """The tensors, sorted by name."""
    hosts: tuple[tuple[int, int], ...]
    """(device, host) of every device, sorted."""
    links: Links | None
    """How fast hosts and devices communicate; None: all hosts are equally fast."""
    strategy: TaskStrategy
    """How bytes reach several receivers."""
    order: Order
    """How senders and the order of tasks were searched; with "all_at_once", tasks have no order."""
    copies: tuple[Copy, ...]
    """Local copies, at most one entry a device, sorted by device."""
    tasks: tuple[UnitTask, ...]
    """The tasks, in their order."""

    @property
    def host_of(self) -> dict[int, int]:
        """The host of every device."""
        return dict(self.hosts)

    @property
    def sent_bytes(self) -> tuple[tuple[int, int], ...]:
        """(host, bytes that it sends to other hosts), sorted; forwarded bytes count too."""
        return self._crossing(0)

    @property
    def received_bytes(self) -> tuple[tuple[int, int], ...]:
        """(host, bytes that it receives from other hosts), sorted; forwarded bytes count too."""
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
    @no_gc.paused()
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of everything that decides what is sent.

        Each rank makes the plan by itself, and the ranks compare their digests before they move
        data. The names of mesh axes do not enter the digest. Nor do the links, because only what
        was chosen by means of them is executed.
        """
        return digest_of(self.tensors, self.hosts, self.order, self.copies, self.tasks)

    @no_gc.paused()
    def to_json(self) -> str:
        """The plan as JSON; `from_json` reads it back to an equal plan."""
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
    @no_gc.paused()
    def from_json(cls, text: str) -> Self:
        """Read a plan from the JSON that `to_json` writes.

        Raises:
            RecordError: The text is not such JSON, its parts do not fit together, or they were
                changed after the plan was written.
        """
        parts, written, version = plan_json.read(text)
        plan = cls(*parts)
        digest = plan.digest
        if version == 1:
            digest = digest_of_version_1(
                plan.tensors, plan.hosts, plan.order, plan.copies, plan.tasks
            )
        if digest != written:
            raise RecordError(
                "the digest of a plan is that of what it sends; "
                f"got {written[:64]!r}, but the other parts have {digest!r}: "
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
