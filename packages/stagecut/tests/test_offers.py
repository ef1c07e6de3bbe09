import math
import pickle

import numpy as np
import pytest
from costmodel import Cluster, Device, Host, Level, Link
from hypothesis import given
from hypothesis import strategies as st
from stagecut import HostKind, InvalidInputError, Places, SubmeshOfKind
from stagecut.testing import all_assignments, clusters, requests

A, B, C = HostKind(4, "a"), HostKind(4, "b"), HostKind(6, "c", (1, 4, 6))


def can_be_placed(wanted, places):
    """By trying; the largest first, as these fail soonest."""
    if places.use_all and sum(map(math.prod, wanted)) < places.n_devices:
        return False
    largest_first = sorted(wanted, key=math.prod, reverse=True)
    return next(all_assignments(largest_first, places), None) is not None


def multisets(places):
    """All with at most as many devices as the cluster."""

    def some(shapes, rest):
        yield ()
        for at, shape in enumerate(shapes):
            if math.prod(shape) <= rest:
                for others in some(shapes[at:], rest - math.prod(shape)):
                    yield (shape, *others)

    return some(places.shapes[::-1], places.n_devices)


@pytest.mark.parametrize("use_all", [True, False])
@pytest.mark.parametrize(
    ("hosts", "mix"),
    [
        pytest.param(((HostKind(4), 4),), False, id="power of two"),
        pytest.param(((HostKind(6), 3),), False, id="divisors"),
        pytest.param(((HostKind(6, parts=(1, 4, 6)), 3),), False, id="4 of 6"),
        pytest.param(((HostKind(5, parts=(2, 3, 5)), 3),), False, id="none of 1"),
        pytest.param(((HostKind(6, parts=(2, 3, 4, 5, 6)), 3),), False, id="any"),
        pytest.param(((A, 1), (HostKind(2, "small"), 2)), False, id="sizes"),
        pytest.param(((HostKind(2, "x"), 2), (HostKind(2, "y"), 2)), True, id="mixed"),
    ],
)
def test_what_can_be_chosen_is_what_can_be_placed_for_every_multiset(hosts, mix, use_all):
    places = Places(hosts, use_all=use_all, mix=mix)
    for wanted in multisets(places):
        assert places.can_hold(wanted) == can_be_placed(wanted, places), wanted


@given(clusters(max_hosts=3), st.data())
def test_what_can_be_chosen_is_what_can_be_placed_on_any_cluster(places, data):
    wanted = data.draw(requests(places))
    assert places.can_hold(wanted) == can_be_placed(wanted, places)


@given(clusters(), st.data())
def test_the_order_of_stages_does_not_decide_whether_they_can_be_placed(places, data):
    wanted = data.draw(requests(places))
    assert places.can_hold(wanted) == places.can_hold(data.draw(st.permutations(wanted)))


@given(clusters())
def test_states_rise_and_some_way_from_the_first_is_complete(places):
    states = np.arange(places.n_states)
    reachable = {0}
    after = [places.after(h) for h in range(len(places.shapes))]
    for state in states:
        if state in reachable:
            reachable.update(int(each[state]) for each in after if each[state] >= 0)
    assert all(((each > states) | (each == -1)).all() for each in after)
    assert any(places.complete[state] for state in reachable)


@given(st.integers(1, 6), st.sampled_from((1, 2, 4, 6, 8, 9, 12)), st.booleans())
def test_usual_parts_of_equal_hosts_need_only_counting(n_hosts, n_devices, use_all):
    places = Places.uniform(n_hosts, n_devices, use_all=use_all)
    taken = np.arange(n_hosts * n_devices + 1)
    for h, size in enumerate(places.sizes):
        expected = np.where(taken + size < len(taken), taken + size, -1)
        np.testing.assert_array_equal(places.after(h), expected)
    expected = taken == n_hosts * n_devices if use_all else taken >= 0
    np.testing.assert_array_equal(places.complete, expected)


def test_parts_that_fill_hosts_in_one_way_only_have_few_states():
    # How many hosts have a stage on 4 of their 6 devices, and how many devices are taken.
    assert Places.uniform(16, 6, parts=(1, 2, 4, 6)).n_states <= 17 * 97


