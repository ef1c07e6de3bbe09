"""Bound instructions, run on terms in place of tensors, compute what the step is.

A term says how a value came about: which operator, of which terms; sums over microbatches are the
terms that were added, in any order. So what the processes of a plan make of a step is compared with
the step itself, microbatch by microbatch on one device, without a number.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from frontends.errors import PlanError
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import LayeredStep, layer
from frontends.layers.replicas import copied_as
from frontends.plan.plan_fields import ShardedOperator, Stored, Transfer
from frontends.plan.schedule import copy_at, names_that_run, schedule_of
from frontends.program.chunks import stages_of_operators
from frontends.program.program import LoweredPlan, build_program
from frontends.program.register_allocation import Binder, find_dying
from frontends.program.state_locations import find_placed, find_results
from frontends.step.step import APPLY, TrainingStep
from frontends.testing import random_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh

MESHES = (
    Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)),
    Mesh((2,), ("x",), (4, 5)),
    Mesh((1,), ("x",), (6,)),
)


@cache
def layered(name: str, microbatches: int) -> LayeredStep:
    return layer(EXAMPLES[name]().trace(microbatches).step, 4)


class Terms:
    """Terms by number, equal ones once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._addends: dict[int, tuple[int, ...]] = {}

    def __call__(self, *term: object) -> int:
        return self._numbers.setdefault(term, len(self._numbers))

    def total(self, addends: Iterable[int]) -> int:
        """A sum of terms; of one term, that term."""
        ordered = tuple(sorted(addends))
        if len(ordered) == 1:
            return ordered[0]
        number = self("total", ordered)
        self._addends[number] = ordered
        return number

    def added(self, total: int, addend: int) -> int:
        return self.total((*self._addends.get(total, (total,)), addend))


def expected(terms: Terms, program: LoweredPlan) -> dict[str, int]:
    """The outputs of a step, computed one microbatch after the other."""
    step, schedule = program.step, program.schedule
    stage_of = stages_of_operators(program.plan)
    given = arguments(terms, step)
    batch = [value.name for value in step.graph.values if value.role == "batch"]
    made: dict[str, set[int]] = defaultdict(set)
    sums: dict[str, list[int]] = {name: [] for name in step.summed}
    for microbatch in range(step.microbatches):
        here = given | {name: terms("part", given[name], microbatch) for name in batch}
        for op in step.graph.operators:
            first = stage_of[op.name] % schedule.n_stages
            if op.phase == APPLY or copy_at(schedule, first, microbatch) != stage_of[op.name]:
                continue
            operands = tuple(here[name] for name in op.inputs)
            for i, name in enumerate(op.outputs):
                here[name] = terms(op.name, i, operands)
                made[name].add(here[name])
                if name in sums:
                    sums[name].append(here[name])
    # apply reads nothing of the microbatches but sums, and what is the same in all of them
    once = given | {name: found.pop() for name, found in made.items() if len(found) == 1}
    once |= {name: terms.total(addends) for name, addends in sums.items()}
    for op in step.graph.operators:
        if op.phase == APPLY:
            operands = tuple(once[name] for name in op.inputs)
            once.update((name, terms(op.name, i, operands)) for i, name in enumerate(op.outputs))
    return {output.value: once[output.value] for output in step.graph.outputs}


def arguments(terms: Terms, step: TrainingStep) -> dict[str, int]:
    """What there is before a step."""
    return {name: terms("argument", name) for name in step.graph.inputs}


