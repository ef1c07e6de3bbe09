"""torch's planners of DTensor redistribution; the plans are not run."""

import functools
import itertools
import logging
import math
from typing import Any

import torch
from cases import ITEMSIZE, Price
from shardspec import Layout, Mesh, Spec
from torch.distributed._mesh_layout import _MeshLayout
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor import _redistribute as redistribute
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.testing._internal.distributed.fake_pg import FakeStore

# Meshes need a rank; the backend `fake` sends nothing.
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
# torch warns about each pair of collectives that it cannot merge.
logging.getLogger(redistribute.__name__).setLevel(logging.ERROR)


class TorchPlanner:
    """The planning part of `DTensor.redistribute`.

    Orders such as `S10` are passed as `shard_order`, which torch uses internally; it then uses its
    min-cost planner even if this was not selected. All flattened meshes exist, so that torch can
    merge collectives wherever it is able to.
    """

    def __init__(self, *, min_cost: bool) -> None:
        """Chooses the planner: greedy (torch's default) or the search for the least cost."""
        self.min_cost = min_cost

    def prepare(self, src: Layout, dst: Layout) -> tuple[DTensorSpec, DTensorSpec]:
        """The pair as torch's specs, in new objects."""
        redistribute.clear_redistribute_planner_cache()
        return _to_torch(src), _to_torch(dst)

    def plan(self, src: DTensorSpec, dst: DTensorSpec) -> list[Any]:
        """The steps that torch would run, as torch's own objects."""
        steps = redistribute._gen_transform_infos_non_cached(src, dst, self.min_cost)
        return redistribute._optimize_transform_infos(
            steps, src.mesh, src.placements, dst.placements
        )

    def price(self, src: Layout, dst: Layout) -> Price:
        """The price with ring algorithms, for even shards.

        With `n` devices in a group and `b` bytes on each before the step, a device receives
        `(n - 1) * b` in an all-gather, `(n - 1) / n * b` in an all-to-all and a reduce-scatter, and
        twice that in an all-reduce.
        """
        start, end = self.prepare(src, dst)
        local, received, collectives = src.local_bytes(ITEMSIZE), 0, 0
        placements = list(start.placements)
        order = redistribute.DTensorRedistributePlanner._ShardOrder_to_dict(start.shard_order)
        for step in self.plan(start, end):
            axes = getattr(step, "original_mesh_dims", (step.mesh_dim,))
            n = math.prod(src.mesh.shape[axis] for axis in axes)
            kind = step._comm_type_key()
            collectives += kind is not None
            match kind:
                case "all_gather":
                    received += (n - 1) * local
                    local *= n
                case "all_to_all":
                    received += local - local // n
                case "reduce_scatter":
                    received += local - local // n
                    local //= n
                case "all_reduce":
                    received += 2 * (local - local // n)
                case None if step.src_dst_placements[1].is_shard():
                    local //= n
                case None:  # replicas that become partial sums
                    assert step.src_dst_placements[1].is_partial(), step
            redistribute._update_shard_order_and_placements(step, placements, order)
        reached = redistribute.DTensorRedistributePlanner._dict_to_ShardOrder(order)
        assert (tuple(placements), reached) == (end.placements, end.shard_order), f"{src} to {dst}"
        return Price(received * src.mesh.size, collectives)


@functools.cache
def _to_torch_mesh(mesh: Mesh) -> DeviceMesh:
    """The mesh with all its flattened meshes, without process groups of their own."""

    def make(names: tuple[str, ...], **how: Any) -> DeviceMesh:
        return DeviceMesh("cpu", mesh_dim_names=names, _init_backend=False, _rank=0, **how)

    root = make(mesh.axis_names, mesh=torch.from_numpy(mesh.grid))
    for count in range(2, mesh.ndim + 1):
        for names in itertools.combinations(mesh.axis_names, count):
            layout = _MeshLayout([root._get_slice_mesh_layout(names).collapse()])
            name = "_".join(names)
            flattened = make((name,), _layout=layout, _rank_map=root._rank_map, _root_mesh=root)
            root._flatten_mapping[name] = flattened
    return root


def _to_torch(layout: Layout) -> DTensorSpec:
    spec: Spec = layout.spec
    placements = [Replicate()] * layout.mesh.ndim
    for dim, axes in enumerate(spec.plain_dims):
        for axis in axes:
            placements[axis] = Shard(dim)
    for partial in spec.partial:
        placements[partial.axis] = Partial(partial.kind)
    order = [ShardOrderEntry(dim, axes) for dim, axes in enumerate(spec.plain_dims) if axes]
    strides = torch.empty(layout.shape, device="meta").stride()
    return DTensorSpec(
        _to_torch_mesh(layout.mesh),
        tuple(placements),
        tensor_meta=TensorMeta(torch.Size(layout.shape), strides, torch.float32),
        shard_order=tuple(order),
    )
