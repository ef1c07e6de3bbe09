import dataclasses
import gc
import itertools
import math
import operator
import sys
from collections import defaultdict
from fractions import Fraction

import pytest
from costmodel import Cluster, Device, GroupLinks, Host, Level, Link, Tier, testing
from costmodel.hardware.link import slowest_link
from costmodel.testing import meshes_on, nested_clusters
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh, SubAxis, UnknownAxisError

INTRA = Link(latency_s=1e-6, bandwidth_bytes_per_s=64e9)
DEVICE = Device("toy", (("float32", 1e12),), 2**30, 1e11, 1e-6)
any_clusters = nested_clusters(half_duplex=True)


def two_by_eight(rails=1):
    return Cluster(
        "2x8", (Host(DEVICE, 8, INTRA),) * 2, (Level("network", 2, Link(1e-5, 1e9), rails),)
    )


def card(rails):
    """What a group has of cards at 1 GB/s."""
    return Link(1e-5, rails * 1e9)


def every_set_of(axes):
    axes = tuple(axes)
    return [s for n in range(len(axes) + 1) for s in itertools.combinations(axes, n)]


def on_one_level(size, link):
    """A group that sees one link."""
    return GroupLinks(size, link, link, link, (Tier(size, link),) if size > 1 else ())


def on_two_levels(size, inside, rails):
    """A group of `size` with so many members on each host, and a part of the card."""
    tiers = (Tier(inside, INTRA), Tier(size // inside, card(rails)))
    return GroupLinks(size, card(rails), card(rails), card(1 / 8), tiers)


WHOLE = on_two_levels(16, 8, 1)


@pytest.mark.parametrize(
    ("shape", "x", "y"),
    [
        ((2, 8), on_one_level(2, card(1 / 8)), on_one_level(8, INTRA)),
        ((1, 16), on_one_level(1, INTRA), WHOLE),
        ((4, 4), on_two_levels(4, 2, 1 / 4), on_one_level(4, INTRA)),
        ((8, 2), on_two_levels(8, 4, 1 / 2), on_one_level(2, INTRA)),
        ((16, 1), WHOLE, on_one_level(1, INTRA)),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) else "",
)
def test_views_of_two_hosts_with_eight_devices(shape, x, y):
    links = two_by_eight().links(Mesh(shape, ("x", "y")))
    assert (links.group((0,)), links.group((1,)), links.group((0, 1))) == (x, y, WHOLE)
    assert tuple(links) == (x.flat, y.flat)


@pytest.mark.parametrize(
    ("rails", "columns", "all_devices"), [(1, 1 / 8, 1), (3, 3 / 8, 3), (8, 1, 8), (16, 1, 8)]
)
def test_a_group_drives_no_more_rails_than_it_has_members_or_its_part(rails, columns, all_devices):
    links = two_by_eight(rails).links(Mesh((2, 8), ("x", "y")))
    assert links.over((0,)) == card(columns)
    assert links.over((0, 1)) == card(all_devices)
    assert links.group((0, 1)).spread == card(min(1, rails / 8))
    assert links.group((0,)).single == card(columns)
    assert links.group((0, 1)).single == card(1)


def test_groups_that_stay_on_one_host_of_two_are_not_charged_for_the_network():
    mesh = Mesh((2, 4), ("x", "y"), device_ids=tuple(range(8, 16)))
    links = two_by_eight().links(mesh)
    assert {links.over(axes) for axes in every_set_of((0, 1))} == {INTRA}


def test_one_group_that_leaves_decides_for_its_axis_and_has_no_tiers():
    mesh = Mesh((2, 2), ("x", "y"), device_ids=(0, 1, 7, 8))
    links = two_by_eight().links(mesh)
    assert tuple(links) == (card(1), card(1))
    assert links.group((0,)).tiers == ()
    assert links.group((0, 1)) == GroupLinks(4, card(1), card(1), card(1 / 3))


def test_what_goes_further_passes_the_levels_below():
    """Racks of 2 hosts with a card of 1 GB/s each; 2 racks, one uplink of 5 GB/s each."""
    slow, fast = Link(2e-5, 1e9), Link(1e-5, 5e9)
    cluster = Cluster(
        "racks", (Host(DEVICE, 1, INTRA),) * 4, (Level("rack", 2, slow), Level("hall", 4, fast))
    )
    group = cluster.links(Mesh((4,), ("x",))).group((0,))
    both_cards = Link(2e-5, 2e9)
    assert group.tiers == (Tier(2, slow), Tier(2, both_cards))
    assert group.flat == slow


def walked(cluster, mesh, axes):
    """What `links(mesh).group(axes)` says, by walking groups, units and rails one by one."""
    groups = mesh.groups(axes)
    spans = [1, *(level.n_hosts for level in cluster.levels)]

    def members(group, level):
        found = defaultdict(list)
        for device_id in group:
            found[cluster.host(device_id) // spans[level]].append(device_id)
        return found

    inside = [
        cluster.hosts[host].link
        for group in groups
        for host, here in members(group, 0).items()
        if len(here) > 1 or len(group) == 1
    ]
    flat, single, spread = list(inside), list(inside), list(inside)
    of_level = [inside]
    for number, level in enumerate(cluster.levels):
        leaving = defaultdict(list)
        for group in groups:
            for unit, here in members(group, number).items():
                if len(here) < len(group):
                    leaving[unit].append(len(here))
        shares = []
        for counts in leaving.values():
            parts = [Fraction(0)] * len(counts)
            for _, index in itertools.product(range(level.rails), range(len(counts))):
                parts[index] += Fraction(1, len(counts))
            driven = [min(part, count) for part, count in zip(parts, counts, strict=True)]
            single += [level.link.times(float(min(1, part))) for part in parts]
            shares += [level.link.times(float(rails)) for rails in driven]
            spread.append(level.link.times(min(1, level.rails / sum(counts))))
        flat += shares
        of_level.append(shares)

    sizes = [{len(here) for group in groups for here in members(group, 0).values()}]
    for below, above in itertools.pairwise(range(len(spans))):
        sizes.append(
            {
                len(members(here, below))
                for group in groups
                for here in members(group, above).values()
            }
        )
    tiers = []
    if all(len(counts) == 1 for counts in sizes):
        counts = [count for (count,) in sizes]
        for top, count in enumerate(counts):
            passed = [
                link.times(math.prod(counts[level:top]))
                for level in range(top + 1)
                for link in of_level[level]
            ]
            if count > 1:
                tiers.append(Tier(count, slowest_link(passed)))
    return GroupLinks(
        len(groups[0]), slowest_link(flat), slowest_link(single), slowest_link(spread), tuple(tiers)
    )


def assert_same(found, expected):
    """Up to rounding of bandwidths."""
    assert (found.size, len(found.tiers)) == (expected.size, len(expected.tiers))
    pairs = [
        (found.flat, expected.flat),
        (found.single, expected.single),
        (found.spread, expected.spread),
    ]
    for one, other in zip(found.tiers, expected.tiers, strict=True):
        assert one.size == other.size
        pairs.append((one.link, other.link))
    for one, other in pairs:
        assert one.bandwidth_bytes_per_s == pytest.approx(other.bandwidth_bytes_per_s)
        assert one.duplex == pytest.approx(other.duplex)
        assert one.latency_s == other.latency_s


@given(st.data())
def test_groups_see_what_walking_them_and_their_rails_one_by_one_finds(data):
    cluster = data.draw(any_clusters)
    mesh = data.draw(meshes_on(cluster))
    links = cluster.links(mesh)
    for axes in every_set_of(range(mesh.ndim)):
        assert_same(links.group(axes), walked(cluster, mesh, axes))


@st.composite
def whole_clusters(draw):
    """Equal hosts under full units, and a mesh with an axis for each level: groups are even."""
    some_links = testing.links(half_duplex=True)
    fans = draw(st.lists(st.integers(2, 3), min_size=1, max_size=3))
    spans = itertools.accumulate(fans, operator.mul)
    levels = [Level(str(n), n, draw(some_links), draw(st.integers(1, 4))) for n in spans]
    host = Host(DEVICE, draw(st.integers(1, 3)), draw(some_links))
    cluster = Cluster("whole", (host,) * levels[-1].n_hosts, tuple(levels))
    shape = (*reversed(fans), host.n_devices)
    return cluster, Mesh(shape, tuple("abcd"[: len(shape)]))


@given(whole_clusters())
def test_even_groups_have_the_tiers_that_walking_them_finds(whole):
    cluster, mesh = whole
    links = cluster.links(mesh)
    for axes in every_set_of(range(mesh.ndim)):
        group = links.group(axes)
        assert_same(group, walked(cluster, mesh, axes))
        lengths = [mesh.shape[axis] for axis in axes if mesh.shape[axis] > 1]
        assert [tier.size for tier in group.tiers] == lengths[::-1]


@given(st.data())
def test_a_part_of_an_axis_is_an_axis_of_the_mesh_that_has_it_as_one(data):
    cluster = data.draw(any_clusters.filter(lambda cluster: cluster.n_devices > 1))
    mesh = data.draw(meshes_on(cluster).filter(lambda mesh: mesh.size > 1))
    axis = data.draw(st.sampled_from([i for i in range(mesh.ndim) if mesh.shape[i] > 1]))
    length = mesh.shape[axis]
    size = data.draw(st.sampled_from([n for n in range(2, length + 1) if length % n == 0]))
    pre = data.draw(st.sampled_from([n for n in range(1, length + 1) if length // size % n == 0]))
    split = mesh.split(mesh.axis_names[axis], (pre, size, length // (pre * size)))
    rest = [other for other in range(mesh.ndim) if other != axis]
    links, split_links = cluster.links(mesh), cluster.links(split)
    for others in every_set_of(rest):
        moved = [other + 2 * (other > axis) for other in others]
        part = links.group((SubAxis(axis, pre, size), *others))
        assert part == split_links.group((axis + 1, *moved))


@given(st.data())
def test_tiers_multiply_to_the_group_and_are_never_slower_together_than_one_ring(data):
    cluster = data.draw(any_clusters)
    mesh = data.draw(meshes_on(cluster))
    links = cluster.links(mesh)
    for axes in every_set_of(range(mesh.ndim)):
        group = links.group(axes)
        assert group.tiers == () or math.prod(tier.size for tier in group.tiers) == group.size
        for tier in group.tiers:
            assert tier.link.bandwidth_bytes_per_s >= group.flat.bandwidth_bytes_per_s * (1 - 1e-9)


@given(st.data())
def test_transposing_a_mesh_permutes_its_links(data):
    cluster = data.draw(any_clusters)
    mesh = data.draw(meshes_on(cluster))
    order = data.draw(st.permutations(range(mesh.ndim)))
    transposed = Mesh(
        tuple(mesh.shape[axis] for axis in order),
        tuple(mesh.axis_names[axis] for axis in order),
        tuple(mesh.grid.transpose(order).reshape(-1).tolist()),
    )
    links, turned = cluster.links(mesh), cluster.links(transposed)
    for axes in every_set_of(range(mesh.ndim)):
        assert turned.group(axes) == links.group([order[axis] for axis in axes])


@given(st.data())
def test_a_collective_over_all_devices_sees_the_same_whatever_the_shape(data):
    cluster = data.draw(any_clusters)
    mesh = data.draw(meshes_on(cluster))
    flat = Mesh((mesh.size,), ("all",), mesh.device_ids)
    assert cluster.links(mesh).group(range(mesh.ndim)) == cluster.links(flat).group((0,))


@given(st.data())
def test_names_of_axes_and_the_order_of_hosts_change_nothing(data):
    cluster = data.draw(nested_clusters(max_levels=1))
    mesh = data.draw(meshes_on(cluster))
    order = data.draw(st.permutations(range(cluster.n_hosts)))
    permuted = dataclasses.replace(cluster, hosts=tuple(cluster.hosts[host] for host in order))
    old = [d for host in order for d in range(cluster.n_devices) if cluster.host(d) == host]
    moved = Mesh(
        mesh.shape,
        tuple(f"renamed {name}" for name in mesh.axis_names),
        tuple(old.index(device_id) for device_id in mesh.device_ids),
    )
    before, after = cluster.links(mesh), permuted.links(moved)
    for axes in every_set_of(range(mesh.ndim)):
        assert after.group(axes) == before.group(axes)


def test_meshes_that_look_alike_have_equal_links():
    links = [
        two_by_eight().links(Mesh((2, 4), names, device_ids))
        for names, device_ids in [
            (("x", "y"), tuple(range(8))),
            (("a", "b"), tuple(range(8, 16))),
            (("y", "x"), (15, 8, 9, 14, 13, 12, 10, 11)),
        ]
    ]
    assert links[0] == links[1] == links[2]
    assert len({hash(one) for one in links}) == 1
    assert links[0] != two_by_eight().links(Mesh((2, 4), ("x", "y"), tuple(range(4, 12))))


def no_slower(after, before):
    return (
        after.bandwidth_bytes_per_s >= before.bandwidth_bytes_per_s
        and after.both_ways_bytes_per_s >= before.both_ways_bytes_per_s * (1 - 1e-15)
        and after.latency_s <= before.latency_s
    )


@given(st.data())
def test_more_bandwidth_or_more_rails_anywhere_make_nothing_slower(data):
    cluster = data.draw(any_clusters)
    mesh = data.draw(meshes_on(cluster))
    factor = data.draw(st.floats(1, 1e6))
    hosts, levels = list(cluster.hosts), list(cluster.levels)
    where = data.draw(st.integers(0, len(hosts) + 2 * len(levels) - 1))
    if where < len(hosts):
        hosts[where] = dataclasses.replace(hosts[where], link=hosts[where].link.times(factor))
    elif (level := where - len(hosts)) < len(levels):
        levels[level] = dataclasses.replace(levels[level], link=levels[level].link.times(factor))
    else:
        level -= len(levels)
        levels[level] = dataclasses.replace(
            levels[level], rails=levels[level].rails + data.draw(st.integers(1, 3))
        )
    faster = dataclasses.replace(cluster, hosts=tuple(hosts), levels=tuple(levels))
    links, faster_links = cluster.links(mesh), faster.links(mesh)
    for axes in every_set_of(range(mesh.ndim)):
        before, after = links.group(axes), faster_links.group(axes)
        assert no_slower(after.flat, before.flat)
        assert no_slower(after.single, before.single)
        assert no_slower(after.spread, before.spread)
        assert [tier.size for tier in after.tiers] == [tier.size for tier in before.tiers]
        for one, other in zip(after.tiers, before.tiers, strict=True):
            assert no_slower(one.link, other.link)


def opcodes_of(cluster, mesh):
    """Python instructions, library code included, that price every set of axes."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # finalizers of whatever else there is would count
    sys.settrace(trace)
    try:
        links = cluster.links(mesh)
        for axes in every_set_of(range(mesh.ndim)):
            links.group(axes)
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def test_the_work_in_python_does_not_depend_on_the_number_of_devices():
    def halls(n):
        """`n` units of `n` hosts of `n * n` devices, and a mesh of them as 4 axes of `n`."""
        hosts = (Host(DEVICE, n * n, INTRA),) * n**2
        levels = Level("row", n, card(1), 2), Level("hall", n * n, card(1), 3)
        return Cluster(str(n), hosts, levels), Mesh((n,) * 4, ("w", "x", "y", "z"))

    small, large = halls(2), halls(8)
    assert large[1].size == 4096
    opcodes_of(*small)  # what is imported or cached when first asked for
    assert opcodes_of(*large) == opcodes_of(*small)


@pytest.mark.parametrize("axes", [(2,), (0, SubAxis(0, 1, 2))], ids=["not there", "overlapping"])
def test_rejects_axes_that_the_mesh_does_not_have(axes):
    with pytest.raises(UnknownAxisError):
        two_by_eight().links(Mesh((2, 8), ("x", "y"))).group(axes)
