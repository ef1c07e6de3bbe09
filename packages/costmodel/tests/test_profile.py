import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from costmodel import Link, QuantityError, UnknownNameError
from costmodel.errors import FitError, OtherMachineWarning, ProfileFormatError
from costmodel.machine import Machine
from costmodel.points import CollectivePoint, MatmulPoint, StreamPoint
from costmodel.profile import Profile
from costmodel.table import table
from hypothesis import given
from hypothesis import strategies as st

SMALL = Path(__file__).with_name("small_profile.json")


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
    with pytest.raises(ProfileFormatError, match="got version 99; measure again"):
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


@pytest.mark.parametrize("seconds", [(), (0.0,), (1.0, -1.0), (float("inf"),)])
def test_points_have_positive_times(seconds):
    for make in (
        lambda: CollectivePoint("all_reduce", 2, 8, seconds),
        lambda: MatmulPoint(1, 1, 1, "float32", seconds),
        lambda: StreamPoint(8, seconds),
    ):
        with pytest.raises(QuantityError, match="finite seconds > 0, at least once"):
            make()


def test_points_of_collectives_have_groups():
    with pytest.raises(QuantityError, match="n >= 2 and n_bytes >= 0; got n=1"):
        CollectivePoint("all_reduce", 1, 8, (1.0,))


def test_points_of_products_have_matrices():
    with pytest.raises(QuantityError, match="m, n, k >= 1; got m=0"):
        MatmulPoint(0, 1, 1, "float32", (1.0,))
