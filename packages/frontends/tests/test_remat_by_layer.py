"""Which layers compute how much again, where they differ, is chosen exactly.

That such plans run is in `test_recompute`.
"""

from itertools import product

from frontends.plan.plan_fields import REMATS
from frontends.search.remat_by_layer import Costs, first_layers_most, least_time
from hypothesis import given
from hypothesis import strategies as st
from stagecut import StageCost

costs = st.builds(
    StageCost,
    time_s=st.integers(1, 9).map(float),
    fixed_bytes=st.just(0),
    activation_bytes=st.integers(0, 9).map(lambda n: n << 20),
)
layers = st.lists(
    st.dictionaries(st.sampled_from(REMATS), costs, min_size=1), min_size=1, max_size=5
)


@given(layers, st.integers(0, 30))
def test_no_choice_that_fits_takes_less_time(of_layers: list[Costs], megabytes: int) -> None:
    free = float(megabytes << 20)
    fitting = [
        sum(cost[remat].time_s for cost, remat in zip(of_layers, choice, strict=True))
        for choice in product(*of_layers)
        if sum(c[r].activation_bytes for c, r in zip(of_layers, choice, strict=True)) <= free
    ]
    # A megabyte is more than bytes are rounded by: it makes room for the rounding.
    chosen = least_time(of_layers, free + (1 << 20))
    if chosen is None:
        assert not fitting
        return
    pairs = [cost[remat] for cost, remat in zip(of_layers, chosen, strict=True)]
    assert sum(cost.activation_bytes for cost in pairs) <= free + (1 << 20)
    assert sum(cost.time_s for cost in pairs) <= min(fitting, default=float("inf"))


@given(layers, st.data())
def test_of_equal_layers_the_first_ones_compute_most_again(
    of_layers: list[Costs], data: st.DataObject
) -> None:
    twice = [*of_layers, *of_layers]
    chosen = [data.draw(st.sampled_from([*cost])) for cost in twice]
    ordered = first_layers_most(chosen, twice)
    assert sorted(ordered) == sorted(chosen)
    for layer in range(len(of_layers)):
        assert ordered[layer] in twice[layer]
        assert REMATS.index(ordered[layer]) >= REMATS.index(ordered[layer + len(of_layers)])
