import math

import pytest
from crossmesh.report.gaps import CLASSES, draw_pair, gaps, gaps_text, planned, within_bar
from crossmesh.testing import check_plan
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = st.sampled_from([*CLASSES])


@given(NAMES, st.integers(0, 10**6))
def test_pairs_are_of_their_class(name, number):
    kind, (src, dst, hosts) = CLASSES[name], draw_pair(name, number)
    assert draw_pair(name, number) == (src, dst, hosts)
    common = {*src.mesh.device_ids} & {*dst.mesh.device_ids}
    assert not common or kind.overlapping
    assert bool(src.spec.partial) == kind.partial
    assert not dst.spec.partial
    if not kind.strided:
        assert src.is_contiguous
        assert dst.is_contiguous
    for side in (src, dst):
        on_host = [hosts[device] for device in side.mesh.device_ids]
        assert len(set(on_host)) <= 5  # a mesh may begin in the middle of a host
        assert max(map(on_host.count, on_host)) <= 4


@settings(max_examples=settings().max_examples // 4)
@given(NAMES, st.integers(0, 10**6))
def test_plans_of_pairs_deliver_everything(name, number):
    check_plan(planned(draw_pair(name, number)))


@pytest.mark.parametrize("name", CLASSES)
def test_95_of_100_random_pairs_are_within_5_percent_of_the_lower_bound(name):
    """It looks at 200 pairs of each class, or at 2,000 in the nightly profile."""
    found = gaps(name, min(2 * settings.default.max_examples, 2000))
    assert min(found) >= -1e-9
    assert within_bar(found) >= 0.95


def test_the_table_has_a_row_for_each_class():
    head, *rows = gaps_text(3).splitlines()
    assert head.split() == ["class", "within", "5", "%", "median", "95th", "percentile", "worst"]
    assert len(rows) == len(CLASSES)
    assert math.isfinite(float(rows[0].split()[-2]))


def test_gaps_begin_at_any_number():
    assert gaps("disjoint", 5)[2:] == gaps("disjoint", 3, first=2)
