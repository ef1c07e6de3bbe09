from dataclasses import replace
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
from costmodel import (
    Choice,
    Cluster,
    CollectiveKind,
    Device,
    GroupLinks,
    Host,
    Level,
    Link,
    QuantityError,
    Tier,
    UnknownNameError,
    algorithms_of,
    all_gather_time,
    all_reduce_time,
    broadcast_time,
    collective_time,
    fastest,
    permute_time,
    point_to_point_time,
    reduce_scatter_time,
)
from costmodel.testing import clusters, links, meshes_on, nested_clusters
from hypothesis import assume, given
from hypothesis import strategies as st
from shardspec import Mesh
from simulated import Machine, execute

KINDS = get_args(CollectiveKind)
kinds = pytest.mark.parametrize("kind", KINDS)
sizes = st.integers(0, 2**40)
MB = 1_000_000
INTRA, CARD = Link(1e-6, 64e9), Link(1e-5, 1e9)
DEVICE = Device("toy", (("float32", 1e12),), 2**30, 1e11, 1e-6)
TWO_BY_FOUR = Machine((Tier(4, INTRA), Tier(2, CARD))).group


@st.composite
def machines(draw, *, min_tiers=1, most=(4, 3, 2)):
    """Machines whose levels above the hosts bring no more than those below them."""
    tiers, inner = [], 1
    for k in range(draw(st.integers(min_tiers, len(most)))):
        if k < 2:  # the network may be faster than the links inside a host
            share, latency_s, duplex = 1e12, 0.0, 1.0
        part = draw(st.floats(1e-3, 1))
        share *= part
        duplex = draw(st.sampled_from([d for d in (0.5, 1.0) if part * d <= duplex]))
        latency_s += draw(st.floats(0, 1e-3))
        size = draw(st.integers(2, most[k]))
        tiers.append(Tier(size, Link(latency_s, share * inner, duplex)))
        inner *= size
    return Machine(tuple(tiers))


def groups():
    """Groups on one level or more, and groups that are spread unevenly."""
    many = machines(most=(8, 6, 4)).map(lambda machine: machine.group)
    uneven = st.builds(GroupLinks, st.integers(1, 64), links(), links(), links())
    return many | uneven


def n_chunks(choice):
    names = (choice.algorithm, *choice.phases)
    return max((int(s.split()[-2]) for s in names if s.endswith(" chunks")), default=1)


def ring_latency(machine, kind, choice):
    """Table 2 counts one latency more for the ring of an all-reduce than it has steps."""
    if kind == "all_reduce" and choice.algorithm == "ring":
        return machine.group.flat.latency_s
    ring = any(phase.startswith("all_reduce") and "ring" in phase for phase in choice.phases)
    return machine.tiers[-1].link.latency_s if ring else 0.0


def bounds_only(machine, choice):
    """Whether a price may count more than an execution takes, as it does not look at each step."""
    folded = any(tier.size & (tier.size - 1) for tier in machine.tiers)
    unequal_halves = folded and "halving" in " ".join((choice.algorithm, *choice.phases))
    half_duplex = any(tier.link.duplex < 1 for tier in machine.tiers)
    one_level = len(machine.tiers) == 1
    exact = choice.algorithm in ("pairwise", "hierarchical") or (
        choice.algorithm == "ring" and not half_duplex
    )
    return (half_duplex and unequal_halves) or not (one_level or exact)


def check_by_executing(machine, kind, choice, n_bytes):
    simulated = execute(machine, kind, choice, n_bytes) + ring_latency(machine, kind, choice)
    if kind == "permute" or bounds_only(machine, choice):
        assert simulated <= choice.seconds * (1 + 1e-9)
    else:
        assert simulated == pytest.approx(choice.seconds, rel=1e-9)


# Prices against executions


@pytest.mark.parametrize("duplex", [1, 0.75, 0.5])
@pytest.mark.parametrize("n", range(2, 10))
@kinds
def test_on_one_link_every_algorithm_takes_what_its_price_says(kind, n, duplex):
    machine = Machine((Tier(n, Link(0.5, 8.0, duplex)),))
    for name in algorithms_of(kind, machine.group):
        choice = Choice(collective_time(kind, 96, machine.group, name), name)
        if n_chunks(choice) <= 16:
            check_by_executing(machine, kind, choice, 96)


@kinds
@given(machine=machines(), n_bytes=st.integers(0, 10**9))
def test_the_fastest_algorithm_moves_the_right_data_in_the_time_of_its_price(
    kind, machine, n_bytes
):
    choice = fastest(kind, n_bytes, machine.group)
    assume(n_chunks(choice) <= 16)
    check_by_executing(machine, kind, choice, n_bytes)


