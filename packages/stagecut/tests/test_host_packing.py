import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stagecut import HostKind, InvalidInputError, Places
from stagecut.placement.host_packing import uncoverable
from stagecut.testing import all_assignments


def divisors(n):
    return tuple(m for m in range(1, n + 1) if n % m == 0)


@pytest.mark.parametrize("power", range(10))
def test_parts_of_a_host_are_the_powers_of_two_of_alpa(power):
    assert HostKind(2**power).parts == tuple(2**p for p in range(power + 1))


@pytest.mark.parametrize("n_devices", range(1, 30))
def test_all_divisors_below_30_cover_whatever_is_asked(n_devices):
    assert HostKind(n_devices).parts == divisors(n_devices)


@pytest.mark.parametrize(
    ("n_devices", "parts"), [(30, (1, 2, 6, 30)), (60, (1, 2, 4, 12, 60)), (72, divisors(72))]
)
def test_parts_divide_each_other_where_divisors_do_not_cover(n_devices, parts):
    assert HostKind(n_devices).parts == parts


@st.composite
def dividing_parts(draw):
    n_devices = draw(st.sampled_from((4, 6, 8, 9, 10, 12, 15, 16, 18, 20)))
    return n_devices, tuple(
        sorted({*draw(st.sets(st.sampled_from(divisors(n_devices)))), n_devices})
    )


@given(dividing_parts(), st.data())
def test_parts_that_divide_a_host_fill_hosts_unless_said_otherwise(dividing, data):
    n_devices, parts = dividing
    assert uncoverable(n_devices, parts) is None
    wanted, rest = [], n_devices * data.draw(st.integers(1, 3))
    places = Places.uniform(rest // n_devices, n_devices, parts=parts)
    while fitting := [m for m in parts if m <= rest]:
        wanted.append((1, data.draw(st.sampled_from(fitting))))
        rest -= wanted[-1][1]
    filled = next(all_assignments(sorted(wanted, reverse=True), places), None) is not None
    assert filled == (rest == 0)


@pytest.mark.parametrize("n_devices", [30, 60, 66, 84, 90])
def test_parts_said_not_to_fill_hosts_have_their_devices_and_do_not(n_devices):
    bad = uncoverable(n_devices, divisors(n_devices))
    assert sum(bad) == 2 * n_devices
    sums = {sum(some) for k in range(len(bad)) for some in itertools.combinations(bad, k)}
    assert n_devices not in sums


def test_rejects_a_host_without_devices():
    with pytest.raises(InvalidInputError, match=r"at least one device; got n_devices=0"):
        HostKind(0)


@pytest.mark.parametrize("parts", [(1, 2), (2, 1, 4), (0, 4), (1, 1, 4), (1, 4, 8)])
def test_rejects_parts_that_do_not_rise_to_the_whole_host(parts):
    with pytest.raises(InvalidInputError, match=r"ascending, from at least one .* got parts=.*4"):
        HostKind(4, parts=parts)
