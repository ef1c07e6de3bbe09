"""Judge a program, whoever made it. Shares no code with `pipesched.lower`.

What a program must hold follows from its edges and sizes, each instruction once, so the rules
come down to where an instruction is and what it comes after:

- completeness: every instruction that the edges and sizes ask for is there once, and no other.
- placement: it is on the rank that runs its stage.
- result: a send or accumulation comes after its run and before the rank's next run, since the
  result of a run lives no longer.
- buffer: what a run uses is there, and is freed only after it.
- update: a stage's gradients are reduced when all are accumulated, and applied when reduced.
- stream: an edge's messages are received in the order in which they are sent.
- deadlock: no ranks wait for each other's messages in a circle.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipesched.action import Action
from pipesched.edge import Edge, checked_edges
from pipesched.errors import ProgramError
from pipesched.kind import Kind
from pipesched.program import (
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

_Places = dict[Instruction, tuple[int, int]]  # rank and position


def check_program(program: Program) -> None:
    """Accept a program that runs everything once, in an order that is safe and never gets stuck.

    Raises:
        ProgramError: The program breaks a rule; names the rule, rank, position and instruction.
        EdgeError: The program's edges leave its pipeline, or are there twice.
    """
    checked_edges(program.edges, program.n_stages)
    homes = _homes(program)
    places = _check_completeness_and_placement(program, homes)
    _check_results(program)
    for rule, earlier, later in _precedences(program, homes):
        if places[earlier] > places[later]:
            rank, position = places[later]
            raise ProgramError(
                f"{later} comes after {earlier}; got them at positions {position} and "
                f"{places[earlier][1]} of rank {rank}",
                rule=rule,
                rank=rank,
                position=position,
                instruction=later,
            )
    _check_streams(program)
    _check_deadlock(program)


def _homes(program: Program) -> tuple[int, ...]:
    """The rank of each stage: the first that runs it."""
    homes: dict[int, int] = {}
    for rank, instructions in enumerate(program.ranks):
        for instruction in instructions:
            if isinstance(instruction, Run):
                homes.setdefault(instruction.action.stage, rank)
    for stage in range(program.n_stages):
        if stage not in homes:
            raise _missing(Run(Action(Kind.FORWARD, stage, 0)))
    return tuple(homes[stage] for stage in range(program.n_stages))


def _wanted(program: Program, homes: tuple[int, ...]) -> Iterator[tuple[int, Instruction]]:
    """Every instruction of the program, with its rank."""
    for stage, home in enumerate(homes):
        for m in range(program.n_microbatches):
            yield home, Run(Action(Kind.FORWARD, stage, m))
            yield home, Run(Action(Kind.BACKWARD, stage, m))
            yield home, Free(Saved(stage, m))
            yield home, Accumulate(stage, m)
        yield home, Reduce(stage)
        yield home, Apply(stage)
    for edge in program.edges:
        sender, receiver = homes[edge.src[1]], homes[edge.dst[1]]
        for m in range(program.n_microbatches):
            yield sender, Send(edge, m, receiver)
            yield receiver, Receive(edge, m, sender)
            yield receiver, Free(Received(edge, m))


def _check_completeness_and_placement(program: Program, homes: tuple[int, ...]) -> _Places:
    wanted = {instruction: rank for rank, instruction in _wanted(program, homes)}
    places: _Places = {}
    for rank, instructions in enumerate(program.ranks):
        for position, instruction in enumerate(instructions):
            if instruction not in wanted:
                rule, message = "completeness", f"the edges and sizes ask for no {instruction}"
            elif instruction in places:
                rule, message = "completeness", f"{instruction} is there twice"
            elif rank != wanted[instruction]:
                rule, message = "placement", f"{instruction} belongs to rank {wanted[instruction]}"
            else:
                places[instruction] = (rank, position)
                continue
            raise ProgramError(
                f"{message}; got it at rank {rank}, position {position}",
                rule=rule,
                rank=rank,
                position=position,
                instruction=instruction,
            )
    for instruction in wanted:
        if instruction not in places:
            raise _missing(instruction)
    return places


def _missing(instruction: Instruction) -> ProgramError:
    return ProgramError(
        f"the edges and sizes ask for {instruction}; got none",
        rule="completeness",
        rank=None,
        position=None,
        instruction=instruction,
    )


def _check_results(program: Program) -> None:
    for rank, instructions in enumerate(program.ranks):
        last_run: Action | None = None
        for position, instruction in enumerate(instructions):
            if isinstance(instruction, Run):
                last_run = instruction.action
                continue
            if isinstance(instruction, Send):
                made_by = Action(*instruction.edge.src, instruction.microbatch)
            elif isinstance(instruction, Accumulate):
                made_by = Action(Kind.BACKWARD, instruction.stage, instruction.microbatch)
            else:
                continue
            if made_by != last_run:
                raise ProgramError(
                    f"{instruction} needs the result of {made_by}, which lives until the next run; "
                    f"got it at rank {rank}, position {position}, "
                    + (f"after the run of {last_run}" if last_run else "before any run"),
                    rule="result",
                    rank=rank,
                    position=position,
                    instruction=instruction,
                )


def _precedences(
    program: Program, homes: tuple[int, ...]
) -> Iterator[tuple[str, Instruction, Instruction]]:
    """Each (rule, earlier, later) that must hold between two instructions of one rank."""
    for stage in range(program.n_stages):
        for m in range(program.n_microbatches):
            backward = Run(Action(Kind.BACKWARD, stage, m))
            yield "buffer", Run(Action(Kind.FORWARD, stage, m)), backward
            yield "buffer", backward, Free(Saved(stage, m))
            yield "update", Accumulate(stage, m), Reduce(stage)
        yield "update", Reduce(stage), Apply(stage)
    for edge in program.edges:
        for m in range(program.n_microbatches):
            user = Run(Action(*edge.dst, m))
            yield "buffer", Receive(edge, m, homes[edge.src[1]]), user
            yield "buffer", user, Free(Received(edge, m))


def _check_streams(program: Program) -> None:
    sent: dict[Edge, list[int]] = {edge: [] for edge in program.edges}
    for instructions in program.ranks:
        for instruction in instructions:
            if isinstance(instruction, Send):
                sent[instruction.edge].append(instruction.microbatch)
    streams = {edge: iter(microbatches) for edge, microbatches in sent.items()}
    for rank, instructions in enumerate(program.ranks):
        for position, instruction in enumerate(instructions):
            if not isinstance(instruction, Receive):
                continue
            next_sent = next(streams[instruction.edge])
            if next_sent != instruction.microbatch:
                raise ProgramError(
                    "messages are received in the order in which they are sent; got "
                    f"{instruction} at rank {rank}, position {position}, where microbatch "
                    f"{next_sent} comes (sent in the order {sent[instruction.edge]})",
                    rule="stream",
                    rank=rank,
                    position=position,
                    instruction=instruction,
                )


def _check_deadlock(program: Program) -> None:
    sent: set[tuple[Edge, int]] = set()
    heads = [0] * len(program.ranks)
    advanced = True
    while advanced:
        advanced = False
        for rank, instructions in enumerate(program.ranks):
            while heads[rank] < len(instructions):
                instruction = instructions[heads[rank]]
                if isinstance(instruction, Receive):
                    if (instruction.edge, instruction.microbatch) not in sent:
                        break
                elif isinstance(instruction, Send):
                    sent.add((instruction.edge, instruction.microbatch))
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