def test_shapes_rise_and_whole_hosts_of_one_kind_go_together():
    assert Places(((A, 2), (C, 1), (B, 1))).shapes == tuple(
        SubmeshOfKind(((name, n),), m)
        for name, n, m in [
            *(("a", 1, 1), ("c", 1, 1), ("b", 1, 1), ("a", 1, 2), ("b", 1, 2)),
            *(("a", 1, 4), ("c", 1, 4), ("b", 1, 4), ("c", 1, 6), ("a", 2, 4)),
        ]
    )


def test_whole_hosts_of_several_kinds_go_together_when_allowed():
    mixed = Places(((A, 2), (C, 1), (B, 1)), mix=True)
    assert [shape for shape in mixed.shapes if len(shape.hosts) > 1] == [
        SubmeshOfKind((("a", 1), ("b", 1)), 4),
        SubmeshOfKind((("a", 2), ("b", 1)), 4),
    ]


def test_one_kind_of_host_has_plain_pairs():
    assert Places(((A, 1), (A, 1))).shapes == ((1, 1), (1, 2), (1, 4), (2, 4))


def test_runs_of_the_same_kind_are_one():
    assert Places(((A, 1), (A, 2), (B, 1))) == Places(((A, 3), (B, 1)))


def test_a_submesh_of_a_kind_is_a_pair_but_equals_only_one_of_the_same_hosts():
    one, other = SubmeshOfKind((("a", 1), ("b", 2)), 8), SubmeshOfKind((("a", 3),), 8)
    n, m = one
    assert (n, m) == (3, 8)
    assert len({one, other, (3, 8), SubmeshOfKind([["a", 1], ["b", 2]], 8)}) == 3
    assert one != (3, 8)
    assert one != (3, 8)
    assert (one.kind, other.kind) == ("1 a + 2 b", "a")
    assert str(other) == "(3, 8) of a"


def test_a_submesh_of_a_kind_survives_pickling():
    submesh = SubmeshOfKind((("a", 1), ("b", 2)), 8)
    assert pickle.loads(pickle.dumps(submesh)) == submesh


def test_kinds_of_a_cluster_are_named_after_what_tells_them_apart():
    link, fast = Link(1e-6, 1e9), Link(1e-6, 1e10)
    old, new = (Device(name, (("float32", 1e12),), 2**30, 1e11, 1e-6) for name in ("old", "new"))

    def names(*hosts):
        levels = () if len(hosts) == 1 else (Level("network", len(hosts), link),)
        return [kind.name for kind, _ in Places.of(Cluster("c", hosts, levels)).hosts]

    assert names(Host(old, 4, link), Host(new, 4, link)) == ["old", "new"]
    assert names(Host(old, 4, link), Host(old, 2, link)) == ["old x 4", "old x 2"]
    assert names(Host(old, 4, link), Host(old, 4, fast)) == ["old x 4 (host 0)", "old x 4 (host 1)"]


def test_an_equal_cluster_offers_the_shapes_of_alpa():
    places = Places.of(Cluster.preset("p3.16xlarge:8"))
    assert places.shapes == Places.uniform(8, 8).shapes
    assert places.n_states == 65


@pytest.mark.parametrize("cluster_shape", [(0, 4), (2, 0), (1, -1)])
def test_rejects_a_cluster_without_devices(cluster_shape):
    with pytest.raises(InvalidInputError, match="at least one host with at least one device; got"):
        Places.uniform(*cluster_shape)


@pytest.mark.parametrize("hosts", [(), ((A, 2), (B, 0))])
def test_rejects_runs_without_hosts(hosts):
    with pytest.raises(InvalidInputError, match=r"a number of hosts of at least 1, .*; got hosts="):
        Places(hosts)


def test_rejects_kinds_of_the_same_name():
    with pytest.raises(
        InvalidInputError, match=r"have different names; got HostKind\(.*HostKind\("
    ):
        Places(((HostKind(4), 1), (HostKind(2), 1)))
