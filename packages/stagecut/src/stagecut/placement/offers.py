"""The submeshes that a cluster offers to the stages of a pipeline, and which fit together.

A stage takes a part of one host, or several whole hosts (Alpa 5.2). On a cluster with several kinds
of hosts, the hosts of a stage are of one kind, or, if the user allows it, of several kinds with
equally many devices. Placing stages on one kind does not affect the others, so a state of the
cluster consists of one state for each kind (`packing_states`). The number of states is the product;
a kind with n devices has n + 1 where counting is enough.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stagecut.base.checks import is_count
from stagecut.base.types import Submesh
from stagecut.errors import InvalidInputError
from stagecut.placement.host_packing import MOST_DEVICES, HostKind
from stagecut.placement.packing_states import Ledger, ledger

if TYPE_CHECKING:
    from costmodel import Cluster, Host


class SubmeshOfKind(tuple[int, int]):
    """A submesh (hosts, devices per host) that also says of which kinds its hosts are.

    It unpacks like a pair, but equals only a `SubmeshOfKind` of the same hosts.

    Examples:
        >>> n, m = submesh = SubmeshOfKind((("a100", 1), ("h100", 2)), 8)
        >>> n, m, submesh.kind
        (3, 8, '1 a100 + 2 h100')
    """

    hosts: tuple[tuple[str, int], ...]
    """The names of the kinds, and the number of hosts of each."""

    def __new__(cls, hosts: Iterable[tuple[str, int]], devices_per_host: int) -> SubmeshOfKind:
        """Make a submesh from names of kinds and the number of hosts of each."""
        hosts = tuple((name, n) for name, n in hosts)
        self = super().__new__(cls, (sum(n for _, n in hosts), devices_per_host))
        self.hosts = hosts
        return self

    @property
    def kind(self) -> str:
        """The name of its kind of host; with several kinds, also the number of hosts of each."""
        if len(self.hosts) == 1:
            return self.hosts[0][0]
        return " + ".join(f"{n} {name}" for name, n in self.hosts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SubmeshOfKind):
            return False
        return (self[1], self.hosts) == (other[1], other.hosts)

    def __ne__(self, other: object) -> bool:  # tuple defines its own, which would be used
        return not self == other

    def __hash__(self) -> int:
        return hash((self[1], self.hosts))

    def __repr__(self) -> str:
        return f"SubmeshOfKind({self.hosts}, {self[1]})"

    def __str__(self) -> str:
        return f"{tuple(self)} of {self.kind}"

    def __getnewargs__(self) -> tuple[tuple[tuple[str, int], ...], int]:
        return self.hosts, self[1]


@dataclass(frozen=True, slots=True)
class Places:
    """The hosts of a cluster, the submeshes that they offer, and which of these fit together.

    A dynamic program over stages goes from state 0 to a complete state. The shapes that it takes on
    such a path can be placed together, and all shapes that can be placed together are on such a
    path. `assign_devices` then places them.

    Raises:
        InvalidInputError: There is no host, there are more than a million devices, or different
            kinds of hosts have the same name.

    Examples:
        >>> places = Places.uniform(2, 4)
        >>> places.shapes
        ((1, 1), (1, 2), (1, 4), (2, 4))
        >>> places.after(1)  # a state is the number of devices taken
        array([ 2,  3,  4,  5,  6,  7,  8, -1, -1])
        >>> Places(((HostKind(4, "v100"), 1), (HostKind(2, "a100"), 1))).shapes[-1]
        SubmeshOfKind((('v100', 1),), 4)
    """

    hosts: tuple[tuple[HostKind, int], ...]
    """Kinds of hosts and how many of each, in the order of device ids, which count through them."""
    use_all: bool = True
    """Whether the stages together must take every device, as in Alpa."""
    mix: bool = False
    """Whether a stage may take whole hosts of several kinds, if they have equally many devices."""
    kinds: tuple[HostKind, ...] = field(init=False, repr=False, compare=False)
    """The different kinds of hosts."""
    shapes: tuple[Submesh, ...] = field(init=False, repr=False, compare=False)
    """The submeshes that a stage may take, smallest first: pairs, or `SubmeshOfKind` if there are
    several kinds of hosts."""
    takes: tuple[tuple[tuple[int, int, int], ...], ...] = field(
        init=False, repr=False, compare=False
    )
    """For each shape the hosts it takes: (index of the kind, hosts of it, devices of each host)."""
    complete: NDArray[np.bool_] = field(init=False, repr=False, compare=False)
    """Shape (n_states,): whether the stages placed so far may be all."""
    ledgers: tuple[Ledger, ...] = field(init=False, repr=False, compare=False)
    """The states of each kind."""

    def __post_init__(self) -> None:
        are_hosts = all(isinstance(kind, HostKind) and is_count(n) for kind, n in self.hosts)
        if not (self.hosts and are_hosts and self.n_devices <= MOST_DEVICES):
            raise InvalidInputError(
                f"a cluster has pairs of a HostKind and a number of hosts of at least 1, and at "
                f"most {MOST_DEVICES:,} devices; got hosts={self.hosts}"
            )
        runs = tuple(
            (kind, sum(n for _, n in run))
            for kind, run in itertools.groupby(self.hosts, key=operator.itemgetter(0))
        )
        kinds = tuple(dict.fromkeys(kind for kind, _ in runs))
        if len({kind.name for kind in kinds}) < len(kinds):
            raise InvalidInputError(
                "the kinds of hosts in one cluster have different names; "
                f"got {', '.join(map(repr, kinds))}"
            )
        counts = [sum(n for each, n in runs if each == kind) for kind in kinds]
        takes = sorted(
            _takes(kinds, counts, self.mix), key=lambda take: sum(n * m for _, n, m in take)
        )
        ledgers = tuple(
            ledger(kind, n, self.use_all) for kind, n in zip(kinds, counts, strict=True)
        )
        complete = np.ones((), dtype=np.bool_)
        for each in ledgers:
            complete = np.logical_and.outer(complete, each.complete)
        derived = {
            "hosts": runs,
            "kinds": kinds,
            "takes": tuple(takes),
            "shapes": tuple(_shape(take, kinds) for take in takes),
            "complete": complete.ravel(),
            "ledgers": ledgers,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    def uniform(
        cls,
        n_hosts: int,
        devices_per_host: int,
        *,
        parts: Sequence[int] = (),
        use_all: bool = True,
    ) -> Places:
        """A cluster of hosts of one kind; `parts` as in `HostKind`.

        Raises:
            InvalidInputError: The number of hosts or of devices per host is below 1, or as
                `HostKind`.
        """
        if not (is_count(n_hosts) and is_count(devices_per_host)):
            raise InvalidInputError(
                "a cluster has at least one host with at least one device; "
                f"got n_hosts={n_hosts!r}, devices_per_host={devices_per_host!r}"
            )
        kind = HostKind(devices_per_host, parts=tuple(parts))
        return cls(((kind, n_hosts),), use_all=use_all)

    @classmethod
    def of(cls, cluster: Cluster, *, use_all: bool = True, mix: bool = False) -> Places:
        """The hosts of a `costmodel.Cluster`; see `of_hosts`."""
        return cls.of_hosts(cluster.hosts, use_all=use_all, mix=mix)

    @classmethod
    def of_hosts(cls, hosts: Sequence[Host], *, use_all: bool = True, mix: bool = False) -> Places:
        """Hosts as a `costmodel.Cluster` has them; equal ones, link included, are of one kind.

        A kind is named after its device; if this does not distinguish the kinds, also after the
        number of devices, and if that does not either, also after its first host.
        """
        first = {host: at for at, host in reversed(list(enumerate(hosts)))}
        names = {host: host.device.name for host in first}
        if len(set(names.values())) < len(names):
            names = {host: f"{host.device.name} x {host.n_devices}" for host in first}
        if len(set(names.values())) < len(names):
            names = {host: f"{names[host]} (host {at})" for host, at in first.items()}
        runs = tuple((HostKind(host.n_devices, names[host]), 1) for host in hosts)
        return cls(runs, use_all=use_all, mix=mix)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of devices of each shape."""
        return tuple(n * m for n, m in self.shapes)

    @property
    def n_devices(self) -> int:
        """Number of devices of all hosts."""
        return sum(kind.n_devices * n for kind, n in self.hosts)

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.complete)

    def after(self, h: int) -> NDArray[np.intp]:
        """The state that follows each state when a stage takes shape `h`; -1 if it does not fit.

        Shape (n_states,). The new state has a larger number.
        """
        state = np.arange(self.n_states)
        possible = np.ones(self.n_states, dtype=np.bool_)
        for at, n, m in self.takes[h]:
            each = self.ledgers[at]
            whole = m == self.kinds[at].n_devices
            step = each.after_whole(n) if whole else each.after[self.kinds[at].parts.index(m)]
            # The state of the last kind varies fastest, as in a C array.
            stride = int(np.prod([later.n_states for later in self.ledgers[at + 1 :]]))
            state_of_kind = state // stride % each.n_states
            state += (step[state_of_kind] - state_of_kind) * stride
            possible &= step[state_of_kind] >= 0
        return np.where(possible, state, -1)

    def can_hold(self, submeshes: Sequence[Submesh]) -> bool:
        """Whether these submeshes can be placed together and may be those of all stages.

        With `use_all` they must take every device.

        Raises:
            ValueError: A submesh is not one of `shapes`.
        """
        after = {shape: self.after(self.shapes.index(shape)) for shape in set(submeshes)}
        state = 0
        for shape in submeshes:
            state = int(after[shape][state])
            if state < 0:
                return False
        return bool(self.complete[state])


def _takes(
    kinds: Sequence[HostKind], counts: Sequence[int], mix: bool
) -> Iterable[tuple[tuple[int, int, int], ...]]:
    """What a stage may take: parts of a host, whole hosts, and whole hosts of several kinds."""
    for at, (kind, count) in enumerate(zip(kinds, counts, strict=True)):
        yield from (((at, 1, part),) for part in kind.parts)
        yield from (((at, n, kind.n_devices),) for n in range(2, count + 1))
    for m in sorted({kind.n_devices for kind in kinds}) if mix else ():
        alike = [at for at, kind in enumerate(kinds) if kind.n_devices == m]
        for numbers in itertools.product(*(range(counts[at] + 1) for at in alike)):
            take = tuple((at, n, m) for at, n in zip(alike, numbers, strict=True) if n)
            if len(take) > 1:
                yield take


def _shape(take: tuple[tuple[int, int, int], ...], kinds: Sequence[HostKind]) -> Submesh:
    """The submesh that takes these hosts: a `SubmeshOfKind` if there are several kinds."""
    m = take[0][2]
    if len(kinds) == 1:
        return take[0][1], m
    return SubmeshOfKind(((kinds[at].name, n) for at, n, _ in take), m)
