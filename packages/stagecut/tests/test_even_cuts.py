from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stagecut.layers.even_cuts import most_uniform


@st.composite
def problems(draw, max_pieces=30):
    """Work of pieces, few of them heavy; how far a run may go from each cut; how many runs."""
    pieces = draw(st.lists(st.integers(0, 5) | st.integers(0, 5) | st.integers(6, 200), min_size=1))
    n = len(pieces := [*pieces[: max_pieces - 1], 1])
    reach = [*(min(n, k + draw(st.integers(1, n))) for k in range(n)), n]
    fewest, at = 0, 0
    while at < n:
        fewest, at = fewest + 1, max(reach[: at + 1])
    return pieces, reach, draw(st.integers(fewest, n))


def least_sum(pieces, reach, n_runs):
    """Over all cuts and numbers of runs, in whole numbers."""
    n = len(pieces)
    sums = {0: 0}
    for _ in range(n_runs):
        longer = {}
        for first, before in sums.items():
            for end in range(first + 1, reach[first] + 1):
                total = before + sum(pieces[first:end]) ** 2
                longer[end] = min(total, longer.get(end, total))
        sums = longer
    return sums[n]


@given(problems())
def test_no_other_way_has_a_smaller_sum_of_squares(problem):
    pieces, reach, n_runs = problem
    done = np.concatenate(([0.0], np.cumsum(pieces))) * n_runs / sum(pieces)
    way = most_uniform(done, np.array(reach), n_runs)
    runs = [sum(pieces[i:k]) for i, k in pairwise(way)]
    assert sum(work**2 for work in runs) == least_sum(*problem)


@given(problems())
def test_a_way_goes_from_the_first_to_the_last_cut_in_runs_that_are_allowed(problem):
    pieces, reach, n_runs = problem
    done = np.concatenate(([0.0], np.cumsum(pieces))) * n_runs / sum(pieces)
    way = most_uniform(done, np.array(reach), n_runs)
    assert (way[0], way[-1], len(way)) == (0, len(pieces), n_runs + 1)
    assert all(i < k <= reach[i] for i, k in pairwise(way))


def test_runs_are_equal_beside_a_piece_that_is_heavier_than_the_average():
    pieces = np.ones(100_001)
    pieces[60_000] = 20_000
    done = np.concatenate(([0.0], np.cumsum(pieces)))
    way = most_uniform(done, np.minimum(np.arange(100_002) + 25_000, 100_001), 51)
    work = np.diff(done[way])
    assert sorted(work) == [2000.0] * 50 + [20_000.0]
