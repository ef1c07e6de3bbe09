"""Checks any program. It shares no code with `pipesched.lower`.

The instructions of a program follow from its edges, sizes and placement, and from its runs; each is
there once. So the rules only say where an instruction is and what it comes after:

- completeness: every stage runs every microbatch forward and, in training, backward, whole or in
  two parts; there may be a recomputation in between. Every other instruction that these runs need
  is there once on each rank of its stage, and there is no other instruction.
- placement: an instruction is on the rank that has its stage on the route of its microbatch.
- result: a send or accumulation comes after its run and before the next run of the rank, because
  the result of a run lives only until then.
- buffer: a buffer is there when a run uses it, and is freed only afterwards.
- update: the gradients of a stage are reduced after all are accumulated, and applied after they are
  reduced.
- stream: the messages of an edge from one rank to another are received in the order in which they
  are sent.
- deadlock: there is no circle of ranks that wait for each other's messages, or for each other to
  reduce.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from pipesched.base.action import Action
from pipesched.base.checks import check_kind
from pipesched.base.edge import Edge, checked_edges
from pipesched.base.kind import Kind
from pipesched.judge.broken import ProgramError
from pipesched.schedule.program import (
    Accumulate,
    Apply,
    Free,
    Instruction,
    Program,
    Receive,
    Received,
    Reduce,
    Run,
    Saved,
    Send,
)

_Wanted = dict[tuple[int, Instruction], None]  # (rank, instruction), ordered as errors report them
_Positions = dict[tuple[int, Instruction], int]
_Stream = tuple[Edge, int, int]  # edge, sender, receiver
_Precedence = tuple[str, int, Instruction, Instruction]  # rule, rank, earlier, later


def check_program(program: Program) -> None:
    """Accept a program that runs everything once, in an order that is safe and never deadlocks.

    Raises:
        ProgramError: The program breaks a rule; the error has the rule, rank, position and
            instruction.
        EdgeError: An edge leaves the pipeline, or is there twice.
    """
    check_kind("program", program, Program)
    checked_edges(program.edges, program.n_stages)
    work = _Work(program)
    positions = _check_completeness_and_placement(program, dict.fromkeys(work.wanted()))
    _check_results(program)
    for rule, rank, earlier, later in work.precedences():
        if positions[rank, earlier] > positions[rank, later]:
            position = positions[rank, later]
            raise ProgramError(
                f"{later} comes after {earlier}; got them at positions {position} and "
                f"{positions[rank, earlier]} of rank {rank}",
                rule=rule,
                rank=rank,
                position=position,
                instruction=later,
            )
    _check_streams(program)
    _check_deadlock(program)


class _Work:
    """The instructions that a program needs, given the kinds of backward that it runs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.runs = {
            instruction.action
            for instructions in program.ranks
            for instruction in instructions
            if isinstance(instruction, Run)
        }

    def each(self) -> Iterator[tuple[int, int, int]]:
        """Every stage and microbatch, with the rank that runs this stage on this microbatch."""
        for stage in range(self.program.n_stages):
            for m in range(self.program.n_microbatches):
                yield stage, m, self.program.placement.rank(stage, m)

    def chain(self, stage: int, m: int) -> list[Run]:
        """The runs of a stage on a microbatch, in order."""
        kinds = [Kind.FORWARD]
        if self.program.backward:
            if Action(Kind.RECOMPUTE, stage, m) in self.runs:
                kinds.append(Kind.RECOMPUTE)
            parts = [Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT]
            split = any(Action(kind, stage, m) in self.runs for kind in parts)
            kinds += parts if split else [Kind.BACKWARD]
        return [Run(Action(kind, stage, m)) for kind in kinds]

    def user(self, edge: Edge, m: int) -> Run:
        """The run that uses the message of the edge."""
        kind, stage = edge.dst
        if kind is Kind.FORWARD:
            return Run(Action(kind, stage, m))
        return next(
            run
            for run in self.chain(stage, m)
            if run.action.kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT)
        )

    def saved(self, stage: int, m: int) -> Iterator[tuple[Run, Run, Saved]]:
        """Each buffer that runs of the stage save for later ones: (producer, last user, buffer)."""
        if self.program.backward:
            *_, last = chain = self.chain(stage, m)
            gradient = chain[-2] if last.action.kind is Kind.WEIGHT_GRADIENT else last
            for run in chain[: chain.index(gradient)]:
                yield run, gradient, Saved(run.action.kind, stage, m)
            if gradient != last:
                yield gradient, last, Saved(gradient.action.kind, stage, m)

    def wanted(self) -> Iterator[tuple[int, Instruction]]:
        """Every instruction of the program, with its rank."""
        for stage, m, rank in self.each():
            for run in self.chain(stage, m):
                yield rank, run
            for _, _, buffer in self.saved(stage, m):
                yield rank, Free(buffer)
            if self.program.backward:
                yield rank, Accumulate(stage, m)
        if self.program.backward:
            for stage in range(self.program.n_stages):
                for rank in self.program.placement.ranks_of(stage):
                    yield rank, Reduce(stage)
                    yield rank, Apply(stage)
        for edge in self.program.edges:
            for m in range(self.program.n_microbatches):
                sender, receiver = self.ends(edge, m)
                yield sender, Send(edge, m, receiver)
                yield receiver, Receive(edge, m, sender)
                yield receiver, Free(Received(edge, m))

    def precedences(self) -> Iterator[_Precedence]:
        """All pairs of instructions of one rank of which the first must come before the second."""
        for stage, m, rank in self.each():
            for producer, user, buffer in self.saved(stage, m):
                yield "buffer", rank, producer, user
                yield "buffer", rank, user, Free(buffer)
            chain = self.chain(stage, m)
            for earlier, later in pairwise(chain):
                yield "buffer", rank, earlier, later
            if self.program.backward:
                yield "update", rank, Accumulate(stage, m), Reduce(stage)
        if self.program.backward:
            for stage in range(self.program.n_stages):
                for rank in self.program.placement.ranks_of(stage):
                    yield "update", rank, Reduce(stage), Apply(stage)
        for edge in self.program.edges:
            for m in range(self.program.n_microbatches):
                sender, receiver = self.ends(edge, m)
                user = self.user(edge, m)
                yield "buffer", receiver, Receive(edge, m, sender), user
                yield "buffer", receiver, user, Free(Received(edge, m))

    def ends(self, edge: Edge, m: int) -> tuple[int, int]:
        """The ranks that send and receive the message."""
        rank_of = self.program.placement.rank
        return rank_of(edge.src[1], m), rank_of(edge.dst[1], m)


