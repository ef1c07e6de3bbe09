"""Instruction lists, run on names alone: nothing is read before it is there or after it is gone."""

import random
from collections import Counter
from collections.abc import Iterable
from functools import cache

import pipesched
import pytest
from frontends.answer.plan import Plan
from frontends.errors import DeadlockError, PlanError
from frontends.jax.testing import EXAMPLES, mlp
from frontends.layers.layers import LayeredStep, layer
from frontends.layers.replicas import copied_as
from frontends.plan.plan_fields import Stored
from frontends.plan.schedule import (
    copy_at,
    each_copy,
    microbatches_at,
    names_that_run,
    schedule_of,
    split_stages,
)
from frontends.program.chunks import Chunk
from frontends.program.instructions import (
    Free,
    Instruction,
    Keep,
    Key,
    Load,
    Receive,
    Run,
    Send,
    Zero,
    in_one_order,
    makes,
)
from frontends.program.program import build_program
from frontends.step.step import APPLY, BACKWARD, FORWARD
from frontends.testing import random_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh

MESHES = (
    Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)),
    Mesh((2,), ("x",), (4, 5)),
    Mesh((1,), ("x",), (6,)),
)

LOOPED = ("interleaved-1f1b", "looped-bfs", "zb-v", "v-half", "v-min", "dualpipe-v")


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
        self.live: list[set[tuple[Stored, int | None]]] = [
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
        schedule = schedule_of(plan)
        self.n_microbatches = [microbatches_at(schedule, s) for s in range(len(plan.stages))]

    def execute(self, item: Instruction) -> None:
        stage, live = item.stage, self.live[item.stage]
        match item:
            case Load(_, slot, microbatch):
                assert (slot, microbatch) not in live
                live.add((slot, microbatch))
            case Run(_, index, microbatch):
                chunk = self.chunks[index]
                assert chunk.stage == stage
                for slot in chunk.reads:
                    if chunk.phase == APPLY:
                        assert self.added[stage][slot] in (0, self.n_microbatches[stage])
                    assert (slot, microbatch) in live or (slot, None) in live
                assert live.issuperset((slot, None) for slot in chunk.totals)
                self.added[stage].update(chunk.totals)
                live |= {(slot, microbatch) for slot in chunk.writes}
                self.ran[index, microbatch] += 1
            case Send(_, index, microbatch):
                transfer = self.plan.transfers[index]
                assert transfer.source == stage
                sent = Stored(transfer.value, transfer.src_spec)
                assert (sent, microbatch) in live or (sent, None) in live
                self.mail[index, microbatch] += 1
                self.sent[index, microbatch] += 1
            case Receive(_, index, microbatch):
                transfer = self.plan.transfers[index]
                assert transfer.destination == stage
                key = (Stored(transfer.value, transfer.dst_spec), microbatch)
                assert key not in live
                assert self.mail[index, microbatch] == 1
                self.mail[index, microbatch] -= 1
                self.received[index, microbatch] += 1
                live.add(key)
            case Zero(_, index, _):
                totals = {(slot, None) for slot in self.chunks[index].totals}
                assert totals
                assert live.isdisjoint(totals)
                live |= totals
            case Keep(_, slots, microbatch):
                for slot in slots:
                    live.remove((slot, microbatch))
                    live.add((slot, None))
            case Free(_, slots, microbatch):
                for slot in slots:
                    live.remove((slot, microbatch))


@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(names_that_run()),
    st.lists(st.sampled_from(MESHES), min_size=1, max_size=4),
    st.integers(0, 2**32),
)
@settings(max_examples=settings().max_examples // 2)
def test_instructions_keep_account_of_every_value(
    name: str, microbatches: int, schedule: str, meshes: list[Mesh], seed: int
) -> None:
    step = layered(name, microbatches)
    plan = random_plan(step, meshes, random.Random(seed), schedule)
    try:
        schedule_of(plan)
    except PlanError:
        return  # not defined for these sizes
    schedule, step = schedule_of(plan), copied_as(step, plan).layered
    program = build_program(step.step, plan)
    chunks = program.chunks
    machine = Machine(step, plan, chunks)

    def of_stage(stage: int) -> list[int]:
        first = stage % schedule.n_stages
        return [m for m in range(microbatches) if copy_at(schedule, first, m) == stage]

    for item in program.instructions:
        machine.execute(item)
    assert machine.sent == machine.received
    once = {(i, t.phase) for i, t in enumerate(plan.transfers)}
    for index, phase in once:
        source = plan.transfers[index].source
        repeats = [None] if phase in ("state", "apply") else of_stage(source)
        assert all(machine.sent[index, m] == 1 for m in repeats)
    for index, chunk in enumerate(chunks):
        repeats = [None] if chunk.phase == APPLY else of_stage(chunk.stage)
        assert all(machine.ran[index, m] == 1 for m in repeats)
    assert machine.ran.total() == sum(
        1 if c.phase == APPLY else len(of_stage(c.stage)) for c in chunks
    )
    for live in machine.live:
        assert all(microbatch is None for _, microbatch in live), "a microbatch leaves nothing"
    summed = {slot.value for added in machine.added for slot in added}
    assert summed == set(step.step.summed)


@pytest.mark.parametrize("name", names_that_run())
def test_a_rank_holds_what_the_simulator_says(name: str) -> None:
    """In bytes of all that a microbatch leaves for later, run by run."""
    n_stages, microbatches = (4 if name in LOOPED else 2), 4
    step = layered("mlp", microbatches)
    plan = random_plan(step, MESHES[2:] * n_stages, random.Random(0), name)
    step = copied_as(step, plan).layered
    program = build_program(step.step, plan)
    chunks = program.chunks
    ranks, schedule = program.ranks, program.schedule
    received = {(t.destination, Stored(t.value, t.dst_spec)) for t in plan.transfers}
    n_bytes = {value.name: value.n_bytes for value in step.step.graph.values}

    def held(items: Iterable[Key]) -> int:
        """Of one microbatch, without messages."""
        return sum(n_bytes[s.value] for stage, s, _ in items if (stage, s) not in received)

    def is_same(a: Run, b: Run) -> bool:
        phases = [chunks[run.chunk].phase for run in (a, b)]
        return (a.stage, a.microbatch, phases[0]) == (b.stage, b.microbatch, phases[1])

    kept: dict[tuple[int, int], int] = {}  # by stage, and phase and level of what has run
    curves = []
    for rank in ranks:
        live: set[Key] = set()
        curve = [0]
        for index, item in enumerate(rank):
            live |= {key for key in makes(item, plan, chunks) if key[2] is not None}
            if isinstance(item, Free):
                live -= {(item.stage, slot, item.microbatch) for slot in item.slots}
            if isinstance(item, Keep):
                live -= {(item.stage, s, item.microbatch) for s in item.slots}
            upcoming = rank[index + 1] if index + 1 < len(rank) else None
            if isinstance(upcoming, Free | Keep | Send):
                continue
            last = next((i for i in reversed(rank[: index + 1]) if isinstance(i, Run)), None)
            if isinstance(upcoming, Run) and last is not None and is_same(last, upcoming):
                continue  # between the two parts of a whole backward
            if last is None or last.microbatch is None or not isinstance(item, Free | Run | Send):
                continue
            chunk = chunks[last.chunk]
            is_part = chunk.level == 0 and last.stage in split_stages(each_copy(schedule))
            if chunk.phase == FORWARD or is_part:  # nothing else leaves more than there was
                own = [k for k in live if k[0] == last.stage and k[2] == last.microbatch]
                stage = last.stage % n_stages
                kept.setdefault((stage, chunk.phase + chunk.level), held(own))
                curve.append(held(live))
        curves.append(max(curve))
    timeline = pipesched.simulate(
        schedule,
        pipesched.Costs(
            1.0,
            2.0,
            activation_bytes=[kept[s, FORWARD] for s in range(n_stages)],
            weight_gradient_bytes=[
                kept.get((s, BACKWARD), kept[s, FORWARD]) for s in range(n_stages)
            ],
        ),
    )
    simulated = [
        max(held.activation_bytes + held.weight_gradient_bytes for held in curve)
        for curve in timeline.memory()
    ]
    assert curves == simulated


def test_a_stage_holds_no_more_microbatches_than_its_schedule_says() -> None:
    step = layer(mlp().trace(4).step, 4)
    for name, in_flight in (("gpipe", 4), ("1f1b", 2)):
        plan = random_plan(step, MESHES[1:], random.Random(0), name)
        program = build_program(step.step, plan)
        held, most = set(), 0
        for item in program.ranks[0]:
            if isinstance(item, Load | Run) and item.microbatch is not None:
                held.add(item.microbatch)
            most = max(most, len(held))
            if isinstance(item, Run) and program.chunks[item.chunk].phase == BACKWARD:
                held.remove(item.microbatch)
        assert most == in_flight


def test_a_lost_message_is_a_deadlock_that_names_who_waits() -> None:
    step = layered("mlp", 2)
    plan = random_plan(step, MESHES[:2], random.Random(0))
    first, second = build_program(step.step, plan).ranks
    message = r"stage 0 waits for \S+ of microbatch 0 from stage 1, stage 1 waits for \S+ of micro"
    with pytest.raises(DeadlockError, match=message):
        in_one_order([[i for i in first if not isinstance(i, Send)], second], plan)


def test_the_weight_gradient_is_what_nobody_waits_for() -> None:
    step = layered("mlp", 2)
    plan = random_plan(step, MESHES[:2], random.Random(0), "zb-h1")
    chunks = build_program(step.step, plan).chunks
    sent = {t.value for t in plan.transfers if t.phase == "backward"}
    for chunk in chunks:
        writes = {slot.value for slot in chunk.writes}
        if chunk.phase == BACKWARD and chunk.level == 1:
            assert writes.isdisjoint(sent)
            assert {slot.value for slot in chunk.totals} <= set(step.step.summed)
            assert chunk.totals
    levels = [(c.stage, c.level) for c in chunks if c.phase == BACKWARD]
    assert levels == [(0, 1), (1, 1)], "stage 0 sends no gradient, and stage 1 at once"
    assert [c.phases for c in chunks if c.stage == 1][:1] == [(FORWARD, BACKWARD)]


RECOMPUTES = """2-1f1b stages=2 microbatches=4
rank 0: F0.0 F0.1 R0.0 B0.0 F0.2 R0.1 B0.1 F0.3 R0.2 B0.2 R0.3 B0.3
rank 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3"""


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("fast", r"name of .*; this one knows gpipe, .* and the plan has 'fast': import the mod"),
        ("zb-v", "one of pipesched's names or texts"),
        ("inference", "inference has no backwards: take one of gpipe"),
        (RECOMPUTES, "2-1f1b has recompute actions: use jax.checkpoint in the step"),
        (str(pipesched.make("1f1b", 3, 4)), "got 3 stages and 4 microbatches for 2 and 4"),
    ],
)
def test_rejects_schedules_that_do_not_run(schedule: str, message: str) -> None:
    step = layered("mlp", 4)
    n_stages = 1 if schedule == "zb-v" else 2
    plan = random_plan(step, MESHES[:n_stages], random.Random(0), schedule)
    with pytest.raises(PlanError, match=message):
        schedule_of(plan)


def test_rejects_schedules_that_leave_a_copy_alone_with_a_microbatch() -> None:
    plan = random_plan(layered("mlp", 2), MESHES[:2], random.Random(0), "chimera")
    with pytest.raises(PlanError, match="chimera has 2 copies and 2 microbatches: take 4 or more"):
        schedule_of(plan)


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_lists_are_deterministic(name: str) -> None:
    step = layered("tied", 4)
    plan = random_plan(step, (*MESHES, MESHES[0]), random.Random(1), name)
    first, second = (build_program(step.step, plan).ranks for _ in range(2))
    assert first == second


def test_loads_and_runs_print_value_and_microbatch() -> None:
    step = layered("mlp", 2)
    plan = random_plan(step, MESHES[:1], random.Random(0))
    (rank,) = build_program(step.step, plan).ranks
    texts = [str(item) for item in rank if isinstance(item, Load | Run)]
    assert "LOAD batch['x'].0" in texts
    assert "RUN chunk 0.1" in texts
    assert texts[-1] == "RUN chunk 1"
