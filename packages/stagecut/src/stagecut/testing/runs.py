"""All ways to cut a sequence into runs."""

import itertools
from collections.abc import Iterator


def all_runs(n: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """All ways to cut the numbers from 0 to n - 1 into runs, as (first, last) pairs."""
    for n_cuts in range(n):
        for cuts in itertools.combinations(range(1, n), n_cuts):
            edges = (0, *cuts, n)
            yield tuple((start, stop - 1) for start, stop in itertools.pairwise(edges))
