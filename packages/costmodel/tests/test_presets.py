import re

import pytest
from costmodel import Cluster, Link, QuantityError, UnknownNameError, operator_time, presets
from shardspec import Mesh


@pytest.mark.parametrize("name", presets())
def test_presets_have_their_name_their_source_and_a_json_round_trip(name):
    cluster = Cluster.preset(name)
    assert cluster.name == name
    assert Cluster.from_json(cluster.to_json()) == cluster
    assert re.search(r"\b20\d\d\b|section \d|emulated", cluster.source)


def test_presets_are_sorted_and_include_the_machines_that_others_name():
    assert presets() == (
        "a2-megagpu-16g",
        "a3-megagpu-8g",
        "b200-sxm",
        "dgx-a100",
        "g5.48xlarge",
        "gb200-nvl72",
        "h100-sxm",
        "h200-sxm",
        "l40s",
        "mi300x",
        "p3.16xlarge",
        "p3.8xlarge",
        "p4d.24xlarge",
        "p4de.24xlarge",
        "p5.48xlarge",
        "piz-daint",
        "rhino-m8",
        "rhino-s1",
        "tpu-v4",
        "tpu-v5e",
        "tpu-v5p",
        "tpu-v6e",
        "two-hosts",
        "virtual-cpu",
    )


@pytest.mark.parametrize("n_hosts", [1, 3, 8])
@pytest.mark.parametrize("name", presets())
def test_a_number_after_the_colon_is_the_number_of_equal_hosts(name, n_hosts):
    one, several = Cluster.preset(name), Cluster.preset(f"{name}:{n_hosts}")
    assert several.name == f"{name}:{n_hosts}"
    assert several.hosts == one.hosts[:1] * n_hosts
    assert several.source == one.source
    assert several.links(Mesh((several.n_devices,), ("all",)))[0].bandwidth_bytes_per_s > 0


@pytest.mark.parametrize(
    ("name", "devices", "inside_bytes_per_s", "network_bytes_per_s"),
    [
        ("p3.8xlarge", 4, 100e9, 10e9 / 8),  # cross-mesh resharding, section 5
        ("p3.16xlarge", 8, 130e9, 2.5e9),
        ("rhino-m8", 8, 150e9, 100e9 / 8),  # Rhino, section 7.1
        ("rhino-s1", 1, 15.75e9, 100e9 / 8),
        ("piz-daint", 1, 15.75e9, 8.5e9),  # AutoDDL, section 5.1
        ("a2-megagpu-16g", 16, 300e9, 100e9 / 8),  # AutoDDL, section 5.2
        ("h100-sxm", 8, 450e9, 8 * 400e9 / 8),
        ("h200-sxm", 8, 450e9, 8 * 400e9 / 8),
        ("dgx-a100", 8, 235e9, 8 * 23.5e9),
        ("p4d.24xlarge", 8, 235e9, 400e9 / 8),
        ("p4de.24xlarge", 8, 235e9, 400e9 / 8),
        ("p5.48xlarge", 8, 450e9, 3200e9 / 8),
        ("a3-megagpu-8g", 8, 450e9, 1600e9 / 8),
        ("b200-sxm", 8, 900e9, 8 * 400e9 / 8),
        ("gb200-nvl72", 72, 900e9, 72 * 400e9 / 8),
        ("mi300x", 8, 7 * 64e9, 8 * 400e9 / 8),
        ("l40s", 8, 32e9, 400e9 / 8),
        ("g5.48xlarge", 8, 32e9, 100e9 / 8),
    ],
)
def test_testbeds_have_the_devices_and_networks_that_their_papers_state(
    name, devices, inside_bytes_per_s, network_bytes_per_s
):
    cluster = Cluster.preset(name)
    assert cluster.n_devices == cluster.devices_per_host == devices
    assert cluster.intra_host.bandwidth_bytes_per_s == inside_bytes_per_s
    assert cluster.inter_host.bandwidth_bytes_per_s == network_bytes_per_s


