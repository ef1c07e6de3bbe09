"""Claims that six processes of one gloo group check together; test_torch.py runs this program.

Each claim is a function that all ranks call: `torch_ranks.py FOLDER CLAIM ...`. Each rank writes
its results to FOLDER/rank.json.
"""

import json
import random
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from crossmesh import (
    MismatchError,
    PartialLayoutError,
    PlanError,
    RankError,
    RankShardError,
    ShardError,
    plan,
)
from crossmesh.engines.torch_batched import execute_batched
from crossmesh.torch import TorchTransport, plan_state_dict, redistribute, transfer_state_dict
from shardspec import Layout, Mesh, NotationError, Partial, Spec, shard
from shardspec.notation.torch import from_placements, to_placements
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import Partial as TorchPartial

N_RANKS = 6
LIMITS = {"window": 4, "deadline_s": 20.0}
TIMEOUT = timedelta(seconds=40)
"""The timeout of torch's own operations."""


class World:
    """The meshes, and a transport; each claim gets a new one, because a failure closes it."""

    def __init__(self):
        self.trainer = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
        self.server = DeviceMesh("cpu", [4, 5])
        self.overlapping = DeviceMesh("cpu", [1, 4, 2])
        self.all = DeviceMesh("cpu", [[5, 0, 3], [1, 4, 2]], mesh_dim_names=("x", "y"))
        self.meshes = (self.trainer, self.server, self.overlapping, self.all)
        self.transport = TorchTransport(
            dist.new_group(backend="gloo"), {rank: rank for rank in range(N_RANKS)}
        )

    def redistribute(self, dtensor, mesh, placements, **limits):
        return redistribute(dtensor, mesh, placements, self.transport, **{**LIMITS, **limits})

    def transfer(self, src, dst, **options):
        transfer_state_dict(src, dst, self.transport, **LIMITS, **options)


def dtensor_as(layout, mesh, whole, dtype=torch.float32):
    """A DTensor with this layout, made of the shards that shardspec cuts."""
    rank = dist.get_rank()
    local = torch.empty(0, dtype=dtype)
    if rank in layout.mesh.device_ids:
        local = torch.from_numpy(shard(layout, whole)[rank]).to(dtype)
    stride = torch.empty(layout.shape, device="meta").stride()
    placements = to_placements(layout)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(layout.shape), stride=stride
    )


def check(moved, whole):
    """Assert that this rank's shard is the one that the placements say."""
    layout = from_placements(moved.placements, moved.device_mesh, moved.shape)
    rank = dist.get_rank()
    if rank not in layout.mesh.device_ids:
        assert moved.to_local().numel() == 0
        return
    expected = torch.from_numpy(shard(layout, whole)[rank]).to(moved.dtype)
    assert torch.equal(moved.to_local(), expected), f"{moved.to_local()} is not {expected}"


def random_layout(draw, mesh, shape, partial):
    """A random layout that placements can express; some are strided, as axes are in any order."""
    ours = from_placements((Replicate(),) * mesh.ndim, mesh, shape).mesh
    while True:
        dims = [() for _ in shape]
        terms = []
        kind = draw.choice(("sum", "max", "avg"))
        for axis in draw.sample(range(mesh.ndim), mesh.ndim):
            dim = draw.randrange(-2 if partial else -1, len(shape))
            if dim >= 0:
                dims[dim] += (axis,)
            elif dim == -2:
                terms.append(Partial(axis, kind))
        layout = Layout(shape, ours, Spec(tuple(dims), tuple(terms)), "nested")
        try:
            to_placements(layout)
        except NotationError:
            continue
        return layout


def random_placements_give_the_slices_of_the_whole(world):
    draw = random.Random(7)
    seen = set()
    for _ in range(40):
        shape = tuple(draw.randrange(8) for _ in range(draw.randrange(1, 4)))
        whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 50
        mesh, to = draw.choice(world.meshes), draw.choice(world.meshes)
        src = random_layout(draw, mesh, shape, partial=True)
        dst = random_layout(draw, to, shape, partial=False)
        dtype = draw.choice((torch.float32, torch.bfloat16, torch.float64))
        source = dtensor_as(src, mesh, whole, dtype)
        check(world.redistribute(source, to, to_placements(dst)), whole)
        seen |= {type(p).__name__ for p in (*source.placements, *to_placements(dst))}
        seen |= set() if src.is_even else {"uneven"}
    assert seen == {"Shard", "Replicate", "Partial", "_StridedShard", "uneven"}


