"""AutoDDL's six cases on Piz Daint, with one device a host, and the search for each."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard import Graph, Sharding, shard, stored_specs
from autoshard.programs import StepBuilder, join_phases, vgg13_step
from autoshard.programs.program import FIRST
from autoshard.programs.vgg import DENSE
from costmodel import Cluster
from shardspec import Mesh

from autoddl import megatron
from autoddl.megatron import Grid

VGG_MESHES = {16: (2, 2, 4), 32: (2, 4, 4), 64: (2, 4, 8)}
"""Meshes by number of devices. For each of AutoDDL's p0, p1 and p2, a layer may use any product of
the lengths of axes."""
VGG_SAVED = {16: 0.10, 32: 0.18, 64: 0.29}
"""The share of communication that AutoDDL saves against the best grid (5.2.2)."""
TRANSFORMER_MESHES = {64: (2, 4, 2), 128: (2, 8, 2), 256: (4, 4, 4)}
"""Meshes of a replica, which has the devices that p1 and p2 share: a quarter of all devices."""
TRANSFORMER_SAVED = {64: 0.239, 128: 0.464, 256: 0.353}
"""The share of communication that AutoDDL saves against the second best (5.2.3)."""
WIDTH, SEQUENCES, LENGTH = 8192, 1024, 1024
"""From AutoDDL, 5.2.3."""
REPLICAS = 4
"""p0, as in AutoDDL's figure 3. Twice as many replicas do not fit (4.5.2): parameters, gradients
and Adam's state take 16 bytes a parameter, so 6.8 to 9 GB a device for 6.8, 16.5 and 35.8 billion
parameters."""
MICROBATCHES = 64
"""AutoDDL takes "the largest possible"; with 64, a replica has four sequences at a time."""


@dataclass(frozen=True)
class Result:
    """The seconds of communication of a step in one case, for our plan and for every grid."""

    model: str
    devices: int
    mesh: tuple[int, ...]
    found_s: float
    gap: float
    """The gap of the whole predicted step to its lower bound."""
    grids: tuple[Grid, ...]
    published: float
    """The share of communication that AutoDDL saved."""

    @property
    def best(self) -> Grid:
        """The grid that communicates the least."""
        return min(self.grids, key=lambda grid: grid.seconds)

    @property
    def saved(self) -> float:
        """The share of the best grid's communication that our plan saves."""
        return 1 - self.found_s / self.best.seconds


def piz_daint(devices: int) -> Cluster:
    """Piz Daint with this many nodes, of one P100 each."""
    return Cluster.preset("piz-daint").resized(n_hosts=devices)


def mesh_of(shape: tuple[int, ...]) -> Mesh:
    """A mesh of this shape on the first devices."""
    return Mesh(shape, tuple(f"axis{axis}" for axis in range(len(shape))))


def vgg(devices: int) -> Result:
    """VGG13 with eight images a device, including the gradients of every layer."""
    mesh, cluster, batch = mesh_of(VGG_MESHES[devices]), piz_daint(devices), 8 * devices
    graph = join_phases(vgg13_step(batch=batch, optimizer="sgd"))
    sharding = shard(graph, mesh, cluster, compare=False)
    kernels = [graph.value(name).shape for name in graph.inputs if name.startswith("conv")]
    widths = (graph.value("dense1").shape[0], *DENSE)
    grids = tuple(
        Grid(
            mesh.axis_size(data),
            mesh.axis_size(model),
            megatron.price(megatron.vgg(kernels, widths, batch, data, model), mesh, cluster),
        )
        for data, model in megatron.splits(mesh)
    )
    return result("VGG13", devices, mesh, sharding, sum(sharding.communication_s), grids)


def transformer(devices: int, n_layers: int = 2) -> Result:
    """Transformer layers of which only the matrix products count, as in AutoDDL's analysis (4.4).

    The search is for one replica. Each replica holds all weights, sharded over all its devices, and
    sums their gradients with the other replicas once a step, as the grids do.
    """
    replica = mesh_of(TRANSFORMER_MESHES[devices])
    mesh, cluster = mesh_of((REPLICAS, *replica.shape)), piz_daint(devices)
    tokens = SEQUENCES * LENGTH // MICROBATCHES
    graph = transformer_graph(n_layers, tokens // REPLICAS)
    weights = [name for name in graph.inputs if graph.value(name).role == "parameter"]
    split = {
        name: tuple(
            spec
            for spec in stored_specs(graph.value(name).shape, replica.shape)
            if replica.axis_size(spec.axes) == replica.size
        )
        for name in weights
    }
    sharding = shard(graph, replica, cluster, compare=False, pin=split, method="ilp", time_s=600)
    data, model = (0,), tuple(range(1, mesh.ndim))
    sent = megatron.transformer(n_layers, tokens, WIDTH, MICROBATCHES, data, model)
    gradients = [one for one in sent if one.times == n_layers]
    grid = Grid(REPLICAS, replica.size, megatron.price(sent, mesh, cluster))
    planned_s = sum(sharding.communication_s) + megatron.price(gradients, mesh, cluster)
    return result("Transformer", devices, mesh, sharding, planned_s, (grid,))


def transformer_graph(n_layers: int, tokens: int) -> Graph:
    """Layers without norms and biases; attention can be split by heads and by sequences only."""
    p = StepBuilder(microbatches=MICROBATCHES)
    x = p.input("x", tokens, WIDTH)

    def dense(x: str, name: str, width: int) -> str:
        return p.einsum("nd,de->ne", x, p.parameter(name, p.shape(x)[1], width))

    for layer in range(n_layers):
        q, k, v = (dense(x, f"{layer}_{name}", WIDTH) for name in "qkv")
        x = p.add(x, dense(attention(p, q, k, v), f"{layer}_out", WIDTH))
        x = p.add(
            x, dense(p.unary("gelu", dense(x, f"{layer}_up", 4 * WIDTH)), f"{layer}_down", WIDTH)
        )
    return join_phases(p.finish(p.mean(p.mul(x, x)), optimizer="sgd"))


def attention(p: StepBuilder, q: str, k: str, v: str) -> str:
    """Attention as one operator: its rows are split by sequences, and its columns by heads."""

    def gradient(g: str) -> str:
        return p.pointwise("attention_gradient", FIRST, g, q, k, v)

    return p.record(
        p.pointwise("attention", (), q, k, v), (q, gradient), (k, gradient), (v, gradient)
    )


def result(
    model: str,
    devices: int,
    mesh: Mesh,
    sharding: Sharding,
    found_s: float,
    grids: tuple[Grid, ...],
) -> Result:
    """The result of a case, with the share that AutoDDL published for it."""
    published = {"VGG13": VGG_SAVED, "Transformer": TRANSFORMER_SAVED}[model][devices]
    gap = sharding.solution.gap
    return Result(model, devices, mesh.shape, found_s, gap, grids, published)
