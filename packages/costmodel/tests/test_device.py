import dataclasses
import math

import pytest
from costmodel import Device, QuantityError, UnknownDtypeError, operator_time
from costmodel.testing import devices
from hypothesis import given
from hypothesis import strategies as st

DEVICE = Device(
    name="toy",
    flops_per_s=(("float32", 100.0), ("float64", 50.0)),
    memory_bytes=1024,
    memory_bandwidth_bytes_per_s=10.0,
    launch_s=0.25,
)
amounts = st.floats(0, 1e18)


def test_below_the_ridge_memory_decides():
    assert operator_time(100, 20, DEVICE, "float32") == 2.0 + 0.25


def test_above_the_ridge_arithmetic_decides():
    assert operator_time(400, 20, DEVICE, "float32") == 4.0 + 0.25


def test_the_ridge_moves_with_the_dtype():
    assert operator_time(400, 20, DEVICE, "float64") == 8.0 + 0.25


def test_an_operator_that_does_nothing_costs_its_launch():
    assert operator_time(0, 0, DEVICE, "float32") == 0.25


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8"])
def test_integers_without_a_peak_are_priced_by_their_bytes(dtype):
    assert DEVICE.peak(dtype) == math.inf
    assert operator_time(1e9, 20, DEVICE, dtype) == 2.0 + 0.25


def test_integers_with_a_peak_are_priced_by_it():
    device = dataclasses.replace(DEVICE, flops_per_s=(("int8", 100.0),))
    assert operator_time(400, 20, device, "int8") == 4.0 + 0.25


@given(device=devices(), flops=amounts, n_bytes=amounts, factor=st.floats(1, 100))
def test_more_work_never_costs_less(device, flops, n_bytes, factor):
    time = operator_time(flops, n_bytes, device, "float32")
    assert operator_time(flops * factor, n_bytes, device, "float32") >= time
    assert operator_time(flops, n_bytes * factor, device, "float32") >= time


@given(device=devices(), flops=amounts, n_bytes=amounts, factor=st.floats(1, 100))
def test_a_faster_device_never_costs_more(device, flops, n_bytes, factor):
    faster = dataclasses.replace(
        device,
        flops_per_s=tuple((name, rate * factor) for name, rate in device.flops_per_s),
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * factor,
        launch_s=device.launch_s / factor,
    )
    time = operator_time(flops, n_bytes, device, "float32")
    assert operator_time(flops, n_bytes, faster, "float32") <= time


@given(device=devices(), flops=amounts, n_bytes=amounts)
def test_time_lies_between_the_roofs_and_their_sum(device, flops, n_bytes):
    roofs = flops / device.peak("float32"), n_bytes / device.memory_bandwidth_bytes_per_s
    time = operator_time(flops, n_bytes, device, "float32")
    assert max(roofs) <= time <= (sum(roofs) + device.launch_s) * (1 + 1e-12)


def test_names_a_floating_point_dtype_without_a_peak():
    message = (
        "device 'toy' states no peak for dtype 'bfloat16', only for float32, float64; "
        r"add \('bfloat16', FLOP/s\) to its flops_per_s"
    )
    with pytest.raises(UnknownDtypeError, match=message) as caught:
        operator_time(1, 1, DEVICE, "bfloat16")
    assert caught.value.name == "bfloat16"
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize(
    "change",
    [
        {"flops_per_s": (("float32", 0.0),)},
        {"memory_bytes": 0},
        {"memory_bandwidth_bytes_per_s": float("inf")},
        {"launch_s": -1e-6},
    ],
    ids=lambda change: next(iter(change)),
)
def test_rejects_a_device_with_a_figure_out_of_range(change):
    with pytest.raises(QuantityError, match="a device needs finite rates > 0, memory_bytes > 0"):
        dataclasses.replace(DEVICE, **change)


def test_rejects_two_peaks_for_one_dtype():
    with pytest.raises(QuantityError, match="a device has one peak for each dtype; got"):
        dataclasses.replace(DEVICE, flops_per_s=(("float32", 1.0), ("float32", 2.0)))


@pytest.mark.parametrize(("flops", "n_bytes"), [(-1, 0), (0, -1)])
def test_rejects_a_negative_amount_of_work(flops, n_bytes):
    with pytest.raises(QuantityError, match="an operator needs flops >= 0 and n_bytes >= 0; got"):
        operator_time(flops, n_bytes, DEVICE, "float32")
