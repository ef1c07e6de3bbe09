"""What is no argument at all is refused by name, whichever function it is given to."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from pipesched import (
    NAMES,
    Action,
    ArgumentError,
    Costs,
    Edge,
    EdgeError,
    Kind,
    ParseError,
    PipeschedError,
    Placement,
    Program,
    Schedule,
    chain,
    check,
    check_program,
    closed_form,
    compare,
    delay_weight_gradients,
    draw,
    from_torch_csv,
    legend,
    lower,
    make,
    parse_instruction,
    plot,
    plot_memory,
    search,
    simulate,
    to_torch_csv,
    to_trace,
    with_communication,
    with_reductions,
    without_communication,
)
from pipesched.testing import sizes_of

COSTS = Costs(1.0, 2.0)
SCHEDULE = make("1f1b", 2, 3)
TIMELINE = simulate(SCHEDULE, COSTS)
PROGRAM = lower(SCHEDULE)
EDGE = chain(2)[0]

NO_COUNTS = [math.nan, math.inf, -1, 1.5, "2", None, [], {}, b"2", 2 + 0j]
NO_AMOUNTS = [math.nan, -1, -math.inf, "2", [None], ["2"], {0: 1.0}, {1.0}, object()]
NO_OBJECTS = [None, 1, "1f1b", [], math.nan]

COUNTED: dict[str, Callable[..., object]] = {
    "Action.stage": lambda n: Action(Kind.FORWARD, n, 0),
    "Action.send": lambda n: Action.send(EDGE, n),
    "Placement": lambda n: Placement(((n,),)),
    "Placement.linear": lambda n: Placement.linear(n),
    "Placement.looped": lambda n: Placement.looped(2, n),
    "Placement.v": lambda n: Placement.v(2, n),
    "Placement.bidirectional": lambda n: Placement.bidirectional(2, n),
    "Placement.rank": lambda n: SCHEDULE.placement.rank(n, 0),
    "Placement.ranks_of": lambda n: SCHEDULE.placement.ranks_of(n),
    "Schedule.n_stages": lambda n: Schedule("a", n, 3, SCHEDULE.ranks),
    "Schedule.n_microbatches": lambda n: Schedule("a", 2, n, SCHEDULE.ranks),
    "Program": lambda n: Program("a", 2, n, PROGRAM.edges, PROGRAM.ranks, PROGRAM.placement),
    "chain": chain,
    "Costs.seconds": lambda n: COSTS.seconds(Kind.FORWARD, n),
    "Costs.sizes": lambda n: COSTS.sizes("activation_bytes", n),
    "interleaved.n_chunks": lambda n: make("interleaved-1f1b", 4, 4, n_chunks=n),
    "interleaved.group_size": lambda n: make("interleaved-1f1b", 4, 4, group_size=n or 0),
    "depth": lambda n: make("eager-1f1b", 2, 4, depth=[3, n]),
    "draw.width": lambda n: draw(TIMELINE, width=n),
    "search.steps": lambda n: search(2, 2, COSTS, steps=n),
}
MEASURED: dict[str, Callable[..., object]] = {
    "forward_s": Costs,
    "latency_s": lambda x: Costs(1.0, latency_s=x),
    "message_bytes": lambda x: Costs(1.0, message_bytes=x or "x"),
    "bytes_per_s": lambda x: Costs(1.0, bytes_per_s=x or "x"),
    "activation_bytes": lambda x: Costs(1.0, activation_bytes=x or "x"),
    "cap of search": lambda x: search(2, 2, COSTS, activation_cap=x),
    "memory of search": lambda x: search(2, 2, COSTS, memory_bytes=x),
    "cap of zb-auto": lambda x: make("zb-auto", 2, 2, activation_cap=x),
    "memory of zb-auto": lambda x: make("zb-auto", 2, 2, memory_bytes=x),
    "draw.span_s": lambda x: draw(TIMELINE, span_s=x or "x"),
    "plot_memory": lambda x: plot_memory(TIMELINE, "never.svg", cap_bytes=x),
    "closed_form": lambda x: closed_form(
        "1f1b", 2, 2, forward_s=x, input_gradient_s=1.0, weight_gradient_s=1.0
    ),
}
GIVEN: dict[str, Callable[..., object]] = {
    "check": check,
    "simulate": lambda x: simulate(SCHEDULE, x),
    "simulate.schedule": lambda x: simulate(x, COSTS),
    "search": lambda x: search(2, 2, x),
    "zb-auto": lambda x: make("zb-auto", 2, 2, costs=x),
    "lower": lower,
    "check_program": check_program,
    "with_communication": with_communication,
    "with_reductions": with_reductions,
    "without_communication": without_communication,
    "delay_weight_gradients": lambda x: delay_weight_gradients(x, COSTS),
    "to_torch_csv": to_torch_csv,
    "draw": draw,
    "legend": legend,
    "compare": compare,
    "to_trace": to_trace,
    "plot": lambda x: plot(x, "never.svg"),
    "plot_memory.timelines": lambda x: plot_memory([x], "never.svg"),
    "backward": lambda x: Schedule("a", 2, 3, SCHEDULE.ranks, backward=x),
    "overlap": lambda x: Costs(1.0, overlap=x),
    "kind": lambda x: Action(x, 0, 0),
    "ranks": lambda x: Schedule("a", 1, 1, ((x,),)),
    "instructions": lambda x: Program("a", 2, 3, (), ((x,),), SCHEDULE.placement),
}


@pytest.mark.parametrize("value", NO_COUNTS, ids=repr)
@pytest.mark.parametrize("of", COUNTED)
def test_what_is_no_count_is_refused(of: str, value: object) -> None:
    with pytest.raises(ArgumentError, match="got "):
        COUNTED[of](value)


@pytest.mark.parametrize("value", NO_COUNTS, ids=repr)
@pytest.mark.parametrize("name", NAMES)
def test_sizes_that_are_no_counts_are_refused(name: str, value: object) -> None:
    n_stages, n_microbatches = 4, 8
    assert sizes_of(name, n_stages, n_microbatches)
    for sizes in ((value, n_microbatches), (n_stages, value)):
        with pytest.raises(ArgumentError, match="at least one stage and one microbatch; got"):
            make(name, *sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", NO_AMOUNTS, ids=lambda value: f"{value!r:.9}")
@pytest.mark.parametrize("of", MEASURED)
def test_what_is_no_amount_is_refused(of: str, value: object) -> None:
    with pytest.raises(ArgumentError, match="got "):
        MEASURED[of](value)


@pytest.mark.parametrize("value", NO_OBJECTS, ids=repr)
@pytest.mark.parametrize("of", GIVEN)
def test_another_object_is_refused(of: str, value: object) -> None:
    with pytest.raises(ArgumentError, match="got "):
        GIVEN[of](value)


@pytest.mark.parametrize("name", NAMES)
def test_more_actions_than_any_machine_has_memory_for_are_refused_at_once(name: str) -> None:
    with pytest.raises(ArgumentError, match="are at most 10,000,000; got n_stages=4 and"):
        make(name, 4, 10**30)


@pytest.mark.parametrize(
    "text",
    [
        "a stages=999999999 microbatches=999999999\nrank 0:",
        "a stages=1 microbatches=1 placement=999999999\nrank 0: F0.0 B0.0",
        "a stages=1 microbatches=1 placement=0|0:0x999999999\nrank 0: F0.0 B0.0",
        "a stages=" + 5000 * "1" + " microbatches=1\nrank 0: F0.0 B0.0",
        "a stages=1 microbatches=1\nrank 0: F0." + 5000 * "1",
    ],
    ids=lambda text: text[:50],
)
def test_a_short_text_does_not_ask_for_more_memory_than_there_is(text: str) -> None:
    with pytest.raises(PipeschedError):
        Schedule.parse(text)


@pytest.mark.parametrize("ends", [None, 1, "F0", (), (Kind.FORWARD,), ("F", 0), [Kind.FORWARD, 0]])
def test_what_is_no_endpoint_is_refused(ends: object) -> None:
    with pytest.raises(EdgeError, match="two endpoints, each a Kind and a stage; got"):
        Edge(ends, (Kind.FORWARD, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("edges", [1, math.nan, ["F0->F1"], [None], "F0->F1"], ids=repr)
def test_what_are_no_edges_is_refused(edges: object) -> None:
    for use in (
        lambda: Schedule("a", 2, 3, SCHEDULE.ranks, edges=edges),  # type: ignore[arg-type]
        lambda: lower(SCHEDULE, edges),  # type: ignore[arg-type]
        lambda: search(2, 2, COSTS, edges=edges),  # type: ignore[arg-type]
    ):
        with pytest.raises(EdgeError, match="edges are a sequence of Edge; got"):
            use()


@pytest.mark.parametrize("skips", [1, [1], [(0, "3")], [(0, 1, 2)], [(0, 1.5)], [(0, None)]])
def test_what_is_no_skip_is_refused(skips: object) -> None:
    with pytest.raises(EdgeError, match="a skip is a pair of stages; got skips="):
        chain(4, skips=skips)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "parse",
    [Action.parse, Edge.parse, Placement.parse, parse_instruction, from_torch_csv],
    ids=lambda parse: parse.__qualname__,
)
@pytest.mark.parametrize(
    "text", [None, 1, b"F0.0", [], "", "9 9", '"' + 200_000 * "x"], ids=lambda t: f"{t!r:.9}"
)
def test_what_is_no_text_is_refused(parse: Callable[..., object], text: object) -> None:
    with pytest.raises(ParseError, match="got "):
        parse(text)


def test_sizes_bytes_and_sequences_of_numpy_are_taken() -> None:
    n_stages, n_microbatches = np.array([2, 3])
    schedule = make("1f1b", n_stages, n_microbatches)
    costs = Costs(np.array([1.0, 2.0]), np.float32(2.0))
    assert Schedule.from_json(schedule.to_json()) == SCHEDULE
    assert simulate(schedule, costs).makespan_s == simulate(SCHEDULE, Costs([1, 2], 2)).makespan_s
    check(schedule, memory_bytes=np.array([2, 1]))
    assert search(2, 3, COSTS, activation_cap=np.array([2, 1])).gap == 0.0


def test_lists_become_tuples() -> None:
    assert Placement([[0, 1], [1, 0]], [0, 1]) == Placement(((0, 1), (1, 0)), (0, 1))
    assert Schedule("1f1b", 2, 3, [list(row) for row in SCHEDULE.ranks]) == SCHEDULE
