"""`check_plan`: asserts from scratch that the steps of a resharding plan are right.

Everything is judged by the sets of elements that each device holds under the layouts. Neither the
search nor the construction nor the interpreter is asked what a step does.
"""

import itertools
import math
from typing import get_args

import numpy as np

from shardspec.base.partial import Reduction
from shardspec.layout.layout import Layout
from shardspec.refine.shards import assemble, shard
from shardspec.resharding.step import ReshardPlan, Step
from shardspec.resharding.transfer import transfers
from shardspec.simulate import simulate

Elements = dict[int, frozenset[int]]
"""For each device id, the flat indices of the elements that the device holds."""


def check_plan(plan: ReshardPlan, *, seed: int = 0) -> None:
    """Asserts that a plan's steps are the collectives they say, and lead from `src` to `dst`.

    It also asserts that the bytes are those that devices lack and not fewer than the lower bound,
    and that simulated data arrives, compared with slices of the whole tensor.
    """
    at = plan.src
    for step in plan.steps:
        assert step.src == at, f"{step} does not continue {at}"
        check_step(step)
        at = step.dst
    if plan.steps:
        assert at == plan.dst, f"the plan ends in {at} instead of {plan.dst}"
    else:
        same = plan.src.is_equivalent(plan.dst) or not math.prod(plan.src.shape)
        assert same, f"{plan.src} needs steps to {plan.dst}"
    assert plan.total_bytes(3) >= plan.lower_bound_bytes(3), f"{plan} is below its bound"

    whole = np.random.default_rng(seed).integers(-99, 99, plan.src.shape)
    held = simulate(plan, shard(plan.src, whole, seed=seed))
    np.testing.assert_array_equal(assemble(plan.dst, held), whole, err_msg=str(plan))
    if not plan.dst.spec.is_partial:
        for device, expected in shard(plan.dst, whole).items():
            np.testing.assert_array_equal(held[device], expected, err_msg=str(plan))


def check_step(step: Step) -> None:
    """Asserts that one step is the collective that its kind says, with its axes and bytes."""
    src, dst = step.src, step.dst
    assert (dst.shape, dst.mesh) == (src.shape, src.mesh), f"{step} changes the tensor"
    before, after = elements(src), elements(dst)
    if not math.prod(src.shape):
        assert step.total_bytes(1) == step.received_bytes(1) == 0, f"{step} moves nothing"
        return
    lacks = {device: after[device] - before[device] for device in before}
    n = step.group_size
    _check_partial(step)
    if step.kind in ("all_reduce", "reduce_scatter", "fill"):
        if step.kind == "all_reduce":
            assert before == after, f"{step} moves elements"
            most = max(map(len, before.values()))
            assert step.received_bytes(1) >= most * 2 * (n - 1) // n, step
            # A ring goes round twice; in each of its n - 1 hops every element is sent once.
            total = sum(len(before[group[0]]) * 2 * (n - 1) for group in step.groups)
            assert step.total_bytes(1) == total, step
        elif step.kind == "reduce_scatter":
            assert not any(lacks.values()), f"{step} moves elements"
            for group in step.groups:
                assert _is_partition([after[d] for d in group], before[group[0]]), step
            assert step.total_bytes(1) == sum((n - 1) * len(part) for part in after.values())
        else:
            assert step.total_bytes(1) == 0, step
        return

    assert step.total_bytes(3) == 3 * sum(map(len, lacks.values())), step
    if "padded" not in (*src.rules, *dst.rules):
        assert step.received_bytes(3) == 3 * max(map(len, lacks.values())), step
    parts = _check_transfers(step, before, after)
    for group in step.groups:
        held = frozenset().union(*(before[device] for device in group))
        assert all(after[device] <= held for device in group), f"{step}: not all from {group}"
        if step.kind == "slice":
            assert not any(lacks[device] for device in group), f"{step} sends"
        elif step.kind == "all_gather":
            assert all(after[device] == held for device in group), f"{step} in {group}"
        elif step.kind == "all_to_all" and src.is_even and dst.is_even:
            sizes = {len(parts.get(pair, ())) for pair in itertools.product(group, group)}
            assert len(sizes) == 1, f"{step} sends parts of different sizes {sizes} in {group}"
        elif step.kind == "collective_permute":
            pairs = [p for p in itertools.product(group, group) if p in parts]
            assert len(pairs) == len(group) == len({a for a, _ in pairs}), f"{step}: {pairs}"


def elements(layout: Layout) -> Elements:
    """The elements that each device holds."""
    number = np.arange(math.prod(layout.shape)).reshape(layout.shape)
    return {
        device: frozenset(number[np.ix_(*layout.indices(device))].reshape(-1).tolist())
        for device in layout.mesh.device_ids
    }


def _check_partial(step: Step) -> None:
    """Asserts that only partial results over `axes`, of one kind, disappear or appear."""
    reduces = step.kind in ("all_reduce", "reduce_scatter")
    assert (step.reduction is not None) == (reduces or step.kind == "fill"), step
    for kind in get_args(Reduction):
        old, new = (
            [p.axis for p in layout.spec.partial if p.kind == kind]
            for layout in (step.src, step.dst)
        )
        if kind == step.reduction:
            (new if reduces else old).extend(step.axes)
        groups = [set(map(frozenset, step.src.mesh.groups(tuple(axes)))) for axes in (old, new)]
        assert groups[0] == groups[1], f"{step} does not combine or make {kind} over its axes"


def _check_transfers(
    step: Step, before: Elements, after: Elements
) -> dict[tuple[int, int], frozenset[int]]:
    """Asserts that each device gets each of its elements once, from a device that holds it.

    Returns:
        The elements that are transferred, for each pair of sender and receiver.
    """
    shape = step.src.shape
    number = np.arange(math.prod(shape)).reshape(shape)
    parts = {}
    for t in transfers(step.src, step.dst, step.axes):
        index = [[i for run in runs for i in range(*run)] for runs in t.runs]
        block = frozenset(number[np.ix_(*index)].reshape(-1).tolist())
        assert block <= before[t.sender], f"{step}: {t} sends what it does not have"
        assert (t.sender, t.receiver) not in parts, f"{step}: {t} comes twice"
        assert len(block) == t.elements, t
        parts[t.sender, t.receiver] = block
    for device, wanted in after.items():
        blocks = [block for (_, receiver), block in parts.items() if receiver == device]
        assert _is_partition(blocks, wanted), f"{step}: device {device} does not get its shard"
    return parts


def _is_partition(parts: list[frozenset[int]], whole: frozenset[int]) -> bool:
    return sum(map(len, parts)) == len(whole) and frozenset().union(*parts) == whole
