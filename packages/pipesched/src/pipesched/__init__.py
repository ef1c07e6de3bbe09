"""Pipeline schedules: generate, check, simulate, lower to instruction lists, draw.

A `Schedule` is data: per rank, the order of its actions. `make` and the generators write one,
`check` judges it, `simulate` says when everything happens, `lower` turns it into the instructions
that a runtime executes, and `draw` and `plot` show it.
"""

from importlib.metadata import version

from pipesched.action import Action
from pipesched.check import Semantics, check
from pipesched.check_program import check_program
from pipesched.closed_forms import ClosedForm, closed_form
from pipesched.communicate import with_communication, with_reductions, without_communication
from pipesched.compare import compare
from pipesched.costs import Costs
from pipesched.delay import delay_weight_gradients
from pipesched.draw import draw, legend
from pipesched.edge import Edge, Endpoint, chain
from pipesched.errors import (
    ArgumentError,
    EdgeError,
    InfeasibleError,
    MissingExtraError,
    ParseError,
    PipeschedError,
    ProgramError,
    ScheduleError,
    UnknownScheduleError,
)
from pipesched.event import Event, Transfer
from pipesched.generators import (
    NAMES,
    chimera,
    dualpipe,
    dualpipe_v,
    eager_1f1b,
    gpipe,
    inference,
    interleaved_1f1b,
    looped_bfs,
    make,
    one_f_one_b,
    v_half,
    v_min,
    zb_1p,
    zb_auto,
    zb_h1,
    zb_h2,
    zb_v,
)
from pipesched.kind import Kind
from pipesched.lower import lower
from pipesched.memory import Held
from pipesched.placement import Placement
from pipesched.plot import plot
from pipesched.plot_memory import plot_memory
from pipesched.program import (
    Accumulate,
    Apply,
    Buffer,
    Free,
    Instruction,
    Program,
    Receive,
    Received,
    Reduce,
    Run,
    Saved,
    Send,
    parse_instruction,
)
from pipesched.schedule import Schedule
from pipesched.search import Found, search
from pipesched.simulate import simulate
from pipesched.timeline import Timeline
from pipesched.torch_csv import from_torch_csv, to_torch_csv
from pipesched.trace import to_trace

__version__ = version("meshwright-pipesched")

__all__ = [
    "NAMES",
    "Accumulate",
    "Action",
    "Apply",
    "ArgumentError",
    "Buffer",
    "ClosedForm",
    "Costs",
    "Edge",
    "EdgeError",
    "Endpoint",
    "Event",
    "Found",
    "Free",
    "Held",
    "InfeasibleError",
    "Instruction",
    "Kind",
    "MissingExtraError",
    "ParseError",
    "PipeschedError",
    "Placement",
    "Program",
    "ProgramError",
    "Receive",
    "Received",
    "Reduce",
    "Run",
    "Saved",
    "Schedule",
    "ScheduleError",
    "Semantics",
    "Send",
    "Timeline",
    "Transfer",
    "UnknownScheduleError",
    "chain",
    "check",
    "check_program",
    "chimera",
    "closed_form",
    "compare",
    "delay_weight_gradients",
    "draw",
    "dualpipe",
    "dualpipe_v",
    "eager_1f1b",
    "from_torch_csv",
    "gpipe",
    "inference",
    "interleaved_1f1b",
    "legend",
    "looped_bfs",
    "lower",
    "make",
    "one_f_one_b",
    "parse_instruction",
    "plot",
    "plot_memory",
    "search",
    "simulate",
    "to_torch_csv",
    "to_trace",
    "v_half",
    "v_min",
    "with_communication",
    "with_reductions",
    "without_communication",
    "zb_1p",
    "zb_auto",
    "zb_h1",
    "zb_h2",
    "zb_v",
]