@given(kind=st.sampled_from(KINDS), machine=machines(min_tiers=2), n_bytes=st.integers(0, 10**9))
def test_over_several_levels_no_algorithm_is_faster_than_its_price(kind, machine, n_bytes):
    for name in set(algorithms_of(kind, machine.group)) - {"hierarchical"}:
        choice = Choice(collective_time(kind, n_bytes, machine.group, name), name)
        if n_chunks(choice) <= 4:
            check_by_executing(machine, kind, choice, n_bytes)


# By hand


def test_rings_are_table_2():
    for kind, time in {
        "all_gather": all_gather_time,
        "all_reduce": all_reduce_time,
        "reduce_scatter": reduce_scatter_time,
    }.items():
        price = collective_time(kind, MB, TWO_BY_FOUR, "ring")
        assert price == pytest.approx(time(8, MB, CARD), rel=1e-12)
    price = collective_time("broadcast", MB, TWO_BY_FOUR, "chain of 64 chunks")
    assert price == pytest.approx(broadcast_time(8, MB, CARD, 64), rel=1e-12)


def test_a_hierarchical_all_reduce_of_two_hosts_by_hand():
    choice = fastest("all_reduce", 64 * MB, TWO_BY_FOUR)
    inside = 2 * 1e-6 + 48 * MB / 64e9
    between = 1e-5 + 64 * MB / 1e9  # four pairs, a quarter of the bytes and of the card each
    assert choice.algorithm == "hierarchical"
    assert choice.seconds == pytest.approx(inside + between + inside, rel=1e-12)
    assert choice.phases == (
        "reduce_scatter of 4: recursive halving",
        "all_reduce of 2: recursive doubling",
        "all_gather of 4: bruck",
    )


def test_a_pairwise_all_to_all_of_two_hosts_by_hand():
    inside, between = 3 * (1e-6 + MB / 64e9), 4 * (1e-5 + 4 * MB / 1e9)
    price = collective_time("all_to_all", 8 * MB, TWO_BY_FOUR, "pairwise")
    assert price == pytest.approx(inside + between, rel=1e-12)


def test_small_messages_take_few_rounds_and_large_ones_few_bytes():
    six = Machine((Tier(6, CARD),)).group
    assert fastest("all_reduce", 8, six).algorithm == "recursive doubling"
    assert fastest("all_reduce", 1e9, six).algorithm == "ring"
    assert fastest("broadcast", 8, six).algorithm == "binomial"
    assert fastest("broadcast", 1e12, six).algorithm == "chain of 1024 chunks"
    assert fastest("all_to_all", 8, six).algorithm == "bruck"
    assert fastest("all_to_all", 1e9, six).algorithm == "pairwise"


def test_several_cards_a_host_are_used_at_once():
    host = Host(DEVICE, 4, INTRA)
    mesh = Mesh((8,), ("x",))
    times = []
    for rails in (1, 2, 4, 8):
        cluster = Cluster("toy", (host, host), (Level("network", 2, CARD, rails),))
        group = cluster.links(mesh).group((0,))
        times.append(collective_time("all_reduce", 1e12, group))
    inside = 2 * 3 / 4 * 1e12 / 64e9
    assert times == pytest.approx([1000 + inside, 500 + inside, 250 + inside, 250 + inside], 1e-3)


# Properties


@given(kind=st.sampled_from(KINDS), n_bytes=sizes, link=links())
def test_a_group_of_one_is_free(kind, n_bytes, link):
    group = GroupLinks(1, link, link, link)
    assert fastest(kind, n_bytes, group).seconds == 0.0
    assert all(collective_time(kind, n_bytes, group, a) == 0.0 for a in algorithms_of(kind, group))


@given(kind=st.sampled_from(KINDS), group=groups(), few=sizes, more=sizes)
def test_more_bytes_never_cost_less(kind, group, few, more):
    for name in (None, *algorithms_of(kind, group)):
        assert collective_time(kind, few, group, name) <= collective_time(
            kind, few + more, group, name
        )


def whole_mesh(cluster):
    """All devices, the hosts along the first axis if they have equally many."""
    if len({host.n_devices for host in cluster.hosts}) == 1:
        return Mesh((cluster.n_hosts, cluster.devices_per_host), ("host", "device"))
    return Mesh((cluster.n_devices,), ("device",))


