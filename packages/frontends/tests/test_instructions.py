"""Instruction lists, run on names alone: nothing is read before it is there or after it is gone."""

import random
from collections import Counter
from functools import cache

import pytest
from frontends.chunks import Chunk, build_chunks
from frontends.instructions import (
    Accumulate,
    Free,
    Instruction,
    Load,
    Receive,
    Run,
    Send,
    build_instructions,
)
from frontends.jax.testing import EXAMPLES, mlp
from frontends.layers import LayeredStep, layer
from frontends.plan import Plan, Stored
from frontends.planner import SCHEDULES
from frontends.step import APPLY
from frontends.testing import random_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh

MESHES = (
    Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)),
    Mesh((2,), ("x",), (4, 5)),
    Mesh((1,), ("x",), (6,)),
)

Key = tuple[Stored, int | None]


@cache
def layered(name: str, microbatches: int) -> LayeredStep:
    return layer(EXAMPLES[name]().trace(microbatches).step, 4)


class Machine:
    """Runs instruction lists like the runtime, but only keeps account of what is where."""

    def __init__(self, step: LayeredStep, plan: Plan, chunks: tuple[Chunk, ...]) -> None:
        self.plan, self.chunks = plan, chunks
        graph = step.step.graph
        batch = {v.name for v in graph.values if v.role == "batch"}
        copies = {(t.destination, t.value) for t in plan.transfers if t.phase == "state"}
        self.live: list[set[Key]] = [
            {
                (stored, None)
                for stored in stage.inputs
                if stored.value in graph.inputs
                and stored.value not in batch
                and (index, stored.value) not in copies
            }
            for index, stage in enumerate(plan.stages)
        ]
        self.mail: Counter[tuple[int, int | None]] = Counter()
        self.sent: Counter[tuple[int, int | None]] = Counter()
        self.received: Counter[tuple[int, int | None]] = Counter()
        self.added: list[Counter[Stored]] = [Counter() for _ in plan.stages]
        self.ran: Counter[tuple[int, int | None]] = Counter()

    def run(self, lists: tuple[tuple[Instruction, ...], ...]) -> None:
        position = [0] * len(lists)
        while any(p < len(rank) for p, rank in zip(position, lists, strict=True)):
            before = list(position)
            for stage, rank in enumerate(lists):
                while position[stage] < len(rank):
                    item = rank[position[stage]]
                    if isinstance(item, Receive) and not self.mail[item.transfer, item.microbatch]:
                        break
                    self.execute(item, stage)
                    position[stage] += 1
            assert position != before, "deadlock"

    def execute(self, item: Instruction, stage: int) -> None:
        live = self.live[stage]
        match item:
            case Load(slot, microbatch):
                assert (slot, microbatch) not in live
                live.add((slot, microbatch))
            case Run(index, microbatch):
                chunk = self.chunks[index]
                assert chunk.stage == stage
                for slot in chunk.reads:
                    if chunk.phase == APPLY:
                        assert self.added[stage][slot] in (0, self.plan.microbatches)
                    assert (slot, microbatch) in live or (slot, None) in live
                live |= {(slot, microbatch) for slot in chunk.writes}
                self.ran[index, microbatch] += 1
            case Send(index, microbatch):
                transfer = self.plan.transfers[index]
                assert transfer.source == stage
                assert (Stored(transfer.value, transfer.src_spec), microbatch) in live
                self.mail[index, microbatch] += 1
                self.sent[index, microbatch] += 1
            case Receive(index, microbatch):
                transfer = self.plan.transfers[index]
                assert transfer.destination == stage
                key = (Stored(transfer.value, transfer.dst_spec), microbatch)
                assert key not in live
                self.mail[index, microbatch] -= 1
                self.received[index, microbatch] += 1
                live.add(key)
            case Accumulate(summed, kept, microbatch):
                for slot in (*summed, *kept):
                    live.remove((slot, microbatch))
                    live.add((slot, None))
                self.added[stage].update(summed)
            case Free(slots, microbatch):
                for slot in slots:
                    live.remove((slot, microbatch))


@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(SCHEDULES),
    st.lists(st.sampled_from(MESHES), min_size=1, max_size=3),
    st.integers(0, 2**32),
)
@settings(max_examples=settings().max_examples // 2)
def test_instructions_keep_account_of_every_value(
    name: str, microbatches: int, schedule: str, meshes: list[Mesh], seed: int
) -> None:
    step = layered(name, microbatches)
    plan = random_plan(step, meshes, random.Random(seed), schedule)
    chunks = build_chunks(step.step.graph, plan)
    lists = build_instructions(step.step, plan, chunks)
    machine = Machine(step, plan, chunks)
    machine.run(lists)
    assert machine.sent == machine.received
    once = {(i, t.phase) for i, t in enumerate(plan.transfers)}
    for index, phase in once:
        repeats = [None] if phase in ("state", "apply") else range(microbatches)
        assert all(machine.sent[index, m] == 1 for m in repeats)
    for index, chunk in enumerate(chunks):
        repeats = [None] if chunk.phase == APPLY else range(microbatches)
        assert all(machine.ran[index, m] == 1 for m in repeats)
    assert machine.ran.total() == sum(1 if c.phase == APPLY else microbatches for c in chunks)
    for live in machine.live:
        assert all(microbatch is None for _, microbatch in live), "a microbatch leaves nothing"
    summed = {slot.value for added in machine.added for slot in added}
    assert summed == set(step.step.summed)


def test_a_stage_holds_no_more_microbatches_than_its_schedule_says() -> None:
    step = layer(mlp().trace(4).step, 4)
    for name, in_flight in (("gpipe", 4), ("1f1b", 2)):
        plan = random_plan(step, MESHES[1:], random.Random(0), name)
        chunks = build_chunks(step.step.graph, plan)
        lists = build_instructions(step.step, plan, chunks)
        held, most = set(), 0
        for item in lists[0]:
            if isinstance(item, Load | Run) and item.microbatch is not None:
                held.add(item.microbatch)
            if isinstance(item, Accumulate):
                held.remove(item.microbatch)
            most = max(most, len(held))
        assert most == in_flight


@pytest.mark.parametrize("name", SCHEDULES)
def test_lists_are_deterministic(name: str) -> None:
    step = layered("tied", 4)
    plan = random_plan(step, MESHES, random.Random(1), name)
    chunks = build_chunks(step.step.graph, plan)
    first, second = (build_instructions(step.step, plan, chunks) for _ in range(2))
    assert first == second


def test_loads_and_runs_print_value_and_microbatch() -> None:
    step = layered("mlp", 2)
    plan = random_plan(step, MESHES[:1], random.Random(0))
    chunks = build_chunks(step.step.graph, plan)
    (rank,) = build_instructions(step.step, plan, chunks)
    texts = [str(item) for item in rank]
    assert "LOAD batch['x'].0" in texts
    assert "RUN chunk 0.1" in texts
    assert texts[-1] == "RUN chunk 2"
