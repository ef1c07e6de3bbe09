"""What a cluster offers to the stages of a pipeline, and which of it can be used together.

A stage takes a part of one host, or several whole hosts (Alpa 5.2). On a cluster of several kinds
of hosts these are of one kind each, or of several kinds with equally many devices if the user
allows it. Kinds do not get in each other's way, so a state of the whole is a state of each kind
(`packing_states`): the number of states is the product, n + 1 for a kind with n devices where
counting is enough.
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
    from costmodel import Cluster


class SubmeshOfKind(tuple[int, int]):
    """Hosts and devices per host, where hosts are of several kinds: knows of which.

    Unpacks like the pair that it is, but equals only one of the same hosts.

    Examples:
        >>> n, m = submesh = SubmeshOfKind((("a100", 1), ("h100", 2)), 8)
        >>> n, m, submesh.kind
        (3, 8, '1 a100 + 2 h100')
    """

    hosts: tuple[tuple[str, int], ...]
    """Names of kinds, and how many hosts of each."""

    def __new__(cls, hosts: Iterable[tuple[str, int]], devices_per_host: int) -> SubmeshOfKind:
        """Put together from names of kinds and the number of hosts of each."""
        hosts = tuple((name, n) for name, n in hosts)
        self = super().__new__(cls, (sum(n for _, n in hosts), devices_per_host))
        self.hosts = hosts
        return self

    @property
    def kind(self) -> str:
        """The name of its kind of host, or how many hosts of each."""
        if len(self.hosts) == 1:
            return self.hosts[0][0]
        return " + ".join(f"{n} {name}" for name, n in self.hosts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SubmeshOfKind):
            return False
        return (self[1], self.hosts) == (other[1], other.hosts)

    def __ne__(self, other: object) -> bool:  # else that of tuple is found first
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
    """The hosts of a cluster, the submeshes that they offer, and the states of using them.

    A dynamic program over stages goes from state 0 to one that is complete. Whatever shapes it
    takes on the way can be placed together, and whatever can be placed together is on such a way
    (`assign_devices` places it).

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
    """Kind and number of hosts, in the order of device ids: these count through the hosts."""
    use_all: bool = True
    """Whether the stages together take every device, as in Alpa."""
    mix: bool = False
    """Whether a stage may take whole hosts of several kinds, if they have equally many devices."""
    kinds: tuple[HostKind, ...] = field(init=False, repr=False, compare=False)
    """The different kinds of hosts."""
    shapes: tuple[Submesh, ...] = field(init=False, repr=False, compare=False)
    """What a stage may take, smallest first: pairs, or `SubmeshOfKind` if there are kinds."""
    takes: tuple[tuple[tuple[int, int, int], ...], ...] = field(
        init=False, repr=False, compare=False
    )
    """Of each shape: from which kinds (indices) it takes how many hosts and devices of each."""
    complete: NDArray[np.bool_] = field(init=False, repr=False, compare=False)
    """Shape (n_states,): whether the stages so far may be all."""
    ledgers: tuple[Ledger, ...] = field(init=False, repr=False, compare=False)
    """The states of each kind."""

    def __post_init__(self) -> None:
        are_hosts = all(isinstance(kind, HostKind) and is_count(n) for kind, n in self.hosts)
        if not (self.hosts and are_hosts and self.n_devices <= MOST_DEVICES):
            raise InvalidInputError(
                f"a cluster has at most {MOST_DEVICES:,} devices on hosts, each of a HostKind, and "
                f"a run of them at least one; got hosts={self.hosts}"
            )
        runs = tuple(
            (kind, sum(n for _, n in run))
            for kind, run in itertools.groupby(self.hosts, key=operator.itemgetter(0))
        )
        kinds = tuple(dict.fromkeys(kind for kind, _ in runs))
        if len({kind.name for kind in kinds}) < len(kinds):
            raise InvalidInputError(
                f"kinds of hosts in one cluster have a name each; got {', '.join(map(repr, kinds))}"
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
        """Hosts of one kind; `parts` as in `HostKind`.

        Raises:
            InvalidInputError: There is not at least one host with one device, or see `HostKind`.
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
        """The hosts of a `costmodel.Cluster`: of one kind if they are equal, link included.

        A kind is named after its device; if this does not tell the kinds apart, then also after the
        number of devices, and after its first host.
        """
        first = {host: at for at, host in reversed(list(enumerate(cluster.hosts)))}
        names = {host: host.device.name for host in first}
        if len(set(names.values())) < len(names):
            names = {host: f"{host.device.name} x {host.n_devices}" for host in first}
        if len(set(names.values())) < len(names):
            names = {host: f"{names[host]} (host {at})" for host, at in first.items()}
        runs = tuple((HostKind(host.n_devices, names[host]), 1) for host in cluster.hosts)
        return cls(runs, use_all=use_all, mix=mix)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices of each shape."""
        return tuple(n * m for n, m in self.shapes)

    @property
    def n_devices(self) -> int:
        """Of all hosts."""
        return sum(kind.n_devices * n for kind, n in self.hosts)

    @property
    def n_states(self) -> int:
        """How many states there are."""
        return len(self.complete)

    def after(self, h: int) -> NDArray[np.intp]:
        """The state after each, shape (n_states,), once a stage takes shape `h`; -1 if it cannot.

        A state that follows has a larger number.
        """
        state = np.arange(self.n_states)
        possible = np.ones(self.n_states, dtype=np.bool_)
        for at, n, m in self.takes[h]:
            each = self.ledgers[at]
            whole = m == self.kinds[at].n_devices
            step = each.after_whole(n) if whole else each.after[self.kinds[at].parts.index(m)]
            # The last kind's states count fastest, as in a C array.
            stride = int(np.prod([later.n_states for later in self.ledgers[at + 1 :]]))
            own = state // stride % each.n_states
            state += (step[own] - own) * stride
            possible &= step[own] >= 0
        return np.where(possible, state, -1)

    def can_hold(self, submeshes: Sequence[Submesh]) -> bool:
        """Whether these can be placed together, and are all that is asked for.

        Raises:
            ValueError: One of them is not among the shapes.
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
    m = take[0][2]
    if len(kinds) == 1:
        return take[0][1], m
    return SubmeshOfKind(((kinds[at].name, n) for at, n, _ in take), m)
