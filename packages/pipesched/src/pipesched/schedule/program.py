"""Programs: a static list of instructions for each rank, as in Alpa (OSDI 2022, section 6)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import index

from pipesched.base import versioned
from pipesched.base.action import Action
from pipesched.base.checks import check_kind, check_sizes, match
from pipesched.base.edge import Edge
from pipesched.base.kind import Kind
from pipesched.base.placement import Placement
from pipesched.base.versioned import Reader, read_all, read_text, read_truth
from pipesched.errors import ArgumentError, ParseError


@dataclass(frozen=True, slots=True)
class Saved:
    """The buffer that a run keeps for a later run of its stage: `<kind><stage>.<microbatch>`.

    A forward (F) keeps the activations for the backward or, if they are recomputed, the inputs of
    the recomputation. A recomputation (R) keeps the recomputed activations. An input gradient (I)
    keeps what the weight gradient still needs.
    """

    kind: Kind
    """FORWARD, RECOMPUTE or INPUT_GRADIENT."""
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Received:
    """The buffer of a received message: `<edge>.<microbatch>`."""

    edge: Edge
    microbatch: int

    def __str__(self) -> str:
        return f"{self.edge}.{self.microbatch}"


Buffer = Saved | Received
"""What instructions read and write: what a forward saved, or what another stage sent."""


@dataclass(frozen=True, slots=True)
class Run:
    """Compute, using the messages of its edges and what earlier runs of its stage saved for it."""

    action: Action

    def __str__(self) -> str:
        return f"RUN {self.action}"


@dataclass(frozen=True, slots=True)
class Send:
    """Start to send the result of the last run over `edge`; do not wait until it has arrived."""

    edge: Edge
    microbatch: int
    peer: int
    """The rank that receives; the sender itself, if both stages of the edge are on one rank."""

    def __str__(self) -> str:
        return f"SEND {self.edge}.{self.microbatch} to {self.peer}"


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the next message of `edge`, and keep it in a buffer."""

    edge: Edge
    microbatch: int
    peer: int
    """The rank that sends."""

    def __str__(self) -> str:
        return f"RECV {self.edge}.{self.microbatch} from {self.peer}"


@dataclass(frozen=True, slots=True)
class Free:
    """Free a buffer that nothing uses any more."""

    buffer: Buffer

    def __str__(self) -> str:
        return f"FREE {self.buffer}"


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Add the gradients of the last run (a backward or weight gradient) to those of the stage."""

    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"ACCUMULATE {self.stage}.{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce the accumulated gradients of the stage, with the collectives that run once a step.

    Copies of a stage on several ranks do this together.
    """

    stage: int

    def __str__(self) -> str:
        return f"REDUCE {self.stage}"


@dataclass(frozen=True, slots=True)
class Apply:
    """Update the stage's parameters and optimizer state."""

    stage: int

    def __str__(self) -> str:
        return f"APPLY {self.stage}"


Instruction = Run | Send | Receive | Free | Accumulate | Reduce | Apply
"""One thing that a stage does, with the buffers that it reads and writes."""


@dataclass(frozen=True, slots=True)
class Program:
    """For each rank, the instructions in the order in which it executes them.

    Each edge is a separate stream between two ranks: its messages arrive in the order in which they
    were sent, and no send waits for its receiver. `pipesched.check_program` verifies a program.

    Raises:
        ArgumentError: The sizes are not allowed, `ranks` has something that is not an instruction,
            or the placement is for other stages, microbatches or ranks.
    """

    name: str
    """The name of the schedule that it was lowered from."""
    n_stages: int
    """Number of stages."""
    n_microbatches: int
    """Number of microbatches."""
    edges: tuple[Edge, ...]
    """The results that stages send to each other for every microbatch."""
    ranks: tuple[tuple[Instruction, ...], ...]
    """The instructions of rank 0, of rank 1, ..., each in order."""
    placement: Placement
    """The rank that runs each stage, for each microbatch."""
    backward: bool = True
    """Whether this is training; if not, there are only forwards, which save nothing."""

    def __post_init__(self) -> None:
        check_sizes(self.n_stages, self.n_microbatches)
        check_kind("placement", self.placement, Placement)
        check_kind("ranks", self.ranks, tuple)
        for instructions in self.ranks:
            check_kind("a rank's instructions", instructions, tuple)
            for instruction in instructions:
                if not isinstance(instruction, Instruction):
                    raise ArgumentError(f"a rank has instructions; got {instruction!r:.60}")
        self.placement.check_fits(self.n_stages, self.n_microbatches, len(self.ranks))

    def __str__(self) -> str:
        lines = [f"{self.name} stages={self.n_stages} microbatches={self.n_microbatches}"]
        for rank, instructions in enumerate(self.ranks):
            lines.append(f"rank {rank}:")
            lines.extend(f"  {instruction}" for instruction in instructions)
        return "\n".join(lines)

    def to_json(self) -> str:
        """A JSON object with a version and the fields; instructions, edges and others are texts."""
        return versioned.write(self, _FIELDS)

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Read what `to_json` writes.

        Raises:
            ParseError: The text is not JSON, or not that of a program of this version.
            ArgumentError: The placement is not allowed.
            EdgeError: An edge is not allowed.
        """
        return versioned.read("a program", cls, _FIELDS, text)


_EDGE = r"(?P<edge>[FB]\d{1,9}->[FB]\d{1,9})\.(?P<of>\d{1,9})"
_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Instruction]], ...] = tuple(
    (re.compile(pattern, re.ASCII), build)
    for pattern, build in (
        (r"RUN (\S+)", lambda m: Run(Action.parse(m[1]))),
        (
            rf"SEND {_EDGE} to (\d{{1,9}})",
            lambda m: Send(Edge.parse(m["edge"]), int(m["of"]), int(m[3])),
        ),
        (
            rf"RECV {_EDGE} from (\d{{1,9}})",
            lambda m: Receive(Edge.parse(m["edge"]), int(m["of"]), int(m[3])),
        ),
        (rf"FREE {_EDGE}", lambda m: Free(Received(Edge.parse(m["edge"]), int(m["of"])))),
        (
            r"FREE ([FRI])(\d{1,9})\.(\d{1,9})",
            lambda m: Free(Saved(Kind(m[1]), int(m[2]), int(m[3]))),
        ),
        (r"ACCUMULATE (\d{1,9})\.(\d{1,9})", lambda m: Accumulate(int(m[1]), int(m[2]))),
        (r"REDUCE (\d{1,9})", lambda m: Reduce(int(m[1]))),
        (r"APPLY (\d{1,9})", lambda m: Apply(int(m[1]))),
    )
)


def parse_instruction(text: str) -> Instruction:
    """Read what `str` of an instruction prints.

    Raises:
        ParseError: The text is not an instruction.
        EdgeError: The text has an edge that is not allowed.
    """
    for pattern, build in _FORMS:
        parts = match(pattern, text)
        if parts is not None:
            return build(parts)
    raise ParseError(
        "an instruction reads RUN, SEND, RECV, FREE, ACCUMULATE, REDUCE or APPLY, and then what it "
        f"is for, as SEND F0->F1.2 to 1; got {text!r}"
    )


_FIELDS: dict[str, Reader] = {
    "name": read_text,
    "n_stages": index,
    "n_microbatches": index,
    "edges": partial(read_all, Edge.parse),
    "ranks": partial(read_all, partial(read_all, parse_instruction)),
    "placement": Placement.parse,
    "backward": read_truth,
}