class TermEngine:
    """Executes on terms; is asked by `Binder` what it asks JAX's engine, and PyTorch's."""

    def __init__(self, terms: Terms, program: LoweredPlan, process_of: Mapping[int, int]) -> None:
        self._terms, self._chunks, self._process_of = terms, program.chunks, process_of
        self._operators = {op.name: op for op in program.step.graph.operators}

    def processes(self, mesh: Mesh) -> frozenset[int]:
        return frozenset(self._process_of[device] for device in mesh.device_ids)

    def loader(self, stage: int, slot: Stored, microbatch: int) -> Callable[[Any], Any]:
        return lambda value: self._terms("part", value, microbatch)

    def zeros(self, chunk: int) -> Callable[[], Sequence[Any]]:
        return lambda: [self._terms.total(()) for _ in self._chunks[chunk].totals]

    def program(self, chunk: int) -> Callable[[list[Any]], Sequence[Any]]:
        what = self._chunks[chunk]

        def run(operands: list[Any]) -> Sequence[Any]:
            assert None not in operands, f"{what} reads what is gone"
            totals, reads = operands[: len(what.totals)], operands[len(what.totals) :]
            there = dict(zip(what.reads, reads, strict=True))
            for action in what.actions:
                if isinstance(action, ShardedOperator):
                    op = self._operators[action.operator]
                    read = tuple(map(Stored, op.inputs, action.operands))
                    operator_reads = tuple(there[slot] for slot in read)
                    for i, slot in enumerate(map(Stored, op.outputs, action.results)):
                        there[slot] = self._terms(op.name, i, operator_reads)
                else:
                    converted = there[Stored(action.value, action.src)]
                    there[Stored(action.value, action.dst)] = converted
            parts = zip(totals, what.totals, strict=True)
            sums = [self._terms.added(total, there[slot]) for total, slot in parts]
            return [*sums, *(there[slot] for slot in what.writes)]

        return run

    def sharder(self, stage: int, slot: Stored) -> Callable[[Any], Any]:
        return lambda value: {0: value}

    def assembler(self, stage: int, slot: Stored) -> Callable[[Any], Any]:
        return lambda shards: shards[0]

    def mover(self, transfer: Transfer) -> Callable[[Any], Any]:
        return lambda value: value


class Letters:
    """Mail that arrives at once, and is fetched once."""

    def __init__(self) -> None:
        self.under_way: dict[tuple[int, int | None], Any] = {}

    def send(self, transfer: int, microbatch: int | None, shards: Any) -> None:
        assert (transfer, microbatch) not in self.under_way
        self.under_way[transfer, microbatch] = shards

    def receive(self, transfer: int, microbatch: int | None) -> Any:
        return self.under_way.pop((transfer, microbatch))


@settings(max_examples=settings().max_examples // 4)
@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.sampled_from([1, 4]),
    st.sampled_from(names_that_run()),
    st.lists(st.sampled_from(MESHES), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
def test_processes_compute_the_step_and_keep_nothing_else(
    name: str, microbatches: int, schedule: str, meshes: list[Mesh], n_processes: int, seed: int
) -> None:
    rng = random.Random(seed)
    step = layered(name, microbatches)
    plan = random_plan(step, meshes, rng, schedule)
    try:
        schedule_of(plan)
    except PlanError:
        return  # not defined for these sizes
    program = build_program(copied_as(step, plan).layered.step, plan)
    process_of_mesh = {mesh: rng.randrange(n_processes) for mesh in MESHES}
    process_of = {d: process for mesh, process in process_of_mesh.items() for d in mesh.device_ids}
    process_of_stage = [process_of_mesh[stage.mesh] for stage in plan.stages]
    graph = program.step.graph
    state = [name for name in graph.inputs if graph.value(name).role != "batch"]
    placed = find_placed(plan, state[::2], state[1::2])  # to whom they belong makes no difference
    assert len(placed) == len(set(placed))
    kept = {result.key for result in find_results(program).values()}
    given = [key for key in placed if rng.random() < 0.5]

    terms, letters = Terms(), Letters()
    begin = arguments(terms, program.step)
    registers: list[dict[int, Any]] = []
    names: list[dict[int, object]] = []
    calls: list[tuple[int, int, Callable[[Any], None]]] = []
    for process in range(n_processes):
        engine = TermEngine(terms, program, process_of)
        binder = Binder(program, engine, find_dying(program, given), [], letters)
        is_local = {i: process == at for i, at in enumerate(process_of_stage)}
        calls += [(place, process, call) for place, call in binder.bind_all(is_local)]
        names.append({number: key for key, number in binder.registers.items()})
        registers.append({})
        for number, key in names[-1].items():
            if isinstance(key, tuple) and key[0] == "batch":
                registers[-1][number] = begin[key[1]]
            elif key in placed:
                registers[-1][number] = begin[key[1].value]
    for _, process, call in sorted(calls, key=lambda item: item[:2]):
        call(registers[process])

    found: dict[str, Any] = {}
    for process, values in enumerate(registers):
        for number, key in names[process].items():
            if key in kept:
                found[key[1].value] = values.get(number)
            elif key not in placed and key[0] != "batch":
                assert values.get(number) is None, f"{key} is still there after the step"
    assert found == expected(terms, program)
    assert not letters.under_way
