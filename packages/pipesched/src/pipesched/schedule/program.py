"""What each rank executes: a static list of instructions, after Alpa (OSDI 2022, section 6)."""

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
    """What a run keeps for a later run of its stage: the buffer `<kind><stage>.<microbatch>`.

    A forward (F) keeps activations for the backward or, if they are recomputed, what that needs.
    A recomputation (R) makes the rest of them again. An input gradient (I) keeps what the weight
    gradient still needs.
    """

    kind: Kind
    """FORWARD, RECOMPUTE or INPUT_GRADIENT."""
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Received:
    """What an edge has brought: the buffer `<edge>.<microbatch>`."""

    edge: Edge
    microbatch: int

    def __str__(self) -> str:
        return f"{self.edge}.{self.microbatch}"


Buffer = Saved | Received


@dataclass(frozen=True, slots=True)
class Run:
    """Compute. Uses what its edges brought and what earlier runs of its stage saved for it."""

    action: Action

    def __str__(self) -> str:
        return f"RUN {self.action}"


@dataclass(frozen=True, slots=True)
class Send:
    """Start to send the last run's result for `edge`; do not wait until it has arrived."""

    edge: Edge
    microbatch: int
    peer: int
    """The rank that receives; may be the sender, if a rank has several stages."""

    def __str__(self) -> str:
        return f"SEND {self.edge}.{self.microbatch} to {self.peer}"


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the next message of `edge`, and keep it."""

    edge: Edge
    microbatch: int
    peer: int
    """The rank that sends."""

    def __str__(self) -> str:
        return f"RECV {self.edge}.{self.microbatch} from {self.peer}"


@dataclass(frozen=True, slots=True)
class Free:
    """Let go of a buffer; nothing uses it any more."""

    buffer: Buffer

    def __str__(self) -> str:
        return f"FREE {self.buffer}"


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Add the gradients of the last run, a backward or weight gradient, to those of the stage."""

    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"ACCUMULATE {self.stage}.{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Reduce:
    """Finish the stage's accumulated gradients: the collectives that are paid once a step.

    Copies of a stage on several ranks do it together.
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


@dataclass(frozen=True, slots=True)
class Program:
    """Per rank, the instructions in the order in which it executes them.

    An edge is a stream of its own between every two ranks: its messages arrive in the order in
    which they were sent, and no send waits for its receiver. `pipesched.check_program` judges a
    program.

    Raises:
        ArgumentError: Sizes that no pipeline has, anything but instructions, or a placement of
            other stages, microbatches or ranks.
    """

    name: str
    """The schedule it was made from."""
    n_stages: int
    """Parts of the model."""
    n_microbatches: int
    """Parts of the batch."""
    edges: tuple[Edge, ...]
    """What stages send to each other for every microbatch."""
    ranks: tuple[tuple[Instruction, ...], ...]
    """The instructions of rank 0, of rank 1, ..., each in order."""
    placement: Placement
    """Which rank runs which stage, for which microbatch."""
    backward: bool = True
    """Whether it trains; if not, it runs forwards only, which keep nothing."""

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
        """A JSON object with the fields' names, and a version; all but numbers as text."""
        return versioned.write(self, _FIELDS)

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Read what `to_json` writes.

        Raises:
            ParseError: The text is not JSON, or not of a program, or of another version.
            ArgumentError: A placement that cannot be.
            EdgeError: An edge that cannot be.
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
        ParseError: Anything else.
        EdgeError: An edge that cannot be.
    """
    for pattern, build in _FORMS:
        found = match(pattern, text)
        if found is not None:
            return build(found)
    raise ParseError(
        "an instruction reads RUN, SEND, RECV, FREE, ACCUMULATE, REDUCE or APPLY and what it is "
        f"of, as SEND F0->F1.2 to 1; got {text!r}"
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
