"""Prices the stages of a `Model` on a cluster by formulas.

A stage on a submesh of n x m devices tries every logical mesh of d x t devices: d groups split the
batch (data parallelism), and in each of them t adjacent devices split every operator (tensor
parallelism). With b samples of a microbatch in each of the d groups, a microbatch takes

    forward = sum over operators of  roofline(FLOPs b / t, (moved bytes b + weights) / t)
    time_s  = 4 forward + 2 forward gathers + backward gathers + 3 exchanges
    once_s  = all-reduce of the gradients over d

because activations are recomputed from the input of each layer before backward, and backward has
two products for each one of forward (Narayanan et al., SC 2021, appendix). A device keeps its part
of weights and gradients, and a d-th of its part of the optimizer state, as Alpa does where there is
data parallelism (section 8.1). It also keeps the inputs of the stage's layers for each microbatch
in flight, and, for one layer at a time, all results in this layer.

Values between stages are sent through the network cards of hosts, as if no two stages shared a
host.

These prices are meant for planning. They are not measurements: they assume the peak rates of the
cluster's devices, and rings and pairwise exchanges at the full bandwidth of its links, and that
nothing overlaps.
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
"""The data-parallel and the tensor-parallel number of devices: d x t."""

Options = tuple[StageCost, ...]
"""The costs of a stage on several logical meshes."""


@dataclass(frozen=True)
class LayerProfile:
    """Prices stages of a model's layers, on a cluster and with a number of microbatches: `cost`.

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
        (2, 1) 22.9 ms, 1951 MiB
        (1, 2) 26.5 ms, 1561 MiB
    """

    model: Model
    layers: Sequence[tuple[int, int]]
    """First and last operator of each layer, as `cluster_operators` returns them."""
    cluster: Cluster
    n_microbatches: int
    """Microbatches of a step."""
    _tables: dict[tuple[Submesh, LogicalMesh], "_Table"] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.n_microbatches < 1 or self.model.batch % self.n_microbatches:
            raise InvalidInputError(
                "the microbatches of a step have equally many samples each; "
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
        """Number of hosts, and of devices per host."""
        return self.cluster.n_hosts, self.cluster.devices_per_host

    @property
    def flops(self) -> tuple[float, ...]:
        """FLOPs of each layer in the forward pass of one sample."""
        flops = self.model.flops
        return tuple(sum(flops[first : last + 1]) for first, last in self.layers)

    @property
    def n_operators(self) -> tuple[int, ...]:
        """Number of operators of each layer."""
        return tuple(last - first + 1 for first, last in self.layers)

    @cached_property
    def edges(self) -> tuple[Boundary, ...]:
        """The values that layers pass to later layers, with their bytes for one microbatch."""
        layer_of = np.repeat(np.arange(len(self.layers)), self.n_operators)
        n_samples = self.model.batch // self.n_microbatches
        edges = []
        for value in self.model.boundaries:
            producer = int(layer_of[value.producer])
            readers = {int(layer_of[reader]) for reader in value.consumers} - {producer}
            if readers:
                edges.append(Boundary(producer, value.n_bytes * n_samples, tuple(sorted(readers))))
        return tuple(edges)

    def transfer_s(self, n_bytes: int, source: Submesh, target: Submesh) -> float:
        """Seconds to send a value from one stage to another, and its gradient back.

        On several hosts, the two stages are assumed to have no host in common: the value passes
        through the network cards of the side with fewer hosts. If the cluster is a single host, it
        passes over the links of the side with fewer devices.
        """
        if self.cluster.n_hosts == 1:
            link = self.cluster.intra_host.times(min(source[1], target[1]))
        else:
            link = self.cluster.inter_host.times(min(source[0], target[0]))
        return 2 * (link.latency_s + n_bytes / link.bandwidth_bytes_per_s)

    def boundary_s(self, layer: int) -> float:
        """Seconds to receive the values of a stage that begins with a layer, on any submeshes.

        All values that are produced before the layer and read by it or later ones pass through the
        network card of one host.
        """
        n_bytes = sum(
            edge.n_bytes for edge in self.edges if edge.producer < layer <= max(edge.consumers)
        )
        return self.transfer_s(n_bytes, (1, 1), (1, 1))

    def cost(self, first: int, last: int, submesh: Submesh) -> Options | None:
        """The cost function for `slice_stages`: the stage on each logical mesh worth considering.

        A logical mesh is left out if another one is at least as good in time and memory. The result
        is None if no logical mesh is possible: the number of groups has to divide the samples of a
        microbatch, and a group has to be within one host, or to consist of whole hosts.
        """
        costs = [
            self._table(submesh, logical).cost(first, last, logical)
            for logical in _logical_meshes(submesh, self.model.batch // self.n_microbatches)
        ]
        return _undominated(costs) or None

    def _table(self, submesh: Submesh, logical: LogicalMesh) -> "_Table":
        key = submesh, logical
        if key not in self._tables:
            self._tables[key] = _tabulate(self, submesh, logical)
        return self._tables[key]


@dataclass(frozen=True, slots=True)
class _Table:
    """Prices of all layers on one logical mesh.

    Entry k is the sum over the first k layers, but `results_bytes` has one entry for each layer.
    """

    time_s: Floats
    once_s: Floats
    fixed_bytes: Floats
    kept_bytes: Floats
    results_bytes: Floats
    """Bytes of all results in each layer."""

    def cost(self, first: int, last: int, logical: LogicalMesh) -> StageCost:
        """The cost of the stage with these layers."""

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
    groups = np.minimum(each("n_experts"), d)  # groups with different experts
    parameters = np.ceil(each("parameters") / share / groups)
    states = np.ceil(parameter.optimizer_state * parameters / (d / groups))
    fixed = parameters * (parameter.weight + parameter.gradient) + states

    moved = each("moved_bytes") * samples / share + parameters * parameter.weight
    forward_s = operator_time(each("flops") * samples / share, moved, cluster.device, model.dtype)
    gathered = 2 * _gathers(each("forward_gathers_bytes") * samples, submesh, t, cluster)
    gathered += _gathers(each("backward_gathers_bytes") * samples, submesh, t, cluster)
    exchanged = _exchanges(each("exchanged_bytes") * samples / share, submesh, logical, cluster)
    # Each expert is on only some of the d groups. If each group has its own experts, there is no
    # other group to all-reduce their gradients with.
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
    """Seconds of ring all-gathers over t adjacent devices, each of which ends up with `n_bytes`."""
    link = cluster.intra_host
    if t > submesh[1]:  # the t devices are whole hosts, so one ring passes through each host's card
        link = Link(
            max(link.latency_s, cluster.inter_host.latency_s),
            min(link.bandwidth_bytes_per_s, cluster.inter_host.bandwidth_bytes_per_s),
        )
    return np.where(n_bytes > 0, all_gather_time(t, n_bytes, link), 0.0)


def _all_reduce(
    n_bytes: Floats, submesh: Submesh, logical: LogicalMesh, cluster: Cluster
) -> Floats:
    """Seconds of t concurrent all-reduces over d devices.

    They are a reduce-scatter in each host, an all-reduce between the hosts, and an all-gather in
    each host. Between hosts all devices of a host send at the same time, each its part.
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
    """Seconds of t concurrent all-to-alls over d devices, of which each sends `n_bytes`."""
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
    """How many of d data-parallel devices are on one host, and on how many hosts they are."""
    inside = max(submesh[1] // logical[1], 1)
    return inside, logical[0] // inside


def _logical_meshes(submesh: Submesh, n_samples: int) -> Iterator[LogicalMesh]:
    """The possible logical meshes d x t.

    d divides the samples, and each group of t devices is within one host, or consists of whole
    hosts.
    """
    n, m = submesh
    for t in range(1, n * m + 1):
        d = n * m // t
        if d * t == n * m and (m % t == 0 or t % m == 0) and n_samples % d == 0:
            yield d, t


def _undominated(costs: Sequence[StageCost]) -> Options:
    """The costs without those for which another one is at least as good in every respect."""

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
