import pytest
from costmodel import (
    ParameterBytes,
    QuantityError,
    in_flight,
    stage_memory_bytes,
    transformer_layer_bytes,
)
from costmodel.memory.held_microbatches import SCHEDULES
from hypothesis import given
from hypothesis import strategies as st

amounts = st.integers(0, 2**40)


def test_gpt_layer_takes_the_memory_of_the_cross_mesh_paper_table_1():
    s, h, b, tmp = 1024, 12288, 2, 8
    adam = ParameterBytes.of("adam", mixed_precision=True)
    parameters = 12 * h**2 // tmp
    states = adam.times(parameters)
    moments = (states.optimizer_state - 4 * parameters) // 4  # float32, beside a master copy
    weights_and_optimizer = states.weight + states.optimizer_state
    # Between layers: what a boundary carries, or full recomputation keeps. Any number of heads.
    activation = transformer_layer_bytes(
        s, b, h, 96, "float16", recompute="full", tensor_parallel=tmp
    ).kept

    assert f"{parameters / 2**20:.0f}M" == "216M"
    assert moments == 24 * h**2 // tmp
    assert f"{moments / 2**20:.0f}M" == "432M"
    assert f"{activation / 2 / 2**20:.0f}M" == "24M"  # elements of two bytes
    assert weights_and_optimizer == 168 * h**2 // tmp
    assert f"{weights_and_optimizer / 2**30:.2f}GB" == "2.95GB"
    assert f"{activation / 2**20:.0f}MB" == "48MB"


def test_eager_1f1b_adds_at_most_the_stages_times_an_activation():
    # Cross-mesh resharding, section 4, on the memory of the layer in its Table 1.
    n_stages, activation = 8, 48 * 2**20

    def memory(schedule, stage):
        held = in_flight(schedule, stage, n_stages, n_microbatches=64)
        return stage_memory_bytes(2**28, 2**28, 2**30, activation, held)

    added = [memory("eager-1f1b", i) - memory("1f1b", i) for i in range(n_stages)]
    assert 0 <= min(added) <= max(added) < n_stages * activation


@pytest.mark.parametrize("n_subsequent", [1, 2, 5])
def test_1f1b_takes_the_memory_of_alpas_equation_5(n_subsequent):
    mem_stage, mem_act = 1000, 70
    held = in_flight("1f1b", stage=5 - n_subsequent, n_stages=5, n_microbatches=32)
    assert stage_memory_bytes(600, 300, 0, mem_act, held, temporary=100) == (
        mem_stage + n_subsequent * mem_act
    )


@given(fixed=st.tuples(amounts, amounts, amounts), activation=amounts, s=st.integers(0, 64))
def test_each_microbatch_in_flight_adds_its_activations(fixed, activation, s):
    assert stage_memory_bytes(*fixed, activation, in_flight=0) == sum(fixed)
    more, less = (stage_memory_bytes(*fixed, activation, in_flight=n) for n in (s + 1, s))
    assert more - less == activation


@given(
    schedule=st.sampled_from(SCHEDULES),
    fixed=st.tuples(amounts, amounts, amounts),
    activation=amounts,
    waiting=amounts,
    temporary=amounts,
)
def test_memory_is_what_persists_and_what_is_in_flight(
    schedule, fixed, activation, waiting, temporary
):
    held = in_flight(schedule, 1, 4, 8, n_chunks=2 if schedule == "interleaved" else 1)
    memory = stage_memory_bytes(
        *fixed,
        activation,
        held,
        temporary=temporary,
        weight_gradient_per_microbatch=waiting,
    )
    assert memory == sum(fixed) + temporary + held.n_bytes(activation, waiting)


@pytest.mark.parametrize("bad", [-1, 0.5, float("nan"), float("inf"), "1"], ids=repr)
@pytest.mark.parametrize(
    "name",
    [
        "parameter",
        "gradient",
        "optimizer_state",
        "in_flight",
        "temporary",
    ],
)
def test_rejects_memory_that_is_no_number_of_bytes(name, bad):
    terms = {
        "parameter": 1,
        "gradient": 1,
        "optimizer_state": 1,
        "activation_per_microbatch": 1,
        "in_flight": 1,
        name: bad,
    }
    with pytest.raises(QuantityError, match=f"{name} is a finite whole number >= 0; got"):
        stage_memory_bytes(**terms)