def every_set_of(n):
    return [axes for k in range(n + 1) for axes in combinations(range(n), k)]


@st.composite
def better_links(draw, link):
    """A link, or one that is better in one or several ways."""
    return Link(
        link.latency_s * draw(st.just(1) | st.floats(0, 1)),
        link.bandwidth_bytes_per_s * draw(st.just(1) | st.floats(1, 1e3)),
        draw(st.sampled_from((link.duplex, 1)) | st.floats(link.duplex, 1)),
    )


def assert_never_dearer(kind, n_bytes, better, worse):
    for name in (None, *algorithms_of(kind, worse)):
        after, before = (collective_time(kind, n_bytes, group, name) for group in (better, worse))
        assert after <= before * (1 + 1e-12), name


@kinds
@given(machine=machines(), n_bytes=sizes, data=st.data())
def test_a_better_link_of_a_tier_never_costs_more(kind, machine, n_bytes, data):
    k = data.draw(st.integers(0, len(machine.tiers) - 1))
    tiers = list(machine.tiers)
    tiers[k] = replace(tiers[k], link=data.draw(better_links(tiers[k].link)))
    assert_never_dearer(kind, n_bytes, Machine(tuple(tiers)).group, machine.group)


@st.composite
def narrow_clusters(draw):
    """Clusters whose links are alike but for their duplex, so that any may be the narrowest."""
    some_links = st.builds(
        Link, st.floats(0, 1e-6), st.floats(1e9, 4e9), st.sampled_from((0.5, 1.0))
    )
    hosts = draw(st.integers(2, 4))
    spans = [2, hosts] if hosts > 2 and draw(st.booleans()) else [hosts]
    host = Host(DEVICE, draw(st.integers(2, 4)), draw(some_links))
    levels = (Level(str(n), n, draw(some_links), draw(st.integers(1, 2))) for n in spans)
    return Cluster("narrow", (host,) * hosts, tuple(levels))


@given(cluster=narrow_clusters() | nested_clusters(half_duplex=True), data=st.data(), n_bytes=sizes)
def test_a_better_link_anywhere_in_a_cluster_never_costs_more(cluster, data, n_bytes):
    parts = [*dict.fromkeys(cluster.hosts), *cluster.levels]
    part = data.draw(st.sampled_from(parts))
    better_part = replace(part, link=data.draw(better_links(part.link)))
    better = replace(
        cluster,
        hosts=tuple(better_part if host is part else host for host in cluster.hosts),
        levels=tuple(better_part if level is part else level for level in cluster.levels),
    )
    mesh = data.draw(st.just(whole_mesh(cluster)) | meshes_on(cluster))
    for axes in every_set_of(mesh.ndim):
        groups = [of.links(mesh).group(axes) for of in (better, cluster)]
        for kind in KINDS:
            assert_never_dearer(kind, n_bytes, *groups)


@kinds
def test_full_duplex_inside_the_hosts_helps_beside_a_half_duplex_card(kind):
    card = Link(1e-5, 1e9, duplex=0.5)

    def priced(duplex):
        host = Host(DEVICE, 4, Link(1e-6, 1.2e9, duplex))
        cluster = Cluster("toy", (host, host), (Level("network", 2, card),))
        return collective_time(kind, MB, cluster.links(Mesh((8,), ("x",))).group((0,)))

    assert priced(1) <= priced(0.5)


@given(kind=st.sampled_from(KINDS), group=groups(), n_bytes=sizes)
def test_the_fastest_is_one_of_the_algorithms_and_loses_to_none(kind, group, n_bytes):
    choice = fastest(kind, n_bytes, group)
    times = {
        name: collective_time(kind, n_bytes, group, name) for name in algorithms_of(kind, group)
    }
    assert choice.seconds == times[choice.algorithm] == min(times.values())
    assert choice.seconds == collective_time(kind, n_bytes, group)
    assert bool(choice.phases) == (choice.algorithm == "hierarchical")


@given(kind=st.sampled_from(KINDS), group=groups(), few=st.lists(sizes, min_size=1, max_size=8))
def test_arrays_have_the_prices_of_their_elements(kind, group, few):
    for name in (None, *algorithms_of(kind, group)):
        prices = collective_time(kind, np.array([few]), group, name)
        assert prices.shape == (1, len(few))
        assert prices[0].tolist() == [collective_time(kind, n, group, name) for n in few]


