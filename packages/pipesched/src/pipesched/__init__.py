"""Pipeline schedules: generate, check, simulate, lower to instruction lists, draw.

A `Schedule` is data: for each rank, the order of its actions. `make` and the generators produce
one, `check` verifies it, `simulate` says when each action runs, `lower` turns it into the
instructions that a runtime executes, and `draw` and `plot` show it.
"""

from importlib.metadata import version

from pipesched.base.action import Action
from pipesched.base.edge import Edge, Endpoint, chain
from pipesched.base.event import Event, Transfer
from pipesched.base.kind import Kind
from pipesched.base.placement import Placement
from pipesched.errors import (
    ArgumentError,
    EdgeError,
    InfeasibleError,
    InternalError,
    MissingExtraError,
    ParseError,
    PipeschedError,
    RegistrationError,
    UnknownScheduleError,
)
from pipesched.generators.automatic import zb_1p, zb_auto
from pipesched.generators.chimera import chimera
from pipesched.generators.dualpipe import dualpipe, dualpipe_v
from pipesched.generators.entry import ScheduleEntry
from pipesched.generators.form import ClosedForm, KnownForm, StepSizes
from pipesched.generators.inference import inference
from pipesched.generators.interleaved import interleaved_1f1b, looped_bfs
from pipesched.generators.schedules import (
    NAMES,
    closed_form,
    is_schedule,
    make,
    register_schedule,
    schedule_entry,
    schedule_names,
)
from pipesched.generators.v_shaped import v_half, v_min, zb_v
from pipesched.generators.warm_up import eager_1f1b, gpipe, one_f_one_b
from pipesched.generators.zero_bubble import zb_h1, zb_h2
from pipesched.judge.broken import ProgramError, ScheduleError
from pipesched.judge.check import Semantics, check
from pipesched.judge.check_program import check_program
from pipesched.lower import lower
from pipesched.report.draw import draw, legend
from pipesched.report.plot import plot
from pipesched.report.plot_memory import plot_memory
from pipesched.report.trace import to_trace
from pipesched.schedule.costs import Costs
from pipesched.schedule.csv import from_torch_csv, to_torch_csv
from pipesched.schedule.program import (
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
from pipesched.schedule.schedule import Schedule
from pipesched.simulation.communicate import (
    with_communication,
    with_reductions,
    without_communication,
)
from pipesched.simulation.compare import compare
from pipesched.simulation.delay import delay_weight_gradients
from pipesched.simulation.memory import Held
from pipesched.simulation.simulate import simulate
from pipesched.simulation.timeline import Timeline
from pipesched.solver.search import Found, search

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
    "InternalError",
    "Kind",
    "KnownForm",
    "MissingExtraError",
    "ParseError",
    "PipeschedError",
    "Placement",
    "Program",
    "ProgramError",
    "Receive",
    "Received",
    "Reduce",
    "RegistrationError",
    "Run",
    "Saved",
    "Schedule",
    "ScheduleEntry",
    "ScheduleError",
    "Semantics",
    "Send",
    "StepSizes",
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
    "is_schedule",
    "legend",
    "looped_bfs",
    "lower",
    "make",
    "one_f_one_b",
    "parse_instruction",
    "plot",
    "plot_memory",
    "register_schedule",
    "schedule_entry",
    "schedule_names",
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
