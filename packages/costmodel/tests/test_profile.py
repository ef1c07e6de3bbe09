import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from costmodel import Link, QuantityError, UnknownNameError
from costmodel.errors import (
    CostmodelError,
    FitError,
    OtherMachineWarning,
    ProfileFormatError,
)
from costmodel.measured.fits import CurveFit, Estimate, LinePiece, LinkFit
from costmodel.measured.machine import Machine
from costmodel.measured.points import CollectivePoint, MatmulPoint, StreamPoint
from costmodel.profile import Profile
from costmodel.report.table import table
from hypothesis import given
from hypothesis import strategies as st

SMALL = Path(__file__).with_name("small_profile.json")
EXACT = (Estimate(1e-6, 1e-6, 1e-6), Estimate(1e-9, 1e-9, 1e-9))


@pytest.fixture
def profile() -> Profile:
    return Profile.from_json(SMALL.read_text())


def test_json_round_trip(profile):
    assert Profile.from_json(profile.to_json()) == profile


def test_the_fits_of_a_profile_are_those_of_its_points(profile):
    fields = ("backend", "date", "machine", "versions", "n_processes")
    again = Profile.fitted(
        **{name: getattr(profile, name) for name in fields},
        collectives=profile.collectives,
        matmuls=profile.matmuls,
        streams=profile.streams,
    )
    assert table(again) == table(profile)  # another libm may differ in the last digits


def test_loading_on_the_machine_of_a_profile_is_silent(profile, tmp_path, recwarn):
    path = tmp_path / "here.json"
    path.write_text(replace(profile, machine=Machine.this()).to_json())
    assert Profile.load(path).machine == Machine.this()
    assert not recwarn


def test_loading_on_another_machine_warns(profile, tmp_path):
    path = tmp_path / "there.json"
    path.write_text(replace(profile, machine=Machine("Z80", 1, 2**16, "0" * 12)).to_json())
    with pytest.warns(OtherMachineWarning, match="was measured on 1 cores of Z80"):
        Profile.load(path)


def test_rejects_what_is_no_json():
    with pytest.raises(ProfileFormatError, match="this is no JSON"):
        Profile.from_json("alpha = 1")


def test_rejects_another_version(profile):
    text = json.dumps({**json.loads(profile.to_json()), "version": 99})
    with pytest.raises(
        ProfileFormatError, match=r"version 99 .* reads version 1: .* measure again"
    ):
        Profile.from_json(text)


def test_names_missing_and_unknown_fields(profile):
    fields = json.loads(profile.to_json())
    del fields["machine"]["cpu"]
    fields["colour"] = "red"
    with pytest.raises(ProfileFormatError, match=r"machine\.cpu is missing; colour is unknown"):
        Profile.from_json(json.dumps(fields))


@given(n=st.integers(1, 9), sizes=st.lists(st.integers(0, 2**40), min_size=1))
def test_predictions_never_fall_with_the_size(n, sizes):
    profile = Profile.from_json(SMALL.read_text())
    for kind in ("all_reduce", "all_gather"):
        times = profile.time(kind, n, np.sort(np.array(sizes)))
        assert (np.diff(times) >= 0).all()
        assert [profile.time(kind, n, size) for size in sorted(sizes)] == pytest.approx(times)


def test_a_group_of_one_is_free(profile):
    assert profile.time("all_reduce", 1, 1e9) == 0


def test_predictions_of_measured_groups_are_near_their_points(profile):
    errors = [
        abs(profile.time(p.kind, p.n, p.n_bytes) / p.median_s - 1) for p in profile.collectives
    ]
    assert np.median(errors) < 0.1


def test_groups_that_were_not_measured_lie_between_those_that_were(profile):
    two, three, four = (profile.time("all_reduce", n, 2**20) for n in (2, 3, 4))
    assert two < three < four


def test_a_collective_without_points_is_named(profile):
    with pytest.raises(UnknownNameError, match="has points of all_gather, all_reduce; got 'gossip"):
        profile.time("gossip", 2, 1)


def test_rejects_a_group_of_none(profile):
    with pytest.raises(QuantityError, match="n is a finite whole number >= 1"):
        profile.time("all_reduce", 0, 1)


def test_one_host_has_the_link_inside(profile):
    cluster = profile.cluster(1, 4)
    assert (cluster.n_hosts, cluster.devices_per_host) == (1, 4)
    assert cluster.intra_host == profile.link
    assert cluster.device == profile.device
    assert profile.date in cluster.source


def test_hosts_of_one_device_have_the_link_between_them(profile):
    assert profile.cluster(4, 1).inter_host == profile.link


def test_hosts_of_several_devices_need_a_network(profile):
    with pytest.raises(QuantityError, match="give network=Link"):
        profile.cluster(2, 4)
    network = Link(1e-4, 1e8)
    assert profile.cluster(2, 4, network).inter_host == network


def test_a_profile_without_a_stream_says_so(profile):
    with pytest.raises(FitError, match="needs a point of a stream"):
        Profile.fitted(
            backend="torch",
            date=profile.date,
            machine=profile.machine,
            versions=(),
            n_processes=2,
            collectives=profile.collectives,
            matmuls=profile.matmuls,
            streams=(),
        )


