import dataclasses
import math

import numpy as np
import pytest
from costmodel import Device, QuantityError, UnknownDtypeError, operator_bound, operator_time
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
CURVED = dataclasses.replace(DEVICE, efficiency=(("float32", ((10, 0.1), (1000, 0.9))),))
ROUNDING = 1 - 1e-12  # of a curve's logarithms
amounts = st.floats(0, 1e18)


def test_below_the_ridge_memory_decides():
    assert operator_time(100, 20, DEVICE, "float32") == 2.0 + 0.25


def test_above_the_ridge_arithmetic_decides():
    assert operator_time(400, 20, DEVICE, "float32") == 4.0 + 0.25


def test_the_ridge_moves_with_the_dtype():
    assert operator_time(400, 20, DEVICE, "float64") == 8.0 + 0.25


def test_an_operator_that_does_something_costs_its_launch():
    assert operator_time(1e-300, 0, DEVICE, "float32") == 0.25
    assert operator_time(0, 1e-300, DEVICE, "float32") == 0.25


def test_an_operator_that_does_nothing_is_free():
    assert operator_time(0, 0, DEVICE, "float32") == 0.0


def test_points_of_an_efficiency_curve_are_met():
    assert operator_time(10, 0, CURVED, "float32") == pytest.approx(10 / (100 * 0.1) + 0.25)
    assert operator_time(1000, 0, CURVED, "float32") == pytest.approx(1000 / (100 * 0.9) + 0.25)


def test_between_points_efficiency_is_a_power_of_the_size():
    assert CURVED.rate("float32", 100) == pytest.approx(100 * (0.1 * 0.9) ** 0.5)


def test_outside_the_points_the_nearest_one_holds():
    assert CURVED.rate("float32", 0) == CURVED.rate("float32", 1) == pytest.approx(10)
    assert CURVED.rate("float32", 1e9) == pytest.approx(90)


def test_a_dtype_without_a_curve_reaches_its_peak():
    assert CURVED.rate("float64", 1) == CURVED.peak("float64") == 50.0


@given(device=devices(), work=st.lists(st.tuples(amounts, amounts)))
def test_arrays_are_priced_element_by_element(device, work):
    flops, n_bytes = np.array(work).reshape(-1, 2).T
    times = operator_time(flops, n_bytes, device, "float32")
    assert times.shape == (len(work),)
    for time, (f, b) in zip(times, work, strict=True):
        one = operator_time(f, b, device, "float32")
        assert type(one) is float
        assert one == pytest.approx(time, rel=1e-12)


@given(device=devices(), flops=amounts, n_bytes=amounts)
def test_no_operator_beats_the_peak_or_the_memory(device, flops, n_bytes):
    time = operator_time(flops, n_bytes, device, "float32")
    assert time >= flops / device.peak("float32")
    assert time >= n_bytes / device.memory_rate_bytes_per_s


@pytest.mark.parametrize("dtype", [None, 32, "", ["float32"]], ids=repr)
def test_rejects_what_is_no_dtype(dtype):
    with pytest.raises(UnknownDtypeError, match="device 'toy' states no peak for dtype"):
        operator_time(1, 1, DEVICE, dtype)


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "int4"])
def test_integers_without_a_peak_run_at_the_rate_of_float32(dtype):
    assert DEVICE.peak(dtype) == 100.0
    assert operator_time(400, 20, DEVICE, dtype) == 4.0 + 0.25


@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_integers_run_at_the_slowest_rate_where_float32_has_none(dtype):
    device = dataclasses.replace(DEVICE, flops_per_s=(("bfloat16", 80.0), ("float64", 20.0)))
    assert device.peak(dtype) == 20.0


def test_integers_take_the_units_of_the_narrowest_that_are_as_wide():
    rates = (("float32", 1.0), ("int64", 2.0), ("uint8", 3.0), ("int32", 4.0))
    device = dataclasses.replace(DEVICE, flops_per_s=rates)
    found = {name: device.units(name) for name in ("int4", "uint8", "int16", "uint64", "bool")}
    assert found == {
        "int4": "uint8",
        "uint8": "uint8",
        "int16": "int32",
        "uint64": "int64",
        "bool": "float32",
    }


def test_float8_takes_the_units_of_the_narrowest_that_are_wider_and_their_curve():
    curve = ("bfloat16", ((10, 0.1), (1000, 0.9)))
    rates = (("float32", 100.0), ("bfloat16", 200.0))
    device = dataclasses.replace(DEVICE, flops_per_s=rates, efficiency=(curve,))
    assert device.units("float8_e4m3fn") == device.units("float4_e2m1fn") == "bfloat16"
    assert device.rate("float8_e5m2", 1e9) == device.rate("bfloat16", 1e9) == pytest.approx(180)


@given(device=devices(), dtype=st.sampled_from(["bool", "int4", "int8", "uint32", "float8_e5m2"]))
def test_no_arithmetic_is_free(device, dtype):
    assert 0 < device.peak(dtype) < math.inf


def test_integers_with_a_peak_are_priced_by_it():
    device = dataclasses.replace(DEVICE, flops_per_s=(("int8", 100.0),))
    assert operator_time(400, 20, device, "int8") == 4.0 + 0.25