def _check_completeness_and_placement(program: Program, wanted: _Wanted) -> _Positions:
    rank_of: dict[Instruction, int] = {}
    for rank, instruction in wanted:
        rank_of.setdefault(instruction, rank)
    positions: _Positions = {}
    for rank, instructions in enumerate(program.ranks):
        for position, instruction in enumerate(instructions):
            if (rank, instruction) in positions:
                rule, message = "completeness", f"{instruction} is there twice"
            elif (rank, instruction) in wanted:
                positions[rank, instruction] = position
                continue
            elif instruction in rank_of:
                rule, message = "placement", f"{instruction} belongs to rank {rank_of[instruction]}"
            else:
                rule, message = "completeness", f"edges, sizes and runs need no {instruction}"
            raise ProgramError(
                f"{message}; got it at rank {rank}, position {position}",
                rule=rule,
                rank=rank,
                position=position,
                instruction=instruction,
            )
    for rank, instruction in wanted:
        if (rank, instruction) not in positions:
            raise ProgramError(
                f"edges, sizes and runs need {instruction} on rank {rank}; got none",
                rule="completeness",
                rank=rank,
                position=None,
                instruction=instruction,
            )
    return positions


def _producers(instruction: Send | Accumulate) -> list[Action]:
    """The runs of which one must have produced the result that the instruction uses."""
    if isinstance(instruction, Accumulate):
        stage, kinds = instruction.stage, [Kind.BACKWARD, Kind.WEIGHT_GRADIENT]
    else:
        kind, stage = instruction.edge.src
        kinds = [kind] if kind is Kind.FORWARD else [Kind.BACKWARD, Kind.INPUT_GRADIENT]
    return [Action(kind, stage, instruction.microbatch) for kind in kinds]


def _check_results(program: Program) -> None:
    for rank, instructions in enumerate(program.ranks):
        last_run: Action | None = None
        for position, instruction in enumerate(instructions):
            if isinstance(instruction, Run):
                last_run = instruction.action
            elif isinstance(instruction, Send | Accumulate):
                producers = _producers(instruction)
                if last_run not in producers:
                    raise ProgramError(
                        f"{instruction} needs the result of {' or '.join(map(str, producers))}, "
                        "which lives until the next run; got it at rank "
                        f"{rank}, position {position}, "
                        + (f"after the run of {last_run}" if last_run else "before any run"),
                        rule="result",
                        rank=rank,
                        position=position,
                        instruction=instruction,
                    )


def _check_streams(program: Program) -> None:
    sent: dict[_Stream, list[int]] = {}
    for rank, instructions in enumerate(program.ranks):
        for instruction in instructions:
            if isinstance(instruction, Send):
                stream = instruction.edge, rank, instruction.peer
                sent.setdefault(stream, []).append(instruction.microbatch)
    streams = {stream: iter(microbatches) for stream, microbatches in sent.items()}
    for rank, instructions in enumerate(program.ranks):
        for position, instruction in enumerate(instructions):
            if not isinstance(instruction, Receive):
                continue
            stream = instruction.edge, instruction.peer, rank
            next_sent = next(streams[stream])
            if next_sent != instruction.microbatch:
                raise ProgramError(
                    "the messages of an edge are received in the order they are sent in; got "
                    f"{instruction} at rank {rank}, position {position}, where microbatch "
                    f"{next_sent} arrives (sent in the order {sent[stream]})",
                    rule="stream",
                    rank=rank,
                    position=position,
                    instruction=instruction,
                )


def _check_deadlock(program: Program) -> None:
    sent: set[tuple[Edge, int]] = set()
    heads = [0] * len(program.ranks)
    at_reduce: set[tuple[int, int]] = set()  # rank and stage

    def waits(rank: int, instruction: Instruction) -> bool:
        match instruction:
            case Receive(edge, microbatch, _):
                return (edge, microbatch) not in sent
            case Reduce(stage):
                at_reduce.add((rank, stage))
                copies = program.placement.ranks_of(stage)
                return not all((copy, stage) in at_reduce for copy in copies)
            case Send(edge, microbatch, _):
                sent.add((edge, microbatch))
        return False

    advanced = True
    while advanced:
        advanced = False
        for rank, instructions in enumerate(program.ranks):
            while heads[rank] < len(instructions) and not waits(rank, instructions[heads[rank]]):
                heads[rank] += 1
                advanced = True
    for rank, instructions in enumerate(program.ranks):
        if heads[rank] < len(instructions):
            instruction = instructions[heads[rank]]
            raise ProgramError(
                f"the ranks wait for each other; got rank {rank} stuck at position {heads[rank]}, "
                f"at {instruction}",
                rule="deadlock",
                rank=rank,
                position=heads[rank],
                instruction=instruction,
            )
