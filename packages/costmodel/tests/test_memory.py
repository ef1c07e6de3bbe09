import pytest
from costmodel import ParameterBytes, QuantityError, UnknownNameError, stage_memory_bytes
from hypothesis import given
from hypothesis import strategies as st

amounts = st.integers(0, 2**40)


def test_gpt_layer_takes_the_memory_of_the_cross_mesh_paper_table_1():
    s, h, b, tmp = 1024, 12288, 2, 8
    adam = ParameterBytes.of("adam", mixed_precision=True)
    parameters = 12 * h**2 // tmp
    master_copy_bytes, moment_bytes = 4, 4
    moments = (adam.optimizer_state - master_copy_bytes) // moment_bytes * parameters
    weights_and_optimizer = (adam.weight + adam.optimizer_state) * parameters

    assert round(parameters / 2**20) == 216  # "216M"
    assert moments == 24 * h**2 // tmp
    assert round(moments / 2**20) == 432  # "432M"
    assert weights_and_optimizer == 168 * h**2 // tmp
    assert f"{weights_and_optimizer / 2**30:.2f}" == "2.95"  # "2.95GB"
    assert adam.weight * b * s * h == 48 * 2**20  # "48MB": activations are stored like weights


@pytest.mark.parametrize(
    ("optimizer", "mixed_precision", "expected"),
    [
        ("sgd", False, (4, 4, 0)),
        ("momentum", False, (4, 4, 4)),
        ("adam", False, (4, 4, 8)),
        ("sgd", True, (2, 2, 4)),
        ("momentum", True, (2, 2, 8)),
        ("adam", True, (2, 2, 12)),
    ],
)
def test_bytes_per_parameter(optimizer, mixed_precision, expected):
    kept = ParameterBytes.of(optimizer, mixed_precision=mixed_precision)
    assert (kept.weight, kept.gradient, kept.optimizer_state) == expected


@given(fixed=st.tuples(amounts, amounts, amounts), activation=amounts, s=st.integers(0, 64))
def test_each_microbatch_in_flight_adds_its_activations(fixed, activation, s):
    assert stage_memory_bytes(*fixed, activation, in_flight=0) == sum(fixed)
    more, less = (stage_memory_bytes(*fixed, activation, in_flight=n) for n in (s + 1, s))
    assert more - less == activation


def test_rejects_an_optimizer_it_does_not_know():
    message = "no optimizer is called 'lion'; known: sgd, momentum, adam; for another one construct"
    with pytest.raises(UnknownNameError, match=message) as caught:
        ParameterBytes.of("lion", mixed_precision=False)
    assert caught.value.name == "lion"


def test_rejects_negative_memory():
    message = r"memory is the sum of terms >= 0; got \(1, 1, 1, -1, 2\)"
    with pytest.raises(QuantityError, match=message):
        stage_memory_bytes(1, 1, 1, -1, in_flight=2)
