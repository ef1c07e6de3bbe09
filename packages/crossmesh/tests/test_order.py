import itertools

from crossmesh import _core
from hypothesis import given
from hypothesis import strategies as st

JOBS = st.lists(
    st.tuples(
        st.integers(0, 5).map(float),
        st.lists(st.integers(0, 5), min_size=1, max_size=3),
        st.integers(1, 4),
    ),
    max_size=6,
)


def columns(jobs):
    return tuple([job[i] for job in jobs] for i in range(3))


@given(JOBS)
def test_order_names_every_job_once(jobs):
    assert sorted(_core.order_jobs(*columns(jobs))) == list(range(len(jobs)))


@given(JOBS)
def test_order_is_never_worse_than_the_longest_first(jobs):
    durations, ports, n_devices = columns(jobs)
    longest_first = sorted(range(len(jobs)), key=lambda job: -durations[job])
    order = _core.order_jobs(durations, ports, n_devices)
    assert _core.finish_s(durations, ports, order) <= _core.finish_s(
        durations, ports, longest_first
    )


@given(JOBS)
def test_order_ends_between_the_busiest_port_and_one_after_the_other(jobs):
    durations, ports, n_devices = columns(jobs)
    busiest = max(
        (sum(d for d, p in zip(durations, ports, strict=True) if port in p) for port in range(6)),
        default=0.0,
    )
    finish_s = _core.finish_s(durations, ports, _core.order_jobs(durations, ports, n_devices))
    assert busiest <= finish_s <= sum(durations)


@given(JOBS)
def test_first_round_is_no_smaller_than_one_job_can_make_it(jobs):
    """No job could start at once with those that the order starts at once."""
    durations, ports, n_devices = columns(jobs)
    order = _core.order_jobs(durations, ports, n_devices)
    busy: set[int] = set()
    waiting = []
    for job in order:
        if busy.isdisjoint(ports[job]):
            busy.update(ports[job])
        else:
            waiting.append(job)
    assert all(not busy.isdisjoint(ports[job]) for job in waiting)


def test_equal_jobs_between_all_pairs_take_no_longer_than_their_busiest_port():
    """The all-to-all between 4 and 4 hosts, where the order by sender would collide."""
    pairs = list(itertools.product(range(4), range(4, 8)))
    durations, ports = [1.0] * 16, [list(pair) for pair in pairs]
    order = _core.order_jobs(durations, ports, [2] * 16)
    assert _core.finish_s(durations, ports, order) == 4.0
