"""What `slice_stages` saves: layers alike are priced once, and what was priced is kept."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stagecut import PriceCache, StageCost, slice_stages

CLUSTER = (2, 4)
TIMES_S = {"a": 0.25, "b": 1.0, "c": 3.5}
structures = st.text("abc", min_size=1, max_size=5)


def cost_of(structure, calls):
    """A cost that depends on the layers' letters alone, and writes down what it was asked."""

    def cost(first, last, submesh):
        calls.append((first, last, submesh))
        letters = structure[first : last + 1]
        n_devices = submesh[0] * submesh[1]
        return StageCost(
            sum(TIMES_S[each] for each in letters) / n_devices + n_devices / 16,
            fixed_bytes=16 * len(letters) // n_devices,
            activation_bytes=letters.count("c"),
            option=f"{letters} on {submesh}",
        )

    return cost


@settings(max_examples=max(100, settings().max_examples // 5))
@given(structures, st.sampled_from((None, 24, 40)), st.booleans())
def test_sharing_changes_nothing_but_how_often_it_is_asked(structure, memory_bytes, with_bound):
    def bound_s(first, last, submesh):
        work_s = sum(TIMES_S[each] for each in structure[first : last + 1])
        return work_s / (submesh[0] * submesh[1])

    found = []
    for shared in (None, structure):
        calls = []
        slicing = slice_stages(
            len(structure),
            CLUSTER,
            4,
            cost_of(structure, calls),
            memory_bytes,
            bound_s=bound_s if with_bound else None,
            structure=shared,
            alternatives=True,
        )
        assert slicing.n_priced == len(calls)
        # With a bound, only the best is priced to the end.
        others = [] if with_bound else [each.time_s for each in slicing.alternatives]
        found.append((slicing.time_s, others))
        assert [stage.cost.option for stage in slicing.stages] == [
            f"{structure[stage.first : stage.last + 1]} on {stage.submesh}"
            for stage in slicing.stages
        ]
    assert found[0] == found[1]
    asked = [(structure[first : last + 1], submesh) for first, last, submesh in calls]
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("n_layers", [10, 20, 40])
def test_prices_of_equal_layers_grow_linearly(n_layers):
    structure = "a" * n_layers
    slicing = slice_stages(
        n_layers, CLUSTER, 8, cost_of(structure, []), structure=structure, alternatives=False
    )
    # 1 device leaves 7 = 4 + 2 + 1 and so a layer each for 3 stages; 2 devices for 2; 4 for 1; and
    # on all there is one stage.
    assert slicing.n_priced == (n_layers - 3) + (n_layers - 2) + (n_layers - 1) + 1


@settings(max_examples=max(100, settings().max_examples // 5))
@given(structures, st.sets(st.integers(1, 12), min_size=2, max_size=4))
def test_the_best_number_of_microbatches_is_taken_of_several(structure, counts):
    def cost(first, last, submesh, n_microbatches):
        # The batch is cut: small microbatches are less efficient, large ones keep more.
        stage = cost_of(structure, [])(first, last, submesh)
        return StageCost(stage.time_s * (0.25 + 4 / n_microbatches), 0, 24 // n_microbatches)

    def alone_s(n):
        return slice_stages(
            len(structure), CLUSTER, n, lambda *span: cost(*span, n), memory_bytes=48
        ).time_s

    slicing = slice_stages(len(structure), CLUSTER, sorted(counts), cost, memory_bytes=48)
    each = {n: alone_s(n) for n in counts}
    assert slicing.time_s == each[slicing.n_microbatches] == min(each.values())
    said = {
        int(what) for what, _, _ in (each.what.partition(" micro") for each in slicing.rejected)
    }
    assert said == counts - {slicing.n_microbatches}


@settings(max_examples=max(100, settings().max_examples // 5))
@given(structures, st.booleans())
def test_what_is_in_the_cache_is_not_asked_again(structure, is_shared):
    shared = structure if is_shared else None
    with TemporaryDirectory() as folder:
        first, again, other = [], [], []
        slicings = [
            slice_stages(
                len(structure),
                CLUSTER,
                4,
                cost_of(structure, calls),
                structure=shared,
                cache=PriceCache(folder, about=about),
            )
            for calls, about in ((first, "one"), (again, "one"), (other, "another"))
        ]
    assert again == []
    assert other == first
    assert slicings[1].n_priced == 0
    assert slicings[0].stages == slicings[1].stages == slicings[2].stages


def test_a_line_that_was_not_written_to_its_end_is_asked_again(tmp_path):
    cache = PriceCache(tmp_path, about="model 1 on cluster 2")
    calls = []
    before = slice_stages(3, CLUSTER, 4, cost_of("abc", calls), cache=cache)
    [path] = Path(tmp_path).iterdir()
    path.write_text(path.read_text()[:-9])
    again = []
    after = slice_stages(3, CLUSTER, 4, cost_of("abc", again), cache=cache)
    assert again == calls[-1:]
    assert after.stages == before.stages
