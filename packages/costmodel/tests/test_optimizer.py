import pytest
from costmodel import ParameterBytes, QuantityError, UnknownNameError
from hypothesis import given
from hypothesis import strategies as st

MIXED_ADAM = ParameterBytes.of("adam", mixed_precision=True)


@pytest.mark.parametrize(
    ("optimizer", "mixed_precision", "expected"),
    [
        ("sgd", False, (4, 4, 0)),
        ("momentum", False, (4, 4, 4)),
        ("adam", False, (4, 4, 8)),
        ("adamw", False, (4, 4, 8)),
        ("sgd", True, (2, 2, 4)),
        ("momentum", True, (2, 2, 8)),
        ("adam", True, (2, 2, 12)),
        ("adamw", True, (2, 2, 12)),
    ],
)
def test_bytes_per_parameter(optimizer, mixed_precision, expected):
    kept = ParameterBytes.of(optimizer, mixed_precision=mixed_precision)
    assert (kept.weight, kept.gradient, kept.optimizer_state) == expected


@pytest.mark.parametrize(
    ("zero_stage", "printed"), [(0, "120.0"), (1, "31.4"), (2, "16.6"), (3, "1.9")]
)
def test_zero_keeps_what_its_paper_prints(zero_stage, printed):
    # Rajbhandari et al., figure 1: 7.5B parameters, 64 devices, gigabytes of 1e9.
    states = MIXED_ADAM.times(7_500_000_000, zero_stage=zero_stage, n_replicas=64)
    assert f"{states.total / 1e9:.1f}" == printed


@pytest.mark.parametrize("n_replicas", [1, 2, 8])
def test_megatron_keeps_18_bytes_or_6_and_12_shared(n_replicas):
    # megatron/training/theoretical_memory_usage.py: num_bytes_per_parameter.
    megatron = ParameterBytes(weight=2, gradient=4, optimizer_state=12)
    assert megatron.times(800).total == 18 * 800
    shared = megatron.times(800, zero_stage=1, n_replicas=n_replicas)
    assert shared.total == (6 + 12 / n_replicas) * 800


@given(n=st.integers(0, 10**6), stage=st.integers(0, 3), replicas=st.integers(1, 64))
def test_shares_of_all_replicas_hold_everything_and_no_device_more_than_needed(n, stage, replicas):
    whole, share = MIXED_ADAM.times(n), MIXED_ADAM.times(n, zero_stage=stage, n_replicas=replicas)
    split = {"optimizer_state": 1, "gradient": 2, "weight": 3}
    for field, first_stage in split.items():
        all_of_it, part = getattr(whole, field), getattr(share, field)
        if stage < first_stage:
            assert part == all_of_it
        else:
            assert part * replicas >= all_of_it
            assert (part - getattr(MIXED_ADAM, field)) * replicas < all_of_it or part == 0
    assert share.total == share.weight + share.gradient + share.optimizer_state


def test_rejects_an_optimizer_it_does_not_know():
    message = "no optimizer is called 'lion'; known: sgd, momentum, adam, adamw; for another one co"
    with pytest.raises(UnknownNameError, match=message) as caught:
        ParameterBytes.of("lion", mixed_precision=False)
    assert caught.value.name == "lion"


@pytest.mark.parametrize("zero_stage", [4, -1, 0.5])
def test_rejects_a_stage_that_zero_does_not_have(zero_stage):
    with pytest.raises(QuantityError, match=r"ZeRO has the stages 0|zero_stage is a finite whole"):
        MIXED_ADAM.times(8, zero_stage=zero_stage)


@pytest.mark.parametrize(("n_parameters", "n_replicas"), [(-1, 1), (1.5, 1), (8, 0)])
def test_rejects_counts_that_count_nothing(n_parameters, n_replicas):
    with pytest.raises(QuantityError, match=r"n_(parameters|replicas) is a finite whole number >="):
        MIXED_ADAM.times(n_parameters, n_replicas=n_replicas)
