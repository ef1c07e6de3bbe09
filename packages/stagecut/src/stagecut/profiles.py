"""What the layers of a `Model` cost on a cluster, from formulas.

A stage on a submesh of n x m devices tries every logical mesh of d x t devices: d that share the
batch and t, side by side, that share each operator. With b samples of a microbatch in each of the d
groups, it takes for a microbatch

    forward = sum over operators of  roofline(FLOPs b / t, (moved bytes b + weights) / t)
    time_s  = 4 forward + 2 forward gathers + backward gathers + 3 exchanges
    once_s  = all-reduce of the gradients over d

as activations are computed again from each layer's input before backward, and backward has two
products for each one of forward (Narayanan et al., SC 2021, appendix). A device keeps its part of
weights and gradients, and of the optimizer's states a d-th of it, as Alpa does where there is data
parallelism (section 8.1); the inputs of the stage's layers for each microbatch in flight; and, once
at a time, all results in the largest layer.

Between stages, values pass the cards of hosts, as if no two stages shared a host.

These are prices to plan by, not measurements: peaks of the cluster's devices, rings and pairwise
exchanges at the bandwidth of its links, nothing overlapped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from costmodel import (
    Cluster,
    Link,
    ParameterBytes,
    all_gather_time,
    all_reduce_time,
    operator_time,
    reduce_scatter_time,
)
from numpy.typing import NDArray

from stagecut.base.edges import Boundary
from stagecut.base.types import StageCost, Submesh
from stagecut.errors import InvalidInputError
from stagecut.models import Model

Floats = NDArray[np.float64]
LogicalMesh = tuple[int, int]
"""Devices that share the batch, times devices that share each operator."""

Options = tuple[StageCost, ...]
"""What a stage costs on each of several logical meshes."""


@dataclass(frozen=True)
class LayerProfile:
    """Layers of a model on a cluster with some number of microbatches; its `cost` prices stages.

    Raises:
        InvalidInputError: The microbatches do not divide the batch, or the layers are not runs of
            all operators in order.
        HeterogeneousClusterError: The hosts of the cluster differ.

    Examples:
        >>> from stagecut.models import model
        >>> gpt = model("gpt-350m")
        >>> halves = [(0, 145), (146, len(gpt.operators) - 1)]
        >>> profile = LayerProfile(gpt, halves, Cluster.preset("p3.16xlarge"), n_microbatches=512)
        >>> for each in profile.cost(0, 0, (1, 2)):
        ...     print(each.option, f"{each.time_s * 1e3:.1f} ms, {each.fixed_bytes >> 20} MiB")
        (2, 1) 31.7 ms, 1951 MiB
        (1, 2) 34.9 ms, 1561 MiB
    """

    model: Model
    layers: Sequence[tuple[int, int]]
    """First and last operator of each, as `cluster_operators` returns them."""
    cluster: Cluster
    n_microbatches: int
    """Of a step."""
    _tables: dict[tuple[Submesh, LogicalMesh], "_Table"] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.n_microbatches < 1 or self.model.batch % self.n_microbatches:
            raise InvalidInputError(
                "all microbatches of a step have equally many of its samples; "
                f"got n_microbatches={self.n_microbatches} for the {self.model.batch} samples of "
                f"{self.model.name}"
            )
        operators = [k for first, last in self.layers for k in range(first, last + 1)]
        if operators != list(range(len(self.model.operators))):
            raise InvalidInputError(
                f"layers are runs of all {len(self.model.operators)} operators of "
                f"{self.model.name}, in order; got {tuple(self.layers)}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Hosts, and devices per host."""
        return self.cluster.n_hosts, self.cluster.devices_per_host

    @property
    def flops(self) -> tuple[float, ...]:
        """Of each layer's forward pass of one sample."""
        flops = self.model.flops
        return tuple(sum(flops[first : last + 1]) for first, last in self.layers)

    @property
    def n_operators(self) -> tuple[int, ...]:
        """Of each layer."""
        return tuple(last - first + 1 for first, last in self.layers)

    @cached_property
    def edges(self) -> tuple[Boundary, ...]:
        """What layers hand to later layers, bytes of one microbatch."""
        layer_of = np.repeat(np.arange(len(self.layers)), self.n_operators)
        n_samples = self.model.batch // self.n_microbatches
        found = []
        for value in self.model.boundaries:
            maker = int(layer_of[value.producer])
            readers = {int(layer_of[reader]) for reader in value.consumers} - {maker}
            if readers:
                found.append(Boundary(maker, value.n_bytes * n_samples, tuple(sorted(readers))))
        return tuple(found)

    def transfer_s(self, n_bytes: int, source: Submesh, target: Submesh) -> float:
        """Seconds to bring a value from one stage to another, and its gradient back.

        As if the two had no host in common: through the cards of the side with fewer hosts. Within
        a single host, over the links of the side with fewer devices.
        """
        if self.cluster.n_hosts == 1:
            link = self.cluster.intra_host.times(min(source[1], target[1]))
        else:
            link = self.cluster.inter_host.times(min(source[0], target[0]))
        return 2 * (link.latency_s + n_bytes / link.bandwidth_bytes_per_s)

    def boundary_s(self, layer: int) -> float:
        """Seconds to enter a stage that begins with a layer, whatever submeshes meet there.

        All values that were made before it and are read from it on, through the card of one host.
        """
        n_bytes = sum(
            edge.n_bytes for edge in self.edges if edge.producer < layer <= max(edge.consumers)
        )
        return self.transfer_s(n_bytes, (1, 1), (1, 1))

    def cost(self, first: int, last: int, submesh: Submesh) -> Options | None:
        """What `slice_stages` asks: the stage on each logical mesh that another does not outdo.

        None where no number of groups divides the samples of a microbatch, and those who share an
        operator would sit on parts of several hosts.
        """
        found = [
            self._table(submesh, logical).cost(first, last, logical)
            for logical in _logical_meshes(submesh, self.model.batch // self.n_microbatches)
        ]
        return _undominated(found) or None

    def _table(self, submesh: Submesh, logical: LogicalMesh) -> "_Table":
        key = submesh, logical
        if key not in self._tables:
            self._tables[key] = _tabulate(self, submesh, logical)
        return self._tables[key]


@dataclass(frozen=True, slots=True)
class _Table:
    """Sums over the first layers, of one logical mesh; all but the last have a leading 0."""

    time_s: Floats
    once_s: Floats
    fixed_bytes: Floats
    kept_bytes: Floats
    results_bytes: Floats
    """Of each layer alone."""

    def cost(self, first: int, last: int, logical: LogicalMesh) -> StageCost:
        """Of the stage with these layers."""

        def total(sums: Floats) -> float:
            return float(sums[last + 1] - sums[first])

        return StageCost(
            time_s=total(self.time_s),
            fixed_bytes=round(total(self.fixed_bytes)),
            activation_bytes=round(total(self.kept_bytes)),
            once_s=total(self.once_s),
            temporary_bytes=round(float(self.results_bytes[first : last + 1].max())),
            option=logical,
        )


def _tabulate(profile: LayerProfile, submesh: Submesh, logical: LogicalMesh) -> _Table:
    """Price every operator of the model on a logical mesh."""
    model, cluster = profile.model, profile.cluster
    operators, (d, t) = model.operators, logical
    samples = model.batch // profile.n_microbatches // d

    def each(name: str) -> Floats:
        return np.array([getattr(operator, name) for operator in operators], dtype=np.float64)

    parameter = ParameterBytes.of("adam", mixed_precision=model.dtype != "float32")
    share = np.where(each("is_split"), t, 1)
    groups = np.minimum(each("n_experts"), d)  # that have different experts
    parameters = np.ceil(each("parameters") / share / groups)
    states = np.ceil(parameter.optimizer_state * parameters / (d / groups))
    fixed = parameters * (parameter.weight + parameter.gradient) + states

    moved = each("moved_bytes") * samples / share + parameters * parameter.weight
    forward_s = operator_time(each("flops") * samples / share, moved, cluster.device, model.dtype)
    gathered = 2 * _gathers(each("forward_gathers_bytes") * samples, submesh, t, cluster)
    gathered += _gathers(each("backward_gathers_bytes") * samples, submesh, t, cluster)
    exchanged = _exchanges(each("exchanged_bytes") * samples / share, submesh, logical, cluster)
    # Experts are on some of the d groups only, and so are those they share gradients with.
    gradients = parameters * parameter.gradient * np.where(groups < d, 1, 0)
    results = np.ceil(each("result_bytes") * samples / np.where(each("result_is_split"), t, 1))

    starts = [first for first, _ in profile.layers]

    def by_layer(values: Floats) -> Floats:
        return np.add.reduceat(values, starts)

    def sums(values: Floats) -> Floats:
        return np.concatenate(([0.0], np.cumsum(values)))

    received = np.zeros(len(starts))
    layer_of = np.repeat(np.arange(len(starts)), profile.n_operators)
    for value in model.boundaries:
        for layer in {layer_of[k] for k in value.consumers} - {layer_of[value.producer]}:
            received[layer] += results[value.producer]
    return _Table(
        time_s=sums(by_layer(4 * np.asarray(forward_s) + gathered + 3 * exchanged)),
        once_s=sums(_all_reduce(by_layer(gradients), submesh, logical, cluster)),
        fixed_bytes=sums(by_layer(fixed)),
        kept_bytes=sums(received),
        results_bytes=by_layer(results),
    )


def _gathers(n_bytes: Floats, submesh: Submesh, t: int, cluster: Cluster) -> Floats:
    """Seconds of rings over t neighbours, of one that ends up with so many bytes."""
    link = cluster.intra_host
    if t > submesh[1]:  # whole hosts, so one ring leaves each
        link = Link(
            max(link.latency_s, cluster.inter_host.latency_s),
            min(link.bandwidth_bytes_per_s, cluster.inter_host.bandwidth_bytes_per_s),
        )
    return np.where(n_bytes > 0, all_gather_time(t, n_bytes, link), 0.0)


def _all_reduce(
    n_bytes: Floats, submesh: Submesh, logical: LogicalMesh, cluster: Cluster
) -> Floats:
    """Seconds of t concurrent all-reduces over d devices: in the hosts, between them, in them.

    Between the hosts every device of a host sends at once, each its part.
    """
    inside, hosts = _members(submesh, logical)
    within = cluster.intra_host
    seconds = reduce_scatter_time(inside, n_bytes, within)
    seconds = seconds + all_gather_time(inside, n_bytes, within)
    if hosts > 1:
        card = cluster.inter_host.times(1 / submesh[1])
        seconds = seconds + all_reduce_time(hosts, n_bytes / inside, card)
    return np.where(n_bytes > 0, seconds, 0.0)


def _exchanges(n_bytes: Floats, submesh: Submesh, logical: LogicalMesh, cluster: Cluster) -> Floats:
    """Seconds of t concurrent all-to-alls over d devices, each device sending so many bytes."""
    inside, hosts = _members(submesh, logical)
    d = inside * hosts
    link = cluster.intra_host
    seconds = (inside - 1) * (link.latency_s + n_bytes / d / link.bandwidth_bytes_per_s)
    if hosts > 1:
        card = cluster.inter_host.times(1 / submesh[1])
        seconds = seconds + (d - inside) * (
            card.latency_s + n_bytes / d / card.bandwidth_bytes_per_s
        )
    return np.where(n_bytes > 0, seconds, 0.0)


def _members(submesh: Submesh, logical: LogicalMesh) -> tuple[int, int]:
    """How many of the d devices that share a batch are on one host, and on how many hosts."""
    inside = max(submesh[1] // logical[1], 1)
    return inside, logical[0] // inside


def _logical_meshes(submesh: Submesh, n_samples: int) -> Iterator[LogicalMesh]:
    """Those with whole samples for each of d, whose t are in one host or all of some hosts."""
    n, m = submesh
    for t in range(1, n * m + 1):
        d = n * m // t
        if d * t == n * m and (m % t == 0 or t % m == 0) and n_samples % d == 0:
            yield d, t


def _undominated(costs: Sequence[StageCost]) -> Options:
    """Without those that another is at least as good as in every respect."""

    def amounts(cost: StageCost) -> tuple[float, ...]:
        memory = cost.fixed_bytes, cost.activation_bytes, cost.temporary_bytes
        return cost.time_s, cost.once_s, *memory

    kept: list[StageCost] = []
    for cost in sorted(costs, key=amounts):
        if not any(
            all(a <= b for a, b in zip(amounts(other), amounts(cost), strict=True))
            for other in kept
        ):
            kept.append(cost)
    return tuple(kept)
