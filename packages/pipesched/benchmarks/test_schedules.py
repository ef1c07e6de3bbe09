"""How long do schedules take to make, check, simulate and search, and how does that grow?

"64 x 1024" is 64 stages and 1,024 microbatches. "CPU" is the least processor time of a round, which
other work on the machine disturbs less than the clock's, and "ns / action" is that over the number
of actions: where it stays, cost grows linearly with them. A search is for forwards of 1 s,
backwards of 2 s, links of 0.25 s a message, and the activations of as many microbatches a rank as
there are ranks (1F1B's) or twice as many; "makespan" is what it found, "1F1B" what that takes, and
"gap" how much of the makespan might be saved at most. It ends when a bound proves its result, or
after the 4,096 steps of `search`'s default.

Not shown: memory, and schedules with sends and receives among their actions, of which there are
about twice as many.
"""

import time

import pytest
from pipesched import Costs, check, make, search, simulate

COSTS = Costs(1.0, 2.0, transfer_s=0.25)
GROWTH = [("1f1b", 16, 128), ("1f1b", 16, 512), ("1f1b", 64, 256), ("1f1b", 64, 1024)]
OTHERS = [("zb-h1", 64, 1024), ("interleaved-1f1b", 128, 1024)]
MANY = 64 * 1024
"""From this product of stages and microbatches on, a case takes seconds."""


def sizes(cases):
    params = [
        pytest.param(
            *case,
            id=f"{case[0]} {case[1]} x {case[2]}",
            marks=[pytest.mark.nightly] if case[1] * case[2] >= MANY else [],
        )
        for case in cases
    ]
    return pytest.mark.parametrize(("name", "n_stages", "n_microbatches"), params)


def measure(benchmark, function, n_actions):
    """What the function gives; its time, and its processor time for each action, are noted."""
    seconds = []

    def timed():
        start_s = time.process_time()
        result = function()
        seconds.append(time.process_time() - start_s)
        return result

    result = benchmark.pedantic(timed, rounds=3)
    benchmark.extra_info["actions"] = n_actions
    benchmark.extra_info["CPU"] = f"{1e3 * min(seconds):.3g} ms"
    benchmark.extra_info["ns / action"] = f"{1e9 * min(seconds) / n_actions:.0f}"
    return result


@sizes(GROWTH + OTHERS)
def test_make_and_check(benchmark, name, n_stages, n_microbatches):
    def make_and_check():
        schedule = make(name, n_stages, n_microbatches)
        check(schedule)
        return schedule

    n_actions = sum(map(len, make(name, n_stages, n_microbatches).ranks))
    measure(benchmark, make_and_check, n_actions)


@sizes(GROWTH)
def test_simulate(benchmark, name, n_stages, n_microbatches):
    """With the check that it begins with."""
    schedule = make(name, n_stages, n_microbatches)
    n_actions = sum(map(len, schedule.ranks))
    timeline = measure(benchmark, lambda: simulate(schedule, COSTS), n_actions)
    assert len(timeline.events) == n_actions


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("per_rank", [1, 2])
@pytest.mark.parametrize(("n_ranks", "n_microbatches"), [(4, 8), (8, 32), (8, 128), (32, 128)])
def test_search(benchmark, n_ranks, n_microbatches, per_rank, split):
    def searched():
        cap = per_rank * n_ranks
        return search(n_ranks, n_microbatches, COSTS, activation_cap=cap, split_backward=split)

    n_actions = (3 if split else 2) * n_ranks * n_microbatches
    found = measure(benchmark, searched, n_actions)
    plain_s = simulate(make("1f1b", n_ranks, n_microbatches), COSTS).makespan_s
    assert found.lower_bound_s <= found.makespan_s <= plain_s
    assert simulate(found.schedule, COSTS).makespan_s == pytest.approx(found.makespan_s)
    benchmark.extra_info["makespan"] = f"{found.makespan_s:g} s"
    benchmark.extra_info["1F1B"] = f"{plain_s:g} s"
    benchmark.extra_info["gap"] = f"{found.gap:.1%}"