POINTS = (
    lambda seconds: CollectivePoint("all_reduce", 2, 8, seconds),
    lambda seconds: MatmulPoint(1, 1, 1, "float32", seconds),
    lambda seconds: StreamPoint(8, seconds),
)


@pytest.mark.parametrize("make", POINTS, ids=["collective", "matmul", "stream"])
def test_points_have_positive_times(make):
    with pytest.raises(QuantityError, match="a point has seconds, at least once; got none"):
        make(())
    for bad in (0.0, -1.0, float("inf"), float("nan"), "1"):
        with pytest.raises(QuantityError, match="seconds of a point is a finite number > 0; got"):
            make((1.0, bad))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: CollectivePoint("all_reduce", 1, 8, (1.0,)),
            "n of a collective's point is a finite whole number >= 2; got 1",
        ),
        (lambda: CollectivePoint("all_reduce", 2, -8, (1.0,)), "n_bytes of a collective's point"),
        (lambda: MatmulPoint(0, 1, 1, "float32", (1.0,)), "m of a product's point .*; got 0"),
        (lambda: MatmulPoint(1, 1, 0.5, "float32", (1.0,)), "k of a product's point .*; got 0.5"),
        (lambda: StreamPoint(0, (1.0,)), "n_bytes of a stream's point .*; got 0"),
        (lambda: Machine("Z80", 0, 2**16, ""), "n_cores of a machine .*; got 0"),
        (lambda: Machine("Z80", 1, 0, ""), "memory_bytes of a machine .*; got 0"),
        (
            lambda: Estimate(1.0, 2.0, 3.0),
            r"low end of an estimate is a number .* <= 1\.0; got 2.0",
        ),
        (lambda: Estimate(-1.0, 0.0, 1.0), "value of an estimate is a number >= 0"),
        (lambda: LinePiece(-1, *EXACT), "from_bytes of a piece .*; got -1"),
        (lambda: CurveFit("all_reduce", 2, (), 1.0, 0.0), "start at 0 bytes and rise; got from_b"),
        (
            lambda: CurveFit("all_reduce", 2, (LinePiece(8, *EXACT),), 1.0, 0.0),
            r"start at 0 bytes and rise; got from_bytes=\[8\]",
        ),
        (lambda: LinkFit((), (), *EXACT, 1.0, 0.0), "one algorithm for each of its collectives"),
        (
            lambda: LinkFit(("all_reduce",), ("ring",), *EXACT, math.nan, 0.0),
            "r_squared of a fit is a number .*; got nan",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_of_points_and_fits_are_in_their_range(make, message):
    with pytest.raises(QuantityError, match=message):
        make()


def test_points_and_fits_are_of_collectives_and_algorithms_that_there_are():
    with pytest.raises(UnknownNameError, match=r"a collective is one of .*; got 'gossip'"):
        CollectivePoint("gossip", 2, 8, (1.0,))
    with pytest.raises(UnknownNameError, match=r"a collective is one of .*; got 'gossip'"):
        CurveFit("gossip", 2, (LinePiece(0, *EXACT),), 1.0, 0.0)
    with pytest.raises(UnknownNameError, match=r"all_gather has the algorithms ring, .*; got 'r"):
        LinkFit(("all_gather",), ("rumour",), *EXACT, 1.0, 0.0)


def leaves(value, path=()):
    """Paths of all values in a JSON document that are no lists or objects."""
    if not isinstance(value, list | dict):
        return [path]
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    return [leaf for key, entry in entries for leaf in leaves(entry, (*path, key))]


DOCUMENT = json.loads(SMALL.read_text())
HOSTILE = (None, True, "", "1", [], {}, 0, -1, 0.5, math.nan, math.inf, 1e300, 10**400, [[1]])


@given(path=st.sampled_from(leaves(DOCUMENT)), value=st.sampled_from(HOSTILE))
def test_whatever_stands_in_a_text_is_refused_by_name_or_predicts(path, value):
    document = json.loads(SMALL.read_text())
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        profile = Profile.from_json(json.dumps(document))
        times = [profile.time("all_reduce", n, 1e6) for n in (1, 2, 3, 4)]
        assert profile.cluster(2, 1).n_devices == 2
    except CostmodelError:
        return
    assert all(0 <= seconds <= math.inf for seconds in times)
    assert Profile.from_json(profile.to_json()) == profile
    assert str(profile.n_processes) in table(profile)


@pytest.mark.parametrize("n", [0, 1.5, "2", None, True])
def test_rejects_hosts_that_can_not_be_counted(profile, n):
    for counts in ((n, 1), (1, n)):
        with pytest.raises(QuantityError, match=f"is a finite whole number >= 1; got {n!r}"):
            profile.cluster(*counts)


@pytest.mark.parametrize("text", [None, 7], ids=repr)
def test_rejects_what_is_no_text(text):
    with pytest.raises(ProfileFormatError, match="this is no JSON: the JSON object must be str"):
        Profile.from_json(text)


def test_a_profile_is_written_as_it_always_was(check_golden):
    check_golden("profile.json", Profile.from_json(SMALL.read_text()).to_json())
