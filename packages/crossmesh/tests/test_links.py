import math

import pytest
from crossmesh import Links, PlanError


def test_one_rate_is_that_of_every_host():
    assert Links(5, device_bytes_per_s=math.inf, latency_s=0).rates([7, 3]) == {3: 5.0, 7: 5.0}


def test_rates_by_host_in_any_order_are_equal_and_hashable():
    one, other = (Links(rates, 1.0, 0.0) for rates in ({0: 1.0, 1: 2.0}, {1: 2.0, 0: 1.0}))
    assert one == other
    assert len({one, other}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 0.0), "positive number .* got 0.0 for every host"),
        ((math.nan, 1.0, 0.0), "positive number .* got nan for every host"),
        (({0: 1.0, 3: -1.0}, 1.0, 0.0), "positive number .* got -1.0 for host 3"),
        (({0: math.inf}, 1.0, 0.0), "positive number .* got inf for host 0"),
        (("fast", 1.0, 0.0), "a mapping from hosts .* got host_bytes_per_s='fast'"),
        (({"a": 1.0}, 1.0, 0.0), r"\(integers\) to numbers; got host_bytes_per_s={'a'"),
        (({0: "x"}, 1.0, 0.0), "positive number .* got x for host 0"),
        ((10**400, 1.0, 0.0), "positive number .* got 1000.* for every host"),
        ((1.0, None, 0.0), "or inf; got device_bytes_per_s=None"),
        ((1.0, 1.0, "0"), "a number, finite and not negative; got latency_s=0"),
        ((1.0, 0.0, 0.0), "or inf; got device_bytes_per_s=0.0"),
        ((1.0, math.nan, 0.0), "or inf; got device_bytes_per_s=nan"),
        ((1.0, 1.0, -1.0), "finite and not negative; got latency_s=-1.0"),
        ((1.0, 1.0, math.inf), "finite and not negative; got latency_s=inf"),
    ],
)
def test_says_which_rate_is_invalid(arguments, message):
    with pytest.raises(PlanError, match=message):
        Links(*arguments)


def test_says_which_hosts_have_no_rate():
    with pytest.raises(PlanError, match=r"host_bytes_per_s has \[0, 1\] but not \[2\]"):
        Links({0: 1.0, 1: 1.0}, 1.0, 0.0).rates([0, 2])