@given(device=devices(), flops=amounts, n_bytes=amounts, factor=st.floats(1, 100))
def test_more_work_never_costs_less(device, flops, n_bytes, factor):
    time = operator_time(flops, n_bytes, device, "float32")
    assert operator_time(flops * factor, n_bytes, device, "float32") >= time * ROUNDING
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
    device = dataclasses.replace(device, efficiency=())
    roofs = flops / device.peak("float32"), n_bytes / device.memory_rate_bytes_per_s
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
    ("change", "message"),
    [
        (
            {"flops_per_s": (("float32", 0.0),)},
            "flops_per_s of device 'toy' for float32 is a finite number > 0; got 0.0",
        ),
        ({"flops_per_s": (("float32", "1e12"),)}, "for float32 is a finite number > 0; got '1e12'"),
        ({"flops_per_s": (("float32", None),)}, "for float32 is a finite number > 0; got None"),
        ({"flops_per_s": {"float32": 1e12}}, r"flops_per_s has pairs \(dtype, FLOP/s\); got {'fl"),
        ({"flops_per_s": 1e12}, r"flops_per_s has pairs \(dtype, FLOP/s\); got 1000000000000.0"),
        ({"memory_bytes": 0}, "memory_bytes of device 'toy' is a finite whole number >= 1; got 0"),
        ({"memory_bytes": math.inf}, "memory_bytes of device 'toy' .*; got inf"),
        ({"memory_bytes": 1.5}, "memory_bytes of device 'toy' .*; got 1.5"),
        ({"memory_bytes": True}, "memory_bytes of device 'toy' .*; got True"),
        (
            {"memory_bandwidth_bytes_per_s": math.inf},
            "memory_bandwidth_bytes_per_s of device 'toy' is a finite number > 0; got inf",
        ),
        ({"launch_s": -1e-6}, "launch_s of device 'toy' is a finite number >= 0; got -1e-06"),
        ({"efficiency": (("float32", 0.5),)}, r"has pairs \(FLOP, part of the peak\); got 0.5"),
        (
            {"efficiency": (("float32", (1e9, 0.5)),)},
            r"\(FLOP, part of the peak\); got \(100000000",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_rejects_a_device_with_a_figure_out_of_range(change, message):
    with pytest.raises(QuantityError, match=message):
        dataclasses.replace(DEVICE, **change)


def test_figures_of_numpy_and_lists_become_pythons_numbers_and_tuples():
    device = Device(
        "toy",
        [["float32", np.float32(100)], ["float64", np.int64(50)]],
        np.int64(1024),
        np.float64(10),
        np.float32(0.25),
        [["float32", [[np.int32(10), 0.5]]]],
    )
    curve = (("float32", ((10.0, 0.5),)),)
    assert device == dataclasses.replace(DEVICE, efficiency=curve)
    assert hash(device) == hash(dataclasses.replace(DEVICE, efficiency=curve))
    assert type(device.memory_bytes) is int


def test_rejects_two_peaks_for_one_dtype():
    with pytest.raises(QuantityError, match="a device has one peak for each dtype; got"):
        dataclasses.replace(DEVICE, flops_per_s=(("float32", 1.0), ("float32", 2.0)))


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        ((), "an efficiency curve has points"),
        (((1e6, 80.0),), r"where 80 % is 0\.8, of .* is a number > 0 and <= 1; got 80\.0"),
        (((1e6, 0.0),), "is a number > 0 and <= 1; got 0.0"),
        (((1e6, math.nan),), "is a number > 0 and <= 1; got nan"),
        (((0, 0.5),), "FLOP of an efficiency curve of float32 is a finite number > 0; got 0"),
        (((1e6, 0.5), (1e6, 0.6)), "by rising FLOP; got"),
        (
            ((1e6, 0.1), (2e6, 0.3)),
            r"FLOP / part, which is time, must not fall; got \(1e\+06, 0\.1",
        ),
    ],
)
def test_rejects_an_efficiency_curve_that_means_nothing(curve, message):
    with pytest.raises(QuantityError, match=message):
        dataclasses.replace(DEVICE, efficiency=(("float32", curve),))


@pytest.mark.parametrize("dtypes", [("bfloat16",), ("float32", "float32")])
def test_rejects_efficiency_curves_that_belong_to_no_peak_of_their_own(dtypes):
    message = r"at most one efficiency curve for each dtype that it states a peak for \(float32, f"
    with pytest.raises(QuantityError, match=message):
        dataclasses.replace(DEVICE, efficiency=tuple((name, ((1, 0.5),)) for name in dtypes))


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, "1e9"], ids=repr)
def test_rejects_amounts_of_work_that_mean_nothing(bad):
    with pytest.raises(QuantityError, match="flops is a finite number >= 0; got"):
        operator_time(bad, 0, DEVICE, "float32")
    with pytest.raises(QuantityError, match="n_bytes is a finite number >= 0; got"):
        operator_time(0, bad, DEVICE, "float32")


@given(devices(), amounts, amounts, st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_parts_of_an_operator_take_no_less_than_its_bound(
    device: Device, flops: float, n_bytes: float, parts: list[float]
) -> None:
    """The parts are not smaller than the whole, together; each is launched."""
    shares = [part / max(sum(parts), 1e-9) for part in parts] if sum(parts) > 0 else [1.0]
    shares[0] += max(0.0, 1.0 - sum(shares))
    times = (operator_time(flops * s, n_bytes * s, device, "float32", 0.0) for s in shares)
    assert sum(times) >= operator_bound(flops, n_bytes, device, "float32") * (1 - 1e-9)


@given(devices(), amounts)
def test_no_operator_has_a_higher_rate_than_the_highest(device: Device, flops: float) -> None:
    assert device.rate("float32", flops) <= device.highest_rate("float32") * (1 + 1e-12)
