import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipesched import (
    NAMES,
    ArgumentError,
    Costs,
    Timeline,
    closed_form,
    make,
    schedule_entry,
    simulate,
)

WITH_FORM = [name for name in NAMES if schedule_entry(name).closed_form is not None]

Times = tuple[float, float, float]
times = st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, 8.0]), min_size=3, max_size=3)


@st.composite
def arguments(draw: st.DrawFn, name: str) -> tuple[tuple[int, int], Times, dict[str, int]]:
    """Sizes, times and options, of which most are of the closed form's rule."""
    entry = schedule_entry(name)
    n_ranks = draw(st.integers(1, 8))
    n_microbatches = draw(st.integers(1, 32))
    options = {"n_chunks": draw(st.integers(1, 4))} if "n_chunks" in entry.options else {}
    if entry.copies_of_stages > 1:
        n_ranks += n_ranks % 2
        n_microbatches = n_ranks * draw(st.integers(1, 32 // n_ranks))
    n_stages = n_ranks * options.get("n_chunks", entry.stages_a_rank)
    w, i, f = sorted(draw(times))
    if draw(st.booleans()):
        w = i = f
    return (n_stages, n_microbatches), (f, i, w), options


def largest_span_bubble_s(timeline: Timeline) -> float:
    idle = []
    for rank, busy_s in enumerate(timeline.busy_s):
        events = [event for event in timeline.events if event.rank == rank]
        idle.append(events[-1].stop_s - events[0].start_s - busy_s)
    return max(idle)


@pytest.mark.parametrize("name", WITH_FORM)
@settings(max_examples=max(50, settings().max_examples // 5))
@given(st.data())
def test_the_simulation_equals_the_closed_form(name: str, data: st.DataObject) -> None:
    sizes, (f, i, w), options = data.draw(arguments(name))
    seconds = {"forward_s": f, "input_gradient_s": i, "weight_gradient_s": w}
    try:
        form = closed_form(name, *sizes, **seconds, **options)
    except ArgumentError:
        return
    timeline = simulate(make(name, *sizes, **options), Costs(**seconds))
    assert set(timeline.bubble_s) == {form.bubble_s}
    assert largest_span_bubble_s(timeline) == form.span_bubble_s
    assert max(timeline.peak_bytes) == form.peak_activations


@pytest.mark.parametrize("name", WITH_FORM)
def test_there_is_a_form_where_all_takes_as_long(name: str) -> None:
    form = closed_form(name, 4, 8, forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0)
    assert form.peak_activations <= 16


@pytest.mark.parametrize(
    ("name", "sizes", "seconds", "bubble_s", "peak"),
    [
        ("1f1b", (8, 24), (12.0, 13.0, 10.0), 7 * (12 + 13 + 10), 8),  # [Q] table 2
        ("zb-h1", (8, 24), (12.0, 13.0, 10.0), 7 * (12 + 13 - 10), 8),
        ("zb-v", (16, 24), (1.0, 1.0, 1.0), 7, 16),  # as 1F1B's 8, in half stages
        ("interleaved-1f1b", (8, 8), (1.0, 1.0, 1.0), 3 * 3, 11),  # [N]: 1F1B's 3 * 6 over v = 2
        ("chimera", (4, 4), (1.0, 1.0, 1.0), 2 * 2, 4),  # [C]: (D - 2) B
    ],
)
def test_the_papers_figures(
    name: str, sizes: tuple[int, int], seconds: Times, bubble_s: float, peak: int
) -> None:
    f, i, w = seconds
    form = closed_form(name, *sizes, forward_s=f, input_gradient_s=i, weight_gradient_s=w)
    assert (form.bubble_s, form.peak_activations) == (bubble_s, peak)


def test_zb_h2_has_no_bubble_in_its_span_if_all_takes_as_long() -> None:
    form = closed_form("zb-h2", 4, 8, forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0)
    assert form.span_bubble_s == 0.0
    assert form.peak_activations == 7


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("zb-h1", (2, 4), "known if: W <= F and W <= I; got p=2, m=4, F=1.0, I=2.0, W=3.0"),
        ("chimera", (4, 6), "known if: m is a multiple of p"),
        ("zb-auto", (2, 4), "none is known"),
    ],
)
def test_what_has_no_closed_form_is_refused(
    name: str, sizes: tuple[int, int], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        closed_form(name, *sizes, forward_s=1.0, input_gradient_s=2.0, weight_gradient_s=3.0)