def full_tensors_are_equal_before_and_after(world):
    # Torch itself gives wrong results on meshes whose ranks do not ascend (2.13, for example
    # DeviceMesh("cpu", [0, 2, 1]) with 7 elements), so this claim uses another overlapping mesh.
    overlapping = DeviceMesh("cpu", [[1, 2], [3, 5]])
    for shape in ((7, 3), (8, 1), (2, 5, 3)):
        whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
        for to, placements in (
            (world.server, [Shard(-1)]),
            (overlapping, [Shard(0), Shard(0)]),
            (overlapping, [Replicate(), Shard(1)]),
        ):
            source = distribute_tensor(whole, world.trainer, [Shard(0), Shard(0)])
            moved = world.redistribute(source, to, placements)
            assert moved.device_mesh == to
            if to.get_coordinate() is not None:
                assert torch.equal(moved.full_tensor(), whole)


def types_that_numpy_lacks_arrive_bit_for_bit(world):
    for dtype, bits in (
        (torch.bfloat16, torch.int16),
        (torch.float8_e4m3fn, torch.uint8),
        (torch.float8_e5m2, torch.uint8),
        (torch.complex32, torch.int32),
    ):
        whole = (37 * torch.arange(24).reshape(6, 4)).to(bits)  # some are NaN as float8
        rank = dist.get_rank()
        local = whole[3 * (rank // 2) :][:3] if rank < 4 else torch.empty(0, dtype=bits)
        source = DTensor.from_local(
            local.view(dtype),
            world.trainer,
            [Shard(0), Replicate()],
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )
        moved = world.redistribute(source, world.server, [Replicate()]).to_local()
        if rank >= 4:
            assert moved.dtype == dtype
            assert torch.equal(moved.view(bits), whole)


def partial_sums_are_added_on_the_way(world):
    local = torch.full((4, 2), 1.0 + dist.get_rank(), dtype=torch.bfloat16)
    source = DTensor.from_local(
        local if dist.get_rank() < 4 else torch.empty(0, dtype=local.dtype),
        world.trainer,
        [TorchPartial(), Shard(1)],
        run_check=False,
        shape=torch.Size((4, 4)),
        stride=(4, 1),
    )
    moved = world.redistribute(source, world.server, [Shard(0)])
    if dist.get_rank() >= 4:
        assert moved.to_local().tolist() == [[4.0, 4.0, 6.0, 6.0]] * 2


def state(mesh, placements, dtype=torch.float32, fill=None):
    """The weights of a small model; filled with `fill` unless that is None."""
    weights = {}
    for i, shape in enumerate(((5, 8), (8, 3), (4,))):
        whole = torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape) + i
        whole = whole if fill is None else torch.full(shape, fill, dtype=dtype)
        weights[f"layer.{i}"] = distribute_tensor(whole, mesh, placements)
    return weights


def pairs(dst, world):
    """The tensors that arrived at the server, each with the expected one."""
    return zip(dst.values(), state(world.server, [Shard(0)]).values(), strict=True)


def a_state_dict_arrives_in_place(world):
    src = state(world.trainer, [Shard(0), Replicate()])
    dst = state(world.server, [Shard(0)], fill=-1.0)
    places = [x.to_local().data_ptr() for x in dst.values()]
    world.transfer(src, dst)
    for moved, whole in pairs(dst, world):
        assert torch.equal(moved.to_local(), whole.to_local())
    assert places == [x.to_local().data_ptr() for x in dst.values()]


def ranks_that_know_one_side_learn_the_other_for_the_plan(world):
    is_server = dist.get_rank() >= 4
    src = None if is_server else state(world.trainer, [Replicate(), Shard(0)])
    dst = state(world.server, [Shard(0)], fill=-1.0) if is_server else None
    hosts = {rank: rank // 2 for rank in range(N_RANKS)}
    planned = plan_state_dict(src, dst, hosts, group=dist.group.WORLD)
    for step in range(3):
        world.transfer(src, dst, planned=planned)
        if is_server:
            for moved, whole in pairs(dst, world):
                assert torch.equal(moved.to_local(), whole.to_local() + step)
        else:
            for x in src.values():
                x.to_local().add_(1)
    with pytest.raises(PlanError, match=f"got None as {'src' if is_server else 'dst'}; pass"):
        world.transfer(src, dst)


def destinations_that_numpy_cannot_write_to_are_filled_in_the_end(world):
    whole = torch.arange(8.0).to(torch.complex64) * (1 + 2j)
    source = distribute_tensor(whole, world.trainer, [Shard(0), Replicate()])
    local = torch.zeros(4, dtype=whole.dtype).conj()
    dst = DTensor.from_local(
        local, world.server, [Shard(0)], run_check=False, shape=whole.shape, stride=(1,)
    )
    world.transfer({"w": source}, {"w": dst})
    if dist.get_rank() >= 4:
        assert local.is_conj()
        assert torch.equal(local, whole[4 * (dist.get_rank() - 4) :][:4])
    back = world.redistribute(dst, world.trainer, [Shard(0), Shard(0)])
    check(back, whole.numpy())


def a_process_group_moves_shards_where_they_are(world):
    group = dist.new_group(backend="gloo")
    src = state(world.trainer, [Shard(0), Shard(0)], dtype=torch.bfloat16)
    dst = state(world.server, [Shard(0)], dtype=torch.bfloat16, fill=-1.0)
    transfer_state_dict(src, dst, group, window=2)
    for moved, whole in pairs(dst, world):
        assert torch.equal(moved.to_local(), whole.to_local().bfloat16())
    whole = torch.arange(35.0).reshape(7, 5)
    source = distribute_tensor(whole, world.trainer, [Shard(0), Shard(0)])
    check(redistribute(source, world.all, [Shard(1), Shard(0)], group, window=1), whole.numpy())
    for transport, deadline_s in ((group, 1.0), (world.transport, None)):
        with pytest.raises(PlanError, match=f"got deadline_s={deadline_s} for a"):
            transfer_state_dict(src, dst, transport, window=1, deadline_s=deadline_s)


def parameters_keep_their_gradients_and_are_no_part_of_any(world):
    src = state(world.trainer, [Shard(0), Replicate()])
    dst = {
        name: torch.nn.Parameter(x) for name, x in state(world.server, [Shard(0)], fill=0.0).items()
    }
    world.transfer({name: torch.nn.Parameter(x) for name, x in src.items()}, dst)
    for moved, whole in pairs(dst, world):
        assert torch.equal(moved.to_local(), whole.to_local())
        assert moved.requires_grad
        assert moved.grad_fn is None
    source = torch.nn.Parameter(src["layer.0"])
    assert not world.redistribute(source, world.server, [Shard(1)]).requires_grad


def shards_may_lie_in_memory_in_any_order(world):
    whole = torch.arange(24.0).reshape(4, 6)
    transposed = distribute_tensor(whole.T.contiguous(), world.trainer, [Shard(1), Shard(0)])
    source = DTensor.from_local(
        transposed.to_local().T if dist.get_rank() < 4 else torch.empty(0),
        world.trainer,
        [Shard(0), Shard(1)],
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
    check(world.redistribute(source, world.server, [Shard(0)]), whole.numpy())


def ranks_that_ask_for_different_things_all_say_so(world):
    source = distribute_tensor(torch.ones(4, 4), world.trainer, [Shard(0), Replicate()])
    placements = [Shard(dist.get_rank() % 2)]
    with pytest.raises((MismatchError, RankError), match="all ranks execute the same plan"):
        world.redistribute(source, world.server, placements, deadline_s=10.0)


def what_cannot_be_moved_is_refused_before_anything_is_sent(world):
    good = state(world.trainer, [Shard(0), Replicate()])
    to = state(world.server, [Shard(0)])
    with pytest.raises(PartialLayoutError, match="delivers whole results"):
        world.redistribute(good["layer.0"], world.server, [TorchPartial()])
    with pytest.raises(NotationError, match="a placement for each mesh axis"):
        world.redistribute(good["layer.0"], world.server, [Shard(0), Shard(1)])
    with pytest.raises(ShardError, match=r"got Tensor for 'layer\.0'; wrap it"):
        world.transfer({**good, "layer.0": torch.ones(5, 8)}, to)
    other = state(world.server, [Shard(0)], dtype=torch.bfloat16)
    with pytest.raises(PlanError, match="got float32 at the source and bfloat16 at"):
        world.transfer(good, other)
    with pytest.raises(PlanError, match="have the same tensor names"):
        world.transfer(good, {"layer.0": to["layer.0"]})
    planned = plan_state_dict(good, to)
    with pytest.raises(PlanError, match=r"got dst with \['layer\.0'\] for a plan of"):
        world.transfer(good, {"layer.0": to["layer.0"]}, planned=planned)


def a_plan_of_other_layouts_is_refused(world):
    src, dst = (
        {"w": distribute_tensor(torch.ones(4, 4), world.trainer, [Shard(0), Shard(1)])}
        for _ in range(2)
    )
    planned = plan_state_dict(src, dst)
    turned = {"w": distribute_tensor(torch.ones(4, 4), world.trainer, [Shard(1), Shard(0)])}
    with pytest.raises(PlanError, match=r"have the planned layouts; got \(4, 4\) as S1S0.* as dst"):
        world.transfer(src, turned, planned=planned)
    if dist.get_rank() < 4:
        with pytest.raises(ShardError, match=r"got src=None on rank \d, .* mesh of \['w'\]"):
            world.transfer(None, dst, planned=planned)


def torch_pairs():
    """Pairs of different dtypes of torch with the same size."""
    dtypes = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    of_size = {}
    for dtype in sorted(dtypes, key=str):
        if not str(dtype).startswith(("torch.q", "torch.uq")):  # quantized: bytes have no view
            of_size.setdefault(dtype.itemsize, []).append(dtype)
    assert sum(map(len, of_size.values())) > 30
    return [
        (planned, names[(i + step) % len(names)])
        for names in of_size.values()
        for i, planned in enumerate(names)
        for step in (1, 3)
        if names[(i + step) % len(names)] != planned
    ]


def batches_of_another_dtype_are_refused_on_all_ranks_and_others_arrive(world):
    group, rank = dist.new_group(backend="gloo"), dist.get_rank()
    layouts = [
        Layout((48,), Mesh((len(devices),), ("x",), devices), Spec.parse(spec))
        for devices, spec in (((0, 1, 2), "S0"), ((3, 4, 5), "R"))
    ]
    for number, (planned, other) in enumerate(torch_pairs()):
        n_elements = 48 // planned.itemsize
        src, dst = (Layout((n_elements,), end.mesh, end.spec) for end in layouts)
        made = plan(src, dst, str(planned).removeprefix("torch."))
        bits = np.random.default_rng(number).integers(256, size=48, dtype=np.uint8)
        held = torch.from_numpy(bits[16 * rank :][:16].copy()) if rank < 3 else None
        room = None if rank < 3 else torch.zeros(48, dtype=torch.uint8)

        def move(dtype, held=held, room=room, made=made):
            src = {} if held is None else {"tensor": held.view(dtype)}
            dst = {} if room is None else {"tensor": room.view(dtype)}
            execute_batched(made, src, dst, group, window=2)

        wrong = number % N_RANKS
        with pytest.raises(ShardError, match="shards have the dtype that is planned; got") as seen:
            move(other if rank == wrong else planned)
        assert isinstance(seen.value, RankShardError) == (rank != wrong)
        assert room is None or not room.any()
        move(planned)
        assert room is None or torch.equal(room, torch.from_numpy(bits))


def state_of_another_dtype_on_one_rank_is_refused_on_all(world):
    group, rank = dist.new_group(backend="gloo"), dist.get_rank()
    to = state(world.server, [Shard(0)], dtype=torch.bfloat16, fill=-1.0)
    good = state(world.trainer, [Shard(0), Replicate()], dtype=torch.bfloat16)
    planned = plan_state_dict(good, to)
    given = {
        name: DTensor.from_local(
            x.to_local().view(torch.float16 if rank == 2 else torch.bfloat16),
            world.trainer,
            x.placements,
            run_check=False,
            shape=x.shape,
            stride=x.stride(),
        )
        for name, x in good.items()
    }
    for transport in (world.transport, group):
        deadline_s = None if transport is group else 20.0
        with pytest.raises(ShardError, match=r"torch\.float16 instead of bfloat16 as src") as seen:
            transfer_state_dict(
                given, to, transport, window=2, deadline_s=deadline_s, planned=planned
            )
        assert isinstance(seen.value, RankShardError) == (rank != 2)
    assert all((x.to_local() == -1).all() for x in to.values())


def who_cannot_describe_its_tensors_tells_those_that_ask(world):
    rank = dist.get_rank()
    src = state(world.trainer, [Shard(0), Replicate()])
    dst = state(world.server, [Shard(0)])
    dst |= {"layer.0": torch.ones(2)} if rank == 5 else {}
    with pytest.raises(ShardError, match="a state dict has DTensors") as seen:
        plan_state_dict(src, dst, group=dist.group.WORLD)
    assert isinstance(seen.value, RankShardError) == (rank != 5)


def run(rank, folder):
    """Check all claims as one rank, and write the results."""
    dist.init_process_group(
        "gloo", f"file://{folder}/store", TIMEOUT, rank=rank, world_size=N_RANKS
    )
    results = {}
    for name in sys.argv[2:]:
        world = World()
        try:
            globals()[name](world)
            results[name] = "holds"
        except Exception:
            results[name] = traceback.format_exc()
        world.transport.close()
    Path(folder, f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Torch is imported once, before the fork; nothing has started a thread yet.
    torch.multiprocessing.start_processes(run, (sys.argv[1],), nprocs=N_RANKS, start_method="fork")