@given(machine=machines(min_tiers=2), n_bytes=sizes)
def test_an_all_to_all_takes_at_least_what_passes_each_connection(machine, n_bytes):
    seconds = fastest("all_to_all", n_bytes, machine.group).seconds
    for c, tier in zip(machine.inner, machine.tiers, strict=True):
        if c > 1:
            crossing = c * (machine.n - c) / machine.n * n_bytes
            assert seconds >= crossing / tier.link.bandwidth_bytes_per_s * (1 - 1e-12)


@given(data=st.data(), kind=st.sampled_from(KINDS), n_bytes=sizes)
def test_every_group_of_every_cluster_has_a_price_of_a_message_at_least(data, kind, n_bytes):
    cluster = data.draw(clusters() | nested_clusters())
    mesh = data.draw(meshes_on(cluster))
    group = cluster.links(mesh).group(range(mesh.ndim))
    seconds = fastest(kind, n_bytes, group).seconds
    if mesh.size == 1:
        assert seconds == 0.0
    else:
        latencies = [tier.link.latency_s for tier in group.tiers] or [group.flat.latency_s]
        assert seconds >= max(latencies)


@given(link=links(), n=st.integers(2, 64), n_bytes=sizes)
def test_members_that_are_spread_unevenly_permute_as_if_all_left_at_once(link, n, n_bytes):
    fast = Link(0.0, 1e12)
    group = GroupLinks(n, fast, fast, link)
    assert fastest("permute", n_bytes, group).seconds == pytest.approx(
        permute_time(n, n_bytes, link), rel=1e-12
    )


def test_all_but_single_messages_can_be_done_level_by_level():
    assert [kind for kind in KINDS if "hierarchical" not in algorithms_of(kind, TWO_BY_FOUR)] == [
        "permute",
        "point_to_point",
    ]


@given(kind=st.sampled_from(KINDS), group=groups(), few=st.lists(sizes, min_size=1, max_size=8))
def test_a_family_costs_what_its_fastest_algorithm_does(kind, group, few):
    n_bytes = np.array(few)
    families = algorithms_of(kind, group)
    for family in families.values():
        names = [name for name in families if families[name] == family]
        prices = [collective_time(kind, n_bytes, group, name) for name in names]
        assert collective_time(kind, n_bytes, group, family).tolist() == np.min(prices, 0).tolist()


@given(group=groups(), n_bytes=sizes)
def test_a_message_in_a_group_costs_one_message_at_its_single_link(group, n_bytes):
    expected = point_to_point_time(n_bytes, group.single) if group.size > 1 else 0.0
    assert collective_time("point_to_point", n_bytes, group) == pytest.approx(expected, rel=1e-12)


@given(data=st.data(), n_bytes=sizes)
def test_a_message_costs_no_more_than_a_permutation_or_a_broadcast(data, n_bytes):
    cluster = data.draw(nested_clusters(half_duplex=True))
    mesh = data.draw(meshes_on(cluster))
    group = cluster.links(mesh).group(range(mesh.ndim))
    seconds = collective_time("point_to_point", n_bytes, group)
    assert seconds <= collective_time("permute", n_bytes, group) * (1 + 1e-12)
    if all(level.rails == 1 for level in cluster.levels):  # of several, a broadcast uses all
        assert seconds <= collective_time("broadcast", n_bytes, group) * (1 + 1e-12)


# Errors


def test_rejects_what_is_no_collective():
    message = "a collective is one of all_gather, all_reduce, .*; got 'gather'"
    with pytest.raises(UnknownNameError, match=message):
        fastest("gather", 8, TWO_BY_FOUR)


def test_rejects_an_algorithm_that_a_collective_does_not_have():
    message = (
        r"all_gather in this group of 8 has the algorithms ring \(ring\), bruck \(tree\), "
        r"hierarchical \(hierarchical\); got 'chain'"
    )
    with pytest.raises(UnknownNameError, match=message):
        collective_time("all_gather", 8, TWO_BY_FOUR, "chain")


def test_the_fastest_algorithm_is_of_one_size():
    with pytest.raises(QuantityError, match=r"n_bytes is one number; got array\(\[1., 2.\]\)"):
        fastest("all_gather", np.array([1.0, 2.0]), TWO_BY_FOUR)


@pytest.mark.parametrize("price", [fastest, collective_time])
@pytest.mark.parametrize("n_bytes", [-1, float("nan"), float("inf"), "8", None, True])
def test_rejects_bytes_that_are_no_amount(price, n_bytes):
    with pytest.raises(QuantityError, match="n_bytes is a finite number >= 0; got"):
        price("all_gather", n_bytes, TWO_BY_FOUR)