@pytest.mark.parametrize(("name", "chips"), [("tpu-v4", 4096), ("tpu-v5p", 8960)])
def test_tpu_pods_are_cubes_of_sixteen_hosts_of_four_chips(name, chips):
    pod = Cluster.preset(name)
    assert (pod.n_devices, pod.devices_per_host) == (chips, 4)
    assert [level.n_hosts for level in pod.levels] == [16, chips // 4]
    assert "Approximated" in pod.source
    assert [level.name for level in Cluster.preset(f"{name}:16").levels] == ["cube"]


@pytest.mark.parametrize(("name", "ring"), [("tpu-v5e", 100e9), ("tpu-v6e", 200e9)])
def test_tpu_pods_of_a_plane_have_thirty_two_hosts_of_eight_chips(name, ring):
    pod = Cluster.preset(name)
    assert (pod.n_devices, pod.devices_per_host) == (256, 8)
    assert "Approximated" in pod.source
    assert pod.intra_host.bandwidth_bytes_per_s == ring


def test_equal_chips_have_equal_rates_in_all_presets():
    by_name = {}
    for name in presets():
        device = Cluster.preset(name).device
        rates = device.flops_per_s, device.memory_bytes, device.memory_bandwidth_bytes_per_s
        assert by_name.setdefault(device.name, rates) == rates


def test_two_hosts_is_the_emulated_target_and_says_so():
    cluster = Cluster.preset("two-hosts")
    assert "not a measured machine" in cluster.source
    assert (cluster.n_hosts, cluster.devices_per_host, cluster.n_devices) == (2, 4, 8)
    assert cluster.intra_host == Link(latency_s=5e-6, bandwidth_bytes_per_s=5e9)
    assert cluster.inter_host == Link(latency_s=50e-6, bandwidth_bytes_per_s=125e6)
    device = cluster.device
    assert (device.peak("float32"), device.launch_s) == (100e9, 1e-6)
    assert (device.memory_bytes, device.memory_bandwidth_bytes_per_s) == (2**30, 10e9)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "p3.16xlarg",
            "no preset is called 'p3.16xlarg'; did you mean p3.16xlarge or p3.8",
        ),
        ("h100", "no preset is called 'h100'; did you mean h100-sxm; known: a2-megagpu-16g, a3-"),
        (None, "no preset is called 'None'; known: a2-megagpu-16g, "),
        ("cray:2", "no preset is called 'cray'; known: .*; describe another machine as Cluster"),
    ],
)
def test_rejects_a_preset_that_is_not_there_and_names_those_that_are_close(name, message):
    with pytest.raises(UnknownNameError, match=message) as caught:
        Cluster.preset(name)
    assert caught.value.name == str(name)


@pytest.mark.parametrize(
    "count", ["", "0", "-1", "two", "1.5", "2:2", "\N{ARABIC-INDIC DIGIT TWO}"]
)
def test_rejects_a_number_of_hosts_that_is_none(count):
    message = f"is followed by a number of hosts, as in 'two-hosts:2'; got 'two-hosts:{count}'"
    with pytest.raises(UnknownNameError, match=message):
        Cluster.preset(f"two-hosts:{count}")


def test_rejects_a_number_of_hosts_that_is_a_slip():
    with pytest.raises(QuantityError, match=r"n_hosts of a cluster .* <= 1048576; got 9999999999"):
        Cluster.preset("two-hosts:9999999999")
    with pytest.raises(
        UnknownNameError, match="is followed by a number of hosts, as in 'two-hosts:2'"
    ):
        Cluster.preset("two-hosts:" + "9" * 5000)


def test_an_int8_product_runs_at_the_published_rate_of_an_h100():
    h100 = Cluster.preset("h100-sxm").device
    flops = 2 * 8192.0**3
    assert operator_time(flops, 3 * 8192**2, h100, "int8") == pytest.approx(flops / 1979e12 + 2e-6)
    assert h100.peak("int8") == h100.peak("float8_e4m3fn") == 2 * h100.peak("bfloat16")
